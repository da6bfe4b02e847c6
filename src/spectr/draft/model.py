"""A small language model as the drafter: one batched call for each depth of the tree.

It remembers the committed text in a session of its own. What it has not read yet when a step begins (the bonus token,
and accepted tokens that it never scored) goes before the root into the first call, so a step has no call of its own for
catching up.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.plan import Drawn, Plan, Planned, draw
from spectr.rows import ladder
from spectr.trees import Frontier
from spectr.types import Draft, Drafting, Opening, Scene, Standing, TreeModel

__all__ = ["LACKING", "Ahead", "ModelDrafter", "ModelDrafting", "fitted"]

LACKING = 100.0
"""How far below its best logit a drafter ranks tokens that it lacks: hardly ever drafted, and yet a law is left where a
policy leaves no others."""


def fitted(logits: Tensor, vocabulary: int) -> Tensor:
    """Logits (…, U) for a target of another, padded, vocabulary: what the target lacks goes, what the drafter lacks
    comes last."""
    missing = vocabulary - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocabulary]
    last = logits.amax(-1, keepdim=True).float() - LACKING
    return torch.cat([logits, last.to(logits.dtype).expand(*logits.shape[:-1], missing)], -1)


@dataclass(frozen=True, slots=True)
class ModelDrafter(Planned):
    """Any model that scores trees, with a plan."""

    model: TreeModel
    plan: Plan
    name: ClassVar[str] = "model"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Read the prompts but their last tokens; of a prompt that this model has no room for, the end."""
        room = (opening.room or opening.slots) + self.plan.scored
        session = self.model.open(len(opening.prompts), room)
        if opening.sources is not None:
            sources = [source[: self.model.context] for source in opening.sources]
            self.model.encode(session, _known(sources, self.model.vocabulary))
        made = ModelDrafting(self.model, self.plan, session, opening)
        made.fill(opening, 0)
        return made


def _known(texts: list[list[int]], size: int) -> list[list[int]]:
    """Tokens of the target that the drafter does not have are read as its first."""
    return [[token if token < size else 0 for token in text] for text in texts]


@dataclass(frozen=True, slots=True)
class Ahead:
    """The text not read when the step began: `count` (B,) tokens of each row, in the first W scratch places."""

    tokens: Tensor  # (B, W), a row's tokens first
    count: Tensor  # (B,)
    seen: Tensor  # (B, W) bool: places that hold text

    @classmethod
    def of(cls, tokens: Tensor, count: Tensor) -> "Ahead":
        """The first `count` of the tokens."""
        return cls(tokens, count, ladder(tokens.shape[1], count.device) < count[:, None])


def _last(standing: Standing, count: Tensor) -> Ahead:
    """The last `count` (B,) of the tokens that the last step added; a captured step leaves no others unread."""
    places = (standing.fresh - count)[:, None] + ladder(standing.recent.shape[1], count.device)
    return Ahead.of(standing.recent.gather(1, places.clamp(0, standing.recent.shape[1] - 1)), count)


