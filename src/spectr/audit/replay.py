"""A model whose logits are computed once and replayed, so that the real loop can run over a hundred thousand seeds.

Rows of logits are those of a real model (or of any function of a text) after a prompt and up to `memory` more tokens.
Of longer texts only the last `memory` tokens count. The distribution of the first `memory` + 1 tokens is therefore
exactly the model's, and deeper drafts still get logits of the model. It is a language model like any other, with
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
"""Maps texts, prompt included, to the raw logits (n, V) of the token after each."""

_MOST_NODES = 96  # nodes of one call of the model
_NO_BEGINNING = "a replay stores only the last tokens of a text, so its beginning cannot be restored; read it again"


@dataclass(slots=True)
class _Session:
    """The state of each row: the index of its text, its length, and the states of its scratch nodes.

    State and length are changed in place, so that a window shares them with the whole session."""

    state: Tensor  # (B,) int64
    length: Tensor  # (B,) int64
    scratch: Tensor  # (B, S) int64

    def window(self, start: int, stop: int) -> "_Session":
        """Return some of the rows, with their own scratch nodes."""
        return _Session(self.state[start:stop], self.length[start:stop], self.scratch[start:stop, :0])


class Replay:
    """A `TreeModel` of rows of logits, each of which is computed once."""

    keeps_prefixes = False  # only the end of a long text is stored

    def __init__(self, rows: RowsAfter, vocabulary: int, prompts: Sequence[Sequence[int]], memory: int = 2) -> None:
        self.vocabulary, self.device, self.memory = vocabulary, torch.device("cpu"), memory
        self.context = 1 << 20
        self._rows, self._prompts = rows, [tuple(prompt) for prompt in prompts]
        self._texts: list[Words] = [()]
        self._numbers: dict[Words, int] = {(): 0}
        self._next: dict[int, int] = {}  # state · V + token → state
        self._table = torch.zeros(0, vocabulary)
        self._place: list[int] = []  # the index of each state's row in the table, -1 if it was not computed

    def logits_after(self, texts: Sequence[Words]) -> Tensor:
        """Return logits (n, V) after texts, prompt included."""
        return self._logits(torch.tensor([self._number(self._folded(text)) for text in texts]))

    def open(self, rows: int, slots: int, *, feature_layers: Any = None, lasting: bool = True) -> _Session:
        """Open a session of empty rows."""
        if feature_layers is not None:
            raise MismatchError("a replay has logits but no hidden states; audit a trained drafter with replay off")
        none = torch.zeros(rows, dtype=torch.int64)
        return _Session(none, none.clone(), torch.zeros(rows, 0, dtype=torch.int64))

    def read(self, session: _Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens."""
        states = dict[tuple[int, Words], int]()  # many rows read the same text
        keys = [(state, tuple(text)) for state, text in zip(session.state.tolist(), texts, strict=True)]
        for state, text in keys:
            if (state, text) not in states:
                states[state, text] = self._number(self._folded((*self._texts[state], *text)))
        session.state[:] = torch.tensor([states[key] for key in keys])
        session.length += torch.tensor([len(text) for text in texts])
        session.scratch = session.scratch[:, :0]

    def score(
        self, session: _Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Return the logits after new scratch nodes; a node's parent is the last of its ancestors."""
        before, count = session.scratch.shape[1], tokens.shape[1]
        # The text itself comes first.
        states = torch.cat([session.state[:, None], session.scratch, torch.zeros_like(tokens)], 1)
        places = torch.arange(1, before + count + 1)
        for node in range(count):
            above = torch.where(ancestors[:, node, : before + node], places[: before + node], 0)
            parent = above.amax(-1, keepdim=True) if before + node else torch.zeros_like(session.state[:, None])
            state = states.gather(1, parent).squeeze(1)
            states[:, 1 + before + node] = self._step(state, tokens[:, node])
        session.scratch = states[:, 1:]
        new = session.scratch[:, before:]
        return self._logits(new if only is None else new.gather(1, only))

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
        """Return a view of some rows; commits to it change the whole session."""
        return session.window(start, stop)

    def copy_rows(self, session: _Session, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the texts of some rows to others."""
        if any(length > most for length in session.length[sources].tolist()):
            raise MismatchError(_NO_BEGINNING)
        session.state[targets], session.length[targets] = session.state[sources], session.length[sources]

    def make_room(self, session: _Session, rows: int, slots: int) -> None:
        """Add rows; there is always room for more tokens."""
        extra = max(0, rows - len(session.state))
        session.state, session.length = (
            torch.nn.functional.pad(values, (0, extra)) for values in (session.state, session.length)
        )
        session.scratch = torch.nn.functional.pad(session.scratch, (0, 0, 0, extra))

    def rewind(self, session: _Session, lengths: list[int]) -> None:
        """Remove whole texts. Part of a text cannot be removed, because tokens before the memory are not stored."""
        wanted = torch.tensor(lengths)
        if ((wanted > 0) & (wanted != session.length)).any():
            raise MismatchError(_NO_BEGINNING)
        session.state[wanted == 0] = 0
        session.length[:] = wanted
        session.scratch = session.scratch[:, :0]

    def encode_row(self, session: _Session, row: int, source: list[int]) -> None:
        """Raise: there is no encoder."""
        raise MismatchError("a replay has no encoder; audit an encoder-decoder model with replay off")

    def features_at(self, session: _Session, positions: Tensor) -> Tensor:
        """Raise: there are no hidden states."""
        raise MismatchError("a replay has logits but no hidden states; audit a trained drafter with replay off")

    def share(self, session: _Session) -> _Session:
        """Return a session on the same texts with its own scratch nodes."""
        return session.window(0, len(session.state))

    def _folded(self, text: Words) -> Words:
        """Return the part of a text on which the logits depend."""
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
        """Return the state after one more token; `key` is state · V + token."""
        following = self._next.get(key)
        if following is None:
            state, token = divmod(key, self.vocabulary)
            following = self._next[key] = self._number(self._folded((*self._texts[state], token)))
        return following

    def _step(self, state: Tensor, token: Tensor) -> Tensor:
        keys, where = torch.unique(state * self.vocabulary + token, return_inverse=True)
        return torch.tensor([self._after(key) for key in keys.tolist()])[where]

    def _logits(self, states: Tensor) -> Tensor:
        """Return the logits (…, V) of states (…)."""
        distinct, where = states.unique(return_inverse=True)
        numbers = distinct.tolist()
        self._place += [-1] * (len(self._texts) - len(self._place))
        missing = [number for number in numbers if self._place[number] < 0]
        if missing:
            computed = self._rows([self._texts[number] for number in missing])
            for at, number in enumerate(missing, start=len(self._table)):
                self._place[number] = at
            self._table = torch.cat([self._table, computed.to(self._table.dtype)])
        return self._table[torch.tensor([self._place[number] for number in numbers])[where]]


class TreeRows:
    """Computes rows of logits with a model that scores trees: texts after one of the prompts become paths of a tree.

    `ids` are the model's ids of the replay's tokens; the logits of all other tokens are ignored. The distribution is
    therefore the model's, conditioned on these tokens. `prompts` maps a prompt of the replay to the model's own
    tokens."""

    def __init__(self, model: TreeModel, ids: Tensor, prompts: Mapping[Words, Sequence[int]]) -> None:
        self.model, self.ids, self.prompts = model, ids, {words: list(own) for words, own in prompts.items()}
        self._sessions = {words: self._read(own) for words, own in self.prompts.items()}

    def _read(self, prompt: list[int]) -> Any:
        """Return a session that has read all but the last token of a prompt."""
        session = self.model.open(1, len(prompt) + _MOST_NODES)
        self.model.read(session, [self._known(prompt[:-1])])
        return session

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Replace tokens that the model lacks by token 0."""
        return [token if token < self.model.vocabulary else 0 for token in tokens]

    def __call__(self, texts: Sequence[Words]) -> Tensor:
        """Return the logits (n, V) of the token after each text."""
        logits = torch.zeros(len(texts), len(self.ids))
        left = list(enumerate(texts))
        for prompt in self.prompts:
            mine = [(at, text[len(prompt) :]) for at, text in left if text[: len(prompt)] == prompt]
            left = [(at, text) for at, text in left if text[: len(prompt)] != prompt]
            for part in _parts(mine):
                logits[[at for at, _ in part]] = self._scored(prompt, [words for _, words in part])
        if left:
            raise ArgumentError(f"a text must begin with one of the prompts, got {left[0][1]}")
        return logits

    def _scored(self, prompt: Words, paths: Sequence[Words]) -> Tensor:
        """Return the logits at the ends of paths below the prompt's last token."""
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
        """Return the columns of the replay's tokens; a token that the model lacks gets a very small logit."""
        inside = self.ids < logits.shape[-1]
        picked = logits[:, torch.where(inside, self.ids, 0)]
        return torch.where(inside, picked, logits.amin(-1, keepdim=True) - 100.0)


def _trie(paths: Sequence[Words]) -> dict[Words, int]:
    """Return every prefix of the paths with its node, parents first."""
    every = {path[:length] for path in paths for length in range(len(path) + 1)}
    return {path: node for node, path in enumerate(sorted(every, key=lambda path: (len(path), path)))}


def _parts(texts: Sequence[tuple[int, Words]]) -> list[list[tuple[int, Words]]]:
    """Split texts into groups that fit into one tree; sorted neighbours share prefixes."""
    parts: list[list[tuple[int, Words]]] = []
    nodes: set[Words] = set()
    for at, words in sorted(texts, key=lambda pair: pair[1]):
        new = {words[:length] for length in range(len(words) + 1)} - nodes
        if not parts or len(nodes) + len(new) > _MOST_NODES:
            parts.append([])
            nodes, new = set(), {words[:length] for length in range(len(words) + 1)}
        parts[-1].append((at, words))
        nodes |= new
    return parts


@dataclass(frozen=True, slots=True)
class Bent:
    """The logits of another model, changed by a function of (logits (n, V), texts)."""

    rows: RowsAfter
    bend: Callable[[Tensor, Sequence[Words]], Tensor]

    def __call__(self, texts: Sequence[Words]) -> Tensor:
        """Return the changed logits."""
        return self.bend(self.rows(texts), texts)
