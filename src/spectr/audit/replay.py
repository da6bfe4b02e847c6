"""A model whose rows are computed once and replayed, so that the real loop can run over a hundred thousand seeds.

Rows are those of a real model (or of any function of a text) after a prompt and up to `memory` tokens more. What is
committed beyond that is remembered by its last `memory` tokens: so the law of the first `memory` + 1 tokens is exactly
the model's, and drafts that reach deeper still meet rows of the model. It is a language model like any other, with
finitely many rows, and does not depend on rules or drafters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError, MismatchError
from spectr.types import TreeModel

__all__ = ["Bent", "Replay", "RowsAfter", "TreeRows", "Words"]

Words = tuple[int, ...]
RowsAfter = Callable[[Sequence[Words]], Tensor]
"""Texts, prompt included → raw logits (n, V) of the token after each."""

_MOST_NODES = 96  # nodes of one call for rows
_NO_BEGINNING = "a replay remembers the last tokens alone, so the beginning of a text cannot be restored; read it again"


@dataclass(slots=True)
class _Session:
    """The state of each row: the number of its text among those known, how many tokens it has, and the numbers of its
    scratch nodes. State and length are changed in place, so that a window's are those of the whole."""

    state: Tensor  # (B,) int64
    length: Tensor  # (B,) int64
    scratch: Tensor  # (B, S) int64

    def window(self, start: int, stop: int) -> "_Session":
        """Some rows, with scratch nodes of their own."""
        return _Session(self.state[start:stop], self.length[start:stop], self.scratch[start:stop, :0])


