"""A model of every architecture with two rows and a tree, and plain forward passes to compare with."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.architectures import ALL, ENCODERS, PARENTS, ancestors, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from spectr.models.target import Session, Target


@dataclass(slots=True)
class Play:
    """A session with two rows after prompts of 11 and 7 tokens, and a tree to score on each."""

    model: PreTrainedModel
    target: Target
    session: Session
    sources: list[list[int]] | None
    prompts: list[list[int]]
    tokens: Tensor  # (2, N)
    seen: Tensor  # (2, N, N)

    @property
    def depth(self) -> Tensor:
        """Depths of the nodes, (2, N)."""
        return self.seen.sum(-1) - 1

    def fresh(self, rows: int = 2, slots: int = 48) -> Session:
        """Open a session that has encoded its sources and read nothing."""
        session = self.target.open(rows, slots)
        for row, source in enumerate((self.sources or [])[:rows]):
            self.target.encode_row(session, row, source)
        return session

    def plain(self, row: int, ids: list[int]) -> Tensor:
        """Return the logits after `ids` from a plain forward pass without a cache."""
        text = torch.tensor([ids])
        given = {"input_ids": text} if self.sources is None else {
            "input_ids": torch.tensor([self.sources[row]]), "decoder_input_ids": text}  # fmt: skip
        with torch.no_grad():
            return self.model(**given, use_cache=False).logits[0, -1]

    def path(self, row: int, node: int) -> list[int]:
        """Return the tokens of the tree that a node attends to."""
        return [int(t) for t, yes in zip(self.tokens[row], self.seen[row, node], strict=True) if yes]

    def worst(self, logits: Tensor) -> float:
        """Return the largest difference to plain forward passes of every node's path, relative to the logits'
        deviation."""
        found = 0.0
        for row, prompt in enumerate(self.prompts):
            for node in range(self.tokens.shape[1]):
                right = self.plain(row, prompt + self.path(row, node))
                found = max(found, float((logits[row, node] - right).abs().max()))
        return found / max(1.0, float(logits.std()))

    def next_is_right(self, session: Session, texts: list[list[int]], rows: list[int] | None = None) -> None:
        """Check that one more token on each row gives the logits of a plain forward pass of its whole text."""
        many = len(texts)
        last = torch.tensor([[5 + row] for row in range(many)])
        one, zero = torch.ones(many, 1, 1, dtype=torch.bool), torch.zeros(many, 1, dtype=torch.int64)
        after = self.target.score(session, last, one, zero)
        session.pending = 0
        for row, text in enumerate(texts):
            right = self.plain(row if rows is None else rows[row], [*text, 5 + row])
            assert (after[row, 0] - right).abs().max() < 5e-5 * max(1.0, float(after.std()))


Make = Callable[[str], Play]


@pytest.fixture
def make() -> Make:
    """Return a function that makes a `Play` by the name of an architecture."""

    def made(name: str) -> Play:
        generator = torch.Generator().manual_seed(1)

        def words(count: int) -> list[int]:
            return torch.randint(3, 61, (count,), generator=generator).tolist()

        target = Target(tiny_model(name), chunk=4)
        sources = [words(9), words(5)] if name in ENCODERS else None
        prompts, tokens = [words(11), words(7)], torch.tensor([words(len(PARENTS)), words(len(PARENTS))])
        play = Play(
            target.model, target, target.open(2, 48), sources, prompts, tokens, ancestors(PARENTS).repeat(2, 1, 1)
        )
        play.session = play.fresh()
        target.read(play.session, prompts)
        return play

    return made


@pytest.fixture(params=ALL)
def play(request: pytest.FixtureRequest, make: Make) -> Play:
    """A `Play` of every architecture in turn."""
    return make(request.param)
