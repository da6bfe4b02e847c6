"""The types that folders share: a draft, a verdict, the coins of a rule, and the protocols of models and drafters.

Tensors are batches of fixed capacity: B rows, N nodes, depth D, vocabulary V. The parents of nodes are data, so dynamic
trees, short lookups and chains are no special cases. This module does not depend on any model.
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
"""How the children of a node were drawn. `iid`: independent draws from the draft distribution. `hybrid`: its top m
tokens, which are fixed, and the rest iid from the other tokens. `without_replacement`: in the order drawn. `fixed`: any
set that was chosen without looking at the target. `race`: the best tokens under the shared noise."""
SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)


LogitsAt = Callable[[Tensor | None], Tensor]
"""Returns the target's policy logits (B, M, V) at nodes (B, M), or at every node for None. A rule asks for the nodes it
needs, so that filters are not computed at others."""


ORIGINS = ("drafter", "lookup", "prediction", "grammar")
"""The possible origins of a node, by index: a drafter, the row's own text, its prediction, its grammar."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch of token trees. Node 0 is the last committed token; parents precede their children."""

    tokens: Tensor  # (B, N) int64
    parents: Tensor  # (B, N) int64; the root is its own parent
    alive: Tensor  # (B, N) bool; a dead node is padding and has only dead descendants
    fixed: Tensor  # (B, N) bool; member of a fixed set, not sampled
    # (B, N, V): the distribution that the sampled children of each node came from; None if nothing was sampled.
    laws: Tensor | None
    siblings: Siblings
    depth: int  # capacity: no alive node is deeper
    width: int  # capacity: no depth has more alive nodes
    predicted: Tensor | None = None  # (B, P) int64: the next tokens of a row's prediction, padded with -1
    origin: Tensor | None = None  # (B, N) int64: indices in ORIGINS, for traces; None: all from the drafter


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided: the accepted path, and the token that the target adds after it."""

    path: Tensor  # (B, D) int64 node ids, padded with -1
    length: Tensor  # (B,) int64 accepted nodes
    bonus: Tensor  # (B,) int64 token id
    corrected: Tensor  # (B,) bool: whether the bonus replaces a rejected child; otherwise the path ended at a leaf


class Coins(Protocol):
    """The randomness of one step: one decision per (row, node, purpose). Rules make random decisions by these methods
    only and never see a uniform number. So no coin serves two decisions, and the same code can be enumerated
    exactly."""

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Return True with probability `chance` (B, M), for nodes (B, M)."""
        ...

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Return an index (B, M) drawn in proportion to `weights` (B, M, V), for nodes (B, M)."""
        ...

    def race(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return the token (B, M) that wins the race at `depth` (B, M) below the committed text, for policy logits
        (B, M, V)."""
        ...

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """Return the first `count` tokens (B, M, count) of the same race, best first, for drafting."""
        ...

    def noisy_logits(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return what the race compares: policy logits (B, M, V) plus the noise at `depth` (B, M) or (B, 1)."""
        ...

    def noisy_approx(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return a fast approximation of `noisy_logits`, for drafting only."""
        ...

    def likeliest(self, logits: Tensor, depth: Tensor | None, score_scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, M, count) and tokens of the `count` largest of softmax(noisy logits ·
        score_scale), best first; `score_scale` is (B,). If `depth` is None there is no noise."""
        ...


class TreeModel(Protocol):
    """A language model that scores token trees, and keeps one path of each.

    A session is the cache of a batch of rows: committed tokens, then scratch nodes that were scored and not yet kept.
    """

    context: int  # the number of positions
    vocabulary: int
    device: torch.device
    keeps_prefixes: bool  # whether rows can be rewound, and prefixes copied between rows

    def open(self, rows: int, slots: int, *, feature_layers: Layers | None = None, lasting: bool = True) -> Any:
        """Open a session of `rows` rows of `slots` tokens, including scratch. With `feature_layers` it keeps the
        features of every token: the input of the output layer, followed by the outputs of these layers. Unless
        `lasting`, it keeps those of the last call only."""
        ...

    def features_at(self, session: Any, positions: Tensor) -> Tensor:
        """Return the features (B, L, F) at committed `positions` (B, L); zeros before the first."""
        ...

    def encode_row(self, session: Any, row: int, source: list[int]) -> None:
        """Encode the source of one row of an encoder-decoder model."""
        ...

    def capture_prefill(self, session: Any) -> None:
        """Prefill this session by replayed CUDA graphs from now on, if the model can."""
        ...

    def read(self, session: Any, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Read and commit more tokens of each row, after the `filled` tokens that it has; a row may get none."""
        ...

    def score(
        self, session: Any, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Score new scratch nodes with `tokens` (B, T) at `depth` (B, T) below the next position. Return logits
        (B, T, V) after them, or (B, M, V) after nodes `only` (B, M). `ancestors` (B, T, S + T) says which of the S
        earlier scratch nodes and of the new ones each node attends to."""
        ...

    def keep(self, session: Any, nodes: Tensor) -> None:
        """Commit scratch `nodes` (B, L) in this order, padded with -1, and drop the others."""
        ...

    def window(self, session: Any, start: int, stop: int, longest: int) -> Any:
        """Return a session that is a view of rows `start` to `stop`, none of which has more than `longest` tokens. A
        view is valid for one step."""
        ...

    def copy_rows(self, session: Any, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the first `most` tokens of each source row, or all if it has fewer, to the target row."""
        ...

    def make_room(self, session: Any, rows: int, slots: int) -> None:
        """Grow the session to at least `rows` rows of `slots` tokens; contents are kept."""
        ...

    def rewind(self, session: Any, lengths: list[int]) -> None:
        """Drop committed tokens beyond these lengths."""
        ...

    def share(self, session: Any) -> Any:
        """Return a session with the same committed tokens and its own scratch, which the next call on `session`
        overwrites; for a model made of the first layers of another."""
        ...


AppliedPolicy = Callable[[Tensor, Tensor], Tensor]
"""Raw logits (B, M, V) and the tokens (B, M, D) from below the root to each node, padded with -1 → policy logits."""


class TextState(Protocol):
    """The texts of the rows that take part in a step, on the device: see `spectr.policy.History`."""

    length: Tensor  # (B,) int64: tokens of each text, including the prompt
    host: list[Any]  # the texts on the host, for drafters that run there

    @property
    def tokens(self) -> Tensor:
        """(B, M) int64: the texts, padded with -1."""
        ...


@dataclass(frozen=True, slots=True)
class Opening:
    """The arguments of `Drafter.open`."""

    rows: int  # the number of rows to allocate
    slots: int  # the most tokens of a row, including its tree
    vocabulary: int  # the size of the target's vocabulary
    session: Any  # the target's session, for drafters that share its cache or read its features
    device: torch.device | str = "cpu"  # where the texts of the rows are
    captures: bool = False  # whether prompts are prefilled by replayed graphs, where a model can


@dataclass(frozen=True, slots=True)
class Scene:
    """What a drafter may use when it proposes: everything but the target's next distributions."""

    texts: TextState  # committed tokens, including the prompt; the last token is the root
    root: Tensor  # (B,) int64
    active: Tensor  # (B,) bool: rows that have not ended
    coins: Coins
    draft_logits: AppliedPolicy  # applies the policy: the distribution that drafts are drawn from
    ranking_logits: AppliedPolicy  # for ranking: the other tokens under greedy decoding too, perhaps with rough filters
    temperature: Tensor  # (B,) float64
    longest: int  # an upper bound of the tokens of a text
    unread: int | None = None  # an upper bound of the tokens added by the last step; None: wait for the exact number
    wants_laws: bool = False  # whether the draft must have its distributions, for traces and statistics

    @property
    def host_texts(self) -> list[list[int]]:
        """The texts as lists, for drafters that run on the host and so are not capturable."""
        return [host.tokens for host in self.texts.host[: len(self.root)]]


class Drafting(Protocol):
    """The state of a drafter for the rows of a lane. A step takes the first rows, as many as its scene has."""

    @property
    def is_behind(self) -> bool:
        """Whether the drafter lacks more tokens than those of the last step."""
        ...

    def choose(self, rows: int) -> int:
        """Choose one of the drafter's `drafters` for the next step of `rows` rows, and return its index. A drafter
        without several returns 0."""
        ...

    def propose(self, scene: Scene) -> Draft:
        """Return a token tree for each row of the scene."""
        ...

    def keep(self, path: Tensor) -> None:
        """Keep the nodes `path` (B, D) of the last draft, padded with -1, which were accepted."""
        ...

    def observe(self, rows: int, drafter_index: int, tokens: float, seconds: float) -> None:
        """Take the measurement of a step: its rows, the index that `choose` returned, the mean number of tokens per
        row, and its time."""
        ...

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row with a text, which may grow to `limit` tokens and none of which was read; `source` is the input
        of an encoder-decoder model. `copy_rows` may have copied a prefix of the text to the row before."""
        ...

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Read tokens after the target has: `texts` at positions `starts` of the rows from `first` on. State of these
        rows for later positions is invalid."""
        ...

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the state of the first `most` tokens of each source row to the target row."""
        ...

    def make_room(self, rows: int, slots: int) -> None:
        """Grow to at least `rows` rows of `slots` tokens; contents are kept."""
        ...


class Drafter(Protocol):
    """Proposes tokens. A drafter is shared and immutable; the state of rows is in its drafting.

    These members are required. `spectr.draft.traits` has those that a drafter or a drafting may have besides, such as
    `capturable` and `feature_layers`, with what holds for one that lacks them."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    @property
    def siblings(self) -> Siblings:
        """How the children of a node are drawn."""
        ...

    @property
    def nodes(self) -> int:
        """The most nodes of a tree, including the root."""
        ...

    @property
    def gives_laws(self) -> bool:
        """Whether its drafts carry the distributions that they were drawn from."""
        ...

    def open(self, opening: Opening) -> Drafting:
        """Open a drafting."""
        ...