class Replay:
    """A `TreeModel` made of rows, each of which is computed once."""

    keeps_prefixes = False  # of a text beyond its memory the end alone is known

    def __init__(self, rows: RowsAfter, vocabulary: int, prompts: Sequence[Sequence[int]], memory: int = 2) -> None:
        self.vocabulary, self.device, self.memory = vocabulary, torch.device("cpu"), memory
        self.context = 1 << 20
        self._rows, self._prompts = rows, [tuple(prompt) for prompt in prompts]
        self._texts: list[Words] = [()]
        self._numbers: dict[Words, int] = {(): 0}
        self._next: dict[int, int] = {}  # state · V + token → state
        self._table = torch.zeros(0, vocabulary)
        self._place: list[int] = []  # of each state's row in the table, -1 if it was never asked for

    def logits_after(self, texts: Sequence[Words]) -> Tensor:
        """Rows (n, V) after texts, prompt included."""
        return self._logits(torch.tensor([self._number(self._folded(text)) for text in texts]))

    def open(self, rows: int, slots: int, *, features: Any = None, lasting: bool = True) -> _Session:
        """A session of empty rows."""
        if features is not None:
            raise MismatchError("a replay has rows and no features; audit a trained drafter with replay off")
        none = torch.zeros(rows, dtype=torch.int64)
        return _Session(none, none.clone(), torch.zeros(rows, 0, dtype=torch.int64))

    def read(self, session: _Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens."""
        found = dict[tuple[int, Words], int]()  # many rows read the same
        keys = [(state, tuple(text)) for state, text in zip(session.state.tolist(), texts, strict=True)]
        for state, text in keys:
            if (state, text) not in found:
                found[state, text] = self._number(self._folded((*self._texts[state], *text)))
        session.state[:] = torch.tensor([found[key] for key in keys])
        session.length += torch.tensor([len(text) for text in texts])
        session.scratch = session.scratch[:, :0]

    def score(
        self, session: _Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Rows after fresh scratch nodes; a node's parent is the last of its ancestors."""
        before, count = session.scratch.shape[1], tokens.shape[1]
        found = torch.cat(
            [session.state[:, None], session.scratch, torch.zeros_like(tokens)], 1
        )  # the text itself first
        places = torch.arange(1, before + count + 1)
        for node in range(count):
            above = torch.where(ancestors[:, node, : before + node], places[: before + node], 0)
            parent = above.amax(-1, keepdim=True) if before + node else torch.zeros_like(session.state[:, None])
            state = found.gather(1, parent).squeeze(1)
            found[:, 1 + before + node] = self._step(state, tokens[:, node])
        session.scratch = found[:, 1:]
        fresh = session.scratch[:, before:]
        return self._logits(fresh if only is None else fresh.gather(1, only))

    def keep(self, session: _Session, nodes: Tensor) -> None:
        """Move each row to the last of its kept nodes."""
        last = torch.where(nodes >= 0, torch.arange(nodes.shape[1]), -1).amax(-1, keepdim=True)
        node = nodes.gather(1, last.clamp_min(0)).clamp_min(0)
        kept = torch.where(last >= 0, session.scratch.gather(1, node), session.state[:, None])
        session.state[:] = kept.squeeze(1)
        session.length += (nodes >= 0).sum(-1)
        session.scratch = session.scratch[:, :0]

    def capture_prefill(self, session: _Session) -> None:
        """Do nothing: this model has no graphs."""

    def window(self, session: _Session, start: int, stop: int, longest: int) -> _Session:
        """Some of the rows; what is committed there is committed here."""
        return session.window(start, stop)

    def copy_rows(self, session: _Session, sources: list[int], targets: list[int], most: int) -> None:
        """Give some rows the texts of others."""
        if any(length > most for length in session.length[sources].tolist()):
            raise MismatchError(_NO_BEGINNING)
        session.state[targets], session.length[targets] = session.state[sources], session.length[sources]

    def make_room(self, session: _Session, rows: int, slots: int) -> None:
        """More rows; there is always room for more tokens."""
        extra = max(0, rows - len(session.state))
        session.state, session.length = (
            torch.nn.functional.pad(held, (0, extra)) for held in (session.state, session.length)
        )
        session.scratch = torch.nn.functional.pad(session.scratch, (0, 0, 0, extra))

    def rewind(self, session: _Session, lengths: list[int]) -> None:
        """Forget whole texts. Part of a text cannot be forgotten: what lies further back than the memory is gone."""
        wanted = torch.tensor(lengths)
        if ((wanted > 0) & (wanted != session.length)).any():
            raise MismatchError(_NO_BEGINNING)
        session.state[wanted == 0] = 0
        session.length[:] = wanted
        session.scratch = session.scratch[:, :0]

    def encode_row(self, session: _Session, row: int, source: list[int]) -> None:
        """Refuse: there is no encoder."""
        raise MismatchError("a replay has no encoder; audit an encoder-decoder model with replay off")

    def features_at(self, session: _Session, positions: Tensor) -> Tensor:
        """Refuse: there are no features."""
        raise MismatchError("a replay has rows and no features; audit a trained drafter with replay off")

    def share(self, session: _Session) -> _Session:
        """A session on the same text with its own scratch nodes."""
        return session.window(0, len(session.state))

    def _folded(self, text: Words) -> Words:
        """The part of a text that rows depend on."""
        for prompt in self._prompts:
            if text[: len(prompt)] == prompt and len(text) > len(prompt) + self.memory:
                return prompt + text[len(text) - self.memory :]
        return text

    def _number(self, text: Words) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]

    def _after(self, key: int) -> int:
        """The state after one more token."""
        found = self._next.get(key)
        if found is None:
            state, token = divmod(key, self.vocabulary)
            found = self._next[key] = self._number(self._folded((*self._texts[state], token)))
        return found

    def _step(self, state: Tensor, token: Tensor) -> Tensor:
        keys, where = torch.unique(state * self.vocabulary + token, return_inverse=True)
        return torch.tensor([self._after(key) for key in keys.tolist()])[where]

    def _logits(self, states: Tensor) -> Tensor:
        """Rows (…, V) of states (…)."""
        distinct, where = states.unique(return_inverse=True)
        numbers = distinct.tolist()
        self._place += [-1] * (len(self._texts) - len(self._place))
        missing = [number for number in numbers if self._place[number] < 0]
        if missing:
            fresh = self._rows([self._texts[number] for number in missing])
            for at, number in enumerate(missing, start=len(self._table)):
                self._place[number] = at
            self._table = torch.cat([self._table, fresh.to(self._table.dtype)])
        return self._table[torch.tensor([self._place[number] for number in numbers])[where]]


