"""The nouns that cross folder borders: a draft, a verdict, and the coins a rule is handed.

Everything is a batch of fixed capacity: B rows, N nodes, depth D, vocabulary V. Which node hangs where is data, so
dynamic trees, short lookups and chains are no special cases. Nothing here knows a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

__all__ = [
    "ORIGINS",
    "SIBLINGS",
    "AppliedPolicy",
    "Coins",
    "Draft",
    "Drafter",
    "Drafting",
    "LogitsAt",
    "Opening",
    "Scene",
    "Siblings",
    "TreeModel",
    "Verdict",
]

Layers = tuple[int, ...]
"""Decoder layers of a target, counted from 0."""

Siblings = Literal["iid", "hybrid", "without_replacement", "fixed", "race"]
"""How the children of a node were drawn. `iid`: independent draws of the draft law. `hybrid`: its top m, fixed, and
the rest iid off them. `without_replacement`: in the order drawn. `fixed`: any set chosen without looking at the
target. `race`: the best by shared noise."""
SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)


LogitsAt = Callable[[Tensor | None], Tensor]
"""The target's policy logits at nodes (B, M), as (B, M, V); None means every node. A rule asks for what it looks at, so
that filters are not computed where nobody looks."""


ORIGINS = ("drafter", "lookup", "prediction", "grammar")
"""Where the nodes of a tree may come from, by number: a drafter, the row's own text, its reference, its grammar."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch of token trees. Node 0 is the last committed token; a parent stands before its children."""

    tokens: Tensor  # (B, N) int64
    parents: Tensor  # (B, N) int64; the root is its own parent
    alive: Tensor  # (B, N) bool; a dead node is padding and has only dead descendants
    fixed: Tensor  # (B, N) bool; drafted as a member of a fixed set, not sampled
    laws: Tensor | None  # (B, N, V) the law each node's sampled children came from, None if nothing was sampled
    siblings: Siblings
    depth: int  # capacity: no alive node is deeper
    width: int  # capacity: no depth has more alive nodes
    predicted: Tensor | None = None  # (B, P) int64: what a row's reference says of the next tokens, padded with -1
    origin: Tensor | None = None  # (B, N) int64: places in ORIGINS, if somebody looks; None: all from the drafter


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided: the accepted path and the token the target adds after it."""

    path: Tensor  # (B, D) int64 node ids, padded with -1
    length: Tensor  # (B,) int64 accepted nodes
    bonus: Tensor  # (B,) int64 token id
    corrected: Tensor  # (B,) bool: the bonus replaces a rejected child (else the path ended at a leaf)


class Coins(Protocol):
    """The randomness of one step, one decision per (row, node, purpose). Rules decide through it, never with a
    uniform in hand, so no coin can serve two decisions and the very same rule code can be enumerated exactly."""

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        """True with probability `chance` (B, M), for nodes (B, M)."""
        ...

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        """An index drawn in proportion to `weights` (B, M, V), for nodes (B, M)."""
        ...

    def race(self, logits: Tensor, depth: Tensor) -> Tensor:
        """The token that wins the race at `depth` (B, M) below the committed text, for policy logits (B, M, V)."""
        ...

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """The first `count` tokens of the same race, best first, (B, M, count): what a drafter guesses with."""
        ...

    def noisy_logits(self, logits: Tensor, depth: Tensor) -> Tensor:
        """What the race compares: policy logits (B, M, V) plus the noise at `depth` (B, M) or (B, 1)."""
        ...

    def noisy_approx(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Nearly that, and quickly: for drafts, which decide nothing."""
        ...

    def likeliest(self, logits: Tensor, depth: Tensor | None, score_scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities (B, M, count) and tokens of the `count` largest of softmax(noisy logits · score_scale), the
        best first; `score_scale` is (B,). Without a depth there is no noise."""
        ...


class TreeModel(Protocol):
    """A language model as the rest sees it: it scores token trees level by level and keeps one path of each.

    A session holds what the model remembers of a batch of rows: committed tokens, then scratch nodes that were scored
    and not yet kept.
    """

    context: int  # positions the model has
    vocabulary: int
    device: torch.device
    keeps_prefixes: bool  # a row can be rewound, and the beginning of one copied to another

    def open(self, rows: int, slots: int, *, features: Layers | None = None, lasting: bool = True) -> Any:
        """A session with room for so many rows and tokens, scratch included. With `features` it keeps those of every
        token: what entered the output layer, and after it what left these layers; unless they are lasting, those of
        the last call."""
        ...

    def features_at(self, session: Any, positions: Tensor) -> Tensor:
        """(B, L, F): the features that the session keeps at committed `positions` (B, L); zeros before the first."""
        ...

    def encode_row(self, session: Any, row: int, source: list[int]) -> None:
        """Give one row of an encoder-decoder model the text it answers to."""
        ...

    def capture_prefill(self, session: Any) -> None:
        """Read prompts into this session by replayed graphs from now on, where the model can do so."""
        ...

    def read(self, session: Any, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens to each row, which have `filled` so far; a row may get none."""
        ...

    def score(
        self, session: Any, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) after fresh scratch nodes with `tokens` (B, T), `depth` (B, T) below the next position; of
        `only` (B, M) of them, if given. `ancestors` (B, T, S + T): which of the S scratch nodes scored before, and of
        the fresh ones, each sees."""
        ...

    def keep(self, session: Any, nodes: Tensor) -> None:
        """Commit scratch `nodes` (B, L) in this order, -1 is padding; the others are forgotten."""
        ...

    def window(self, session: Any, start: int, stop: int, longest: int) -> Any:
        """A session on the rows from `start` to `stop`, none of which has more than `longest` tokens: what is committed
        there is committed here. To be asked for again before every use."""
        ...

    def copy_rows(self, session: Any, sources: list[int], targets: list[int], most: int) -> None:
        """The first `most` tokens of each source, or all if it has fewer, become those of the target."""
        ...

    def make_room(self, session: Any, rows: int, slots: int) -> None:
        """Room for so many rows and tokens at least, contents kept."""
        ...

    def rewind(self, session: Any, lengths: list[int]) -> None:
        """Forget committed tokens beyond these lengths."""
        ...

    def share(self, session: Any) -> Any:
        """A session on the same committed tokens with scratch of its own, which the next call on `session` overwrites:
        for a model that is the beginning of another one."""
        ...


AppliedPolicy = Callable[[Tensor, Tensor], Tensor]
"""Raw logits (B, M, V) and the tokens (B, M, D) on each node's way below the root, padded with -1 → policy logits."""


class TextState(Protocol):
    """The texts of the rows that take part in a step, on the device: see `spectr.policy.History`."""

    length: Tensor  # (B,) int64: tokens of each text, prompt included
    host: list[Any]  # the texts where the host knows them, for drafters that work there

    @property
    def tokens(self) -> Tensor:
        """(B, M) int64: the texts, padded with -1."""
        ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What a drafter is told before any row begins."""

    rows: int  # how many there is room for
    slots: int  # most tokens a row may come to, its tree included
    vocabulary: int  # of the target
    session: Any  # the target's own session, for drafters that share its cache or read its features
    device: torch.device | str = "cpu"  # where the texts of the rows are
    captures: bool = False  # prompts are read by replayed graphs, where a model can


@dataclass(frozen=True, slots=True)
class Scene:
    """What a drafter may look at when it proposes: everything but the target's distributions to come."""

    texts: TextState  # committed, prompt included; the last token is the root
    root: Tensor  # (B,) int64
    active: Tensor  # (B,) bool: rows that have not ended
    coins: Coins
    draft_logits: AppliedPolicy  # the policy: the distribution drafts are drawn from
    ranking_logits: AppliedPolicy  # the same for guesses: greedy still tells which token would come second
    temperature: Tensor  # (B,) float64: how much of the noise counts
    longest: int  # no text has more tokens
    unread: int | None = None  # no row got more tokens since the last step; None: ask the device
    wants_laws: bool = False  # somebody will look at the draft laws, though the rule may not

    @property
    def host_texts(self) -> list[list[int]]:
        """The texts as lists, for drafters that work on the host: such a drafter is not capturable."""
        return [host.tokens for host in self.texts.host[: len(self.root)]]


class Drafting(Protocol):
    """A drafter at work: what it remembers of the rows. A step takes the first rows, as many as its scene has."""

    @property
    def is_behind(self) -> bool:
        """Whether the next step has to read more than the tokens of the last."""
        ...

    def choose(self, rows: int) -> int:
        """Which of its ways of drafting the next step of so many rows takes; 0 where there is but one."""
        ...

    def propose(self, scene: Scene) -> Draft:
        """A token tree for each row of the scene."""
        ...

    def keep(self, path: Tensor) -> None:
        """The nodes (B, D), padded with -1, of its last draft that were accepted."""
        ...

    def observe(self, rows: int, choice: int, tokens: float, seconds: float) -> None:
        """A step of so many rows, drafted in this way, added so many tokens a row, and took so long."""
        ...

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """A row begins with a text, which may come to `limit` tokens, and of which nothing was read; an encoder-decoder
        model answers to a source. Whether the beginning of another row may stand for that of this one."""
        ...

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """The target has read more of the rows from `first` on: `texts`, which stand at `starts`. What was remembered
        of these rows from there on is void."""
        ...

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """The first `most` tokens of each source, or all it has read, become those of the target."""
        ...

    def make_room(self, rows: int, slots: int) -> None:
        """Room for so many rows and tokens at least, contents kept."""
        ...


class Drafter(Protocol):
    """Anything that proposes tokens. Shared and immutable: what it remembers of rows is in its drafting. One with
    `capturable = True` needs no text on the host."""

    @property
    def name(self) -> str:
        """As in the registry."""
        ...

    @property
    def siblings(self) -> Siblings:
        """How children are drawn."""
        ...

    @property
    def nodes(self) -> int:
        """Room a step needs in the target's cache: no tree has more nodes, the root included."""
        ...

    @property
    def gives_laws(self) -> bool:
        """Its drafts carry the laws they were drawn from."""
        ...

    def open(self, opening: Opening) -> Drafting:
        """Make room for rows. A drafter whose `wants_features` names layers (none is enough) finds features
        in the target's session."""
        ...
