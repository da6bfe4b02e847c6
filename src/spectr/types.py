"""The nouns that cross folder borders: a draft, a verdict, and the coins a rule is handed.

Everything is a batch of fixed capacity: B rows, N nodes, depth D, vocabulary V. Which node hangs where is data, so
dynamic trees, short lookups and chains are no special cases. Nothing here knows a model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from torch import Tensor

__all__ = ["SIBLINGS", "Coins", "Draft", "Drafter", "LogitsAt", "Siblings", "TreeTarget", "Verdict"]

Siblings = Literal["iid", "hybrid", "without_replacement", "fixed", "race"]
"""How the children of a node were drawn. `iid`: independent draws of the draft law. `hybrid`: its top m, fixed, and
the rest iid off them. `without_replacement`: in the order drawn. `fixed`: any set chosen without looking at the
target. `race`: the best by shared noise."""
SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)


LogitsAt = Callable[[Tensor | None], Tensor]
"""The target's policy logits at nodes (B, M), as (B, M, V); None means every node. A rule asks for what it looks at, so
that filters are not computed where nobody looks."""


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

    def front(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """The first `count` tokens of the same race, best first, (B, M, count): what a drafter guesses with."""
        ...


class Drafter(Protocol):
    """Proposes a token tree for each row. Shared and immutable; what it knows of a row is the row's text."""

    name: str
    siblings: Siblings
    nodes: int  # capacity: no tree has more

    def propose(self, texts: list[list[int]]) -> Draft:
        """A draft whose roots are the last tokens of `texts`."""
        ...


class TreeTarget(Protocol):
    """The model whose law is kept, as the engine sees it: it scores whole trees and keeps one path of each."""

    context: int  # positions the model has

    def open(self, rows: int, slots: int) -> Any:
        """A session with room for so many rows and tokens."""
        ...

    def read(self, session: Any, prompts: list[list[int]]) -> None:
        """Commit a prompt to each row."""
        ...

    def score(self, session: Any, tokens: Tensor, ancestors: Tensor, depth: Tensor) -> Tensor:
        """Logits (B, N, V) after every node of trees of `tokens` (B, N) whose roots come next."""
        ...

    def keep(self, session: Any, path: Tensor) -> None:
        """Commit the root and the nodes of `path` (B, D), padded with -1, of the trees just scored."""
        ...

    def take_rows(self, session: Any, rows: Tensor) -> None:
        """Let the other rows leave the session."""
        ...