class TreeRows:
    """Rows of a model that scores trees: texts after one of the prompts become paths of a tree, many in one call.

    `ids`: the tokens of the replay, as the model knows them; its logits on all others are not looked at. So the law is
    the model's own, given that one of these tokens comes: a policy like any other. `prompts`: what a prompt of the
    replay stands for, in the model's own tokens."""

    def __init__(self, model: TreeModel, ids: Tensor, prompts: Mapping[Words, Sequence[int]]) -> None:
        self.model, self.ids, self.prompts = model, ids, {words: list(own) for words, own in prompts.items()}
        self._sessions = {words: self._read(own) for words, own in self.prompts.items()}

    def _read(self, prompt: list[int]) -> Any:
        """A session that holds all but the last token of a prompt."""
        session = self.model.open(1, len(prompt) + _MOST_NODES)
        self.model.read(session, [self._known(prompt[:-1])])
        return session

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, with the first one in place of those that the model lacks."""
        return [token if token < self.model.vocabulary else 0 for token in tokens]

    def __call__(self, texts: Sequence[Words]) -> Tensor:
        """Logits (n, V) of the token after each text."""
        found = torch.zeros(len(texts), len(self.ids))
        left = list(enumerate(texts))
        for prompt in self.prompts:
            mine = [(at, text[len(prompt) :]) for at, text in left if text[: len(prompt)] == prompt]
            left = [(at, text) for at, text in left if text[: len(prompt)] != prompt]
            for part in _parts(mine):
                found[[at for at, _ in part]] = self._scored(prompt, [words for _, words in part])
        if left:
            raise ArgumentError(f"a text must begin with one of the prompts, got {left[0][1]}")
        return found

    def _scored(self, prompt: Words, paths: Sequence[Words]) -> Tensor:
        """Rows at the ends of paths below the prompt's last token."""
        nodes, session, own = _trie(paths), self._sessions[prompt], self.prompts[prompt]
        tokens = self._known([own[-1], *(int(self.ids[path[-1]]) for path in list(nodes)[1:])])
        seen = torch.tensor([[other == path[: len(other)] for other in nodes] for path in nodes])
        depth = torch.tensor([len(path) for path in nodes])
        wanted = torch.tensor([nodes[path] for path in paths])
        device = self.model.device
        logits = self.model.score(
            session, torch.tensor([tokens], device=device), seen[None].to(device), depth[None].to(device),
            only=wanted[None].to(device),
        )  # fmt: skip
        self.model.rewind(session, [len(own) - 1])
        return self._chosen(logits[0].float().cpu())

    def _chosen(self, logits: Tensor) -> Tensor:
        """The columns of the replay's tokens; one that the model lacks gets the smallest logit."""
        inside = self.ids < logits.shape[-1]
        picked = logits[:, torch.where(inside, self.ids, 0)]
        return torch.where(inside, picked, logits.amin(-1, keepdim=True) - 100.0)


def _trie(paths: Sequence[Words]) -> dict[Words, int]:
    """Every beginning of the paths, parents first, and its node."""
    every = {path[:length] for path in paths for length in range(len(path) + 1)}
    return {path: node for node, path in enumerate(sorted(every, key=lambda path: (len(path), path)))}


def _parts(found: Sequence[tuple[int, Words]]) -> list[list[tuple[int, Words]]]:
    """Those that stand together in one tree, kept small; neighbours share their beginnings."""
    parts: list[list[tuple[int, Words]]] = []
    nodes: set[Words] = set()
    for at, words in sorted(found, key=lambda pair: pair[1]):
        fresh = {words[:length] for length in range(len(words) + 1)} - nodes
        if not parts or len(nodes) + len(fresh) > _MOST_NODES:
            parts.append([])
            nodes, fresh = set(), {words[:length] for length in range(len(words) + 1)}
        parts[-1].append((at, words))
        nodes |= fresh
    return parts


@dataclass(frozen=True, slots=True)
class Bent:
    """Another model's rows, changed by a function of (logits (n, V), texts)."""

    rows: RowsAfter
    bend: Callable[[Tensor, Sequence[Words]], Tensor]

    def __call__(self, texts: Sequence[Words]) -> Tensor:
        """The changed rows."""
        return self.bend(self.rows(texts), texts)