class ModelDrafting:
    """A session of the draft model, and how much of each row's text it has read."""

    def __init__(self, model: TreeModel, plan: Plan, session: Any, opening: Opening) -> None:
        self.model, self.plan, self.session, self.vocabulary = model, plan, session, opening.vocabulary
        self.read = torch.zeros(len(opening.prompts), dtype=torch.int64, device=model.device)
        self._ahead: Ahead | None = None
        self._drawn: Drawn | None = None
        self._going: Tensor | None = None
        self._whole = True  # nothing was left out of the prompts

    def begin(self, opening: Opening, kept: int) -> None:
        """Read the prompts but their last tokens; their first `kept` were read before, and what is left of that stays.
        In place: a captured step finds it there again."""
        was_whole, is_whole = self._whole, max(map(len, opening.prompts)) <= self._most(opening)
        start = min(kept, *self.read.tolist()) if kept and was_whole and is_whole else 0
        self.model.rewind(self.session, [start] * len(opening.prompts))
        self.fill(opening, start)

    def fill(self, opening: Opening, start: int) -> None:
        """Read what is behind `start`, or of prompts that are too long the end."""
        most = self._most(opening)
        self._whole = max(map(len, opening.prompts)) <= most
        self._read([prompt[start:-1][-most:] for prompt in opening.prompts], start, opening)
        self.read.copy_(torch.tensor([len(prompt) - 1 for prompt in opening.prompts]))

    def _most(self, opening: Opening) -> int:
        """Tokens of a prompt to read: what leaves room for those to come, or half of the context if they are many."""
        coming = opening.slots - max(map(len, opening.prompts))
        return max(self.model.context - coming, self.model.context // 2, 1)

    def _read(self, texts: list[list[int]], start: int, opening: Opening) -> None:
        """Read texts that stand at `start`."""
        self.model.read(self.session, _known(texts, self.model.vocabulary))

    def propose(self, scene: Scene) -> Draft:
        """Draw by the plan, each depth one call."""
        ahead = self._ahead = self._unread(scene)
        self._going = None if scene.standing is None else scene.standing.going
        self._drawn = draw(self.plan, scene, lambda frontier: self._logits(ahead, frontier))
        return self._drawn.draft

    def keep(self, path: Tensor) -> None:
        """Commit the unread text and those accepted nodes that were scored; the rest is read next time."""
        assert self._ahead is not None
        assert self._drawn is not None
        width = self._ahead.tokens.shape[1]
        seen = self._ahead.seen
        if self._going is not None:  # a row that has ended stays where it is
            seen = seen & self._going[:, None]
        text = torch.where(seen, ladder(width, path.device), -1)
        kept = torch.cat([text, self._kept(path, self._drawn, width)], 1)
        self.model.keep(self.session, kept)
        self.read += (kept >= 0).sum(-1)  # in place: a captured step finds it there again

    def _kept(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """Scratch places (B, D) of accepted nodes that need not be read again, -1 for the others."""
        scored = drawn.scored.gather(1, path.clamp_min(0))
        return torch.where((path >= 0) & (scored >= 0), scored + width - 1, -1)

    def take_rows(self, rows: Tensor) -> None:
        """Rows leave, or are repeated."""
        self.model.take_rows(self.session, rows)
        self.read = self.read[rows]

    def assume(self, longest: int) -> None:
        """For its own session."""
        self.session.assume(longest)

    def _unread(self, scene: Scene) -> Ahead:
        if not scene.texts:
            assert scene.standing is not None
            return _last(scene.standing, scene.standing.committed - self.read)
        parts = [text[read:] for text, read in zip(scene.texts, self.read.tolist(), strict=True)]
        widest, device = max(map(len, parts)), scene.root.device
        tokens = torch.tensor([part + [0] * (widest - len(part)) for part in parts], device=device)
        return Ahead.of(tokens, torch.tensor([len(part) for part in parts], device=device))

    def _logits(self, ahead: Ahead, frontier: Frontier) -> Tensor:
        """Raw logits over the target's vocabulary."""
        found = self._first(ahead) if frontier.depth == 0 else self._deeper(ahead, frontier)
        return fitted(found, self.vocabulary)

    def _score(self, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None) -> Tensor:
        lacking = self.model.vocabulary < self.vocabulary
        known = torch.where(tokens < self.model.vocabulary, tokens, 0) if lacking else tokens
        return self.model.score(self.session, known, ancestors, depth, only=only)

    def _first(self, ahead: Ahead) -> Tensor:
        """After the root, the last of the unread text."""
        batch, width = ahead.tokens.shape
        places = ladder(width, ahead.tokens.device)
        causal = (places[:, None] >= places).expand(batch, -1, -1)
        return self._score(ahead.tokens, causal, places.expand(batch, -1), only=ahead.count[:, None] - 1)

    def _deeper(self, ahead: Ahead, frontier: Frontier) -> Tensor:
        """Below the root: a node sees all of the unread text, and its ancestors."""
        batch, count, _ = frontier.ancestors.shape
        text = ahead.seen[:, None].expand(batch, count, -1)
        depth = (ahead.count[:, None] + (frontier.depth - 1)).expand(batch, count)
        return self._score(frontier.tokens, torch.cat([text, frontier.ancestors[..., 1:]], -1), depth)
