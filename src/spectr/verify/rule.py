"""What a rule is, and the card on which it says what it holds for. Knows no models: a rule sees policy logits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from spectr.errors import ArgumentError, MismatchError
from spectr.rows import pick_rows
from spectr.transport.laws import law_of
from spectr.trees.shape import Topology, topology
from spectr.types import Coins, Draft, LogitsAt, Siblings, Verdict

__all__ = ["Card", "Rule", "Way", "law_of", "laws_in"]


@dataclass(frozen=True, slots=True)
class Card:
    """What a rule holds for. The engine compares it with the drafter once, at construction."""

    name: str
    summary: str
    siblings: tuple[Siblings, ...]
    papers: tuple[str, ...]
    lossless: bool = True
    tree: bool = True  # False: chains only
    capturable: bool = True  # no host round trip inside
    needs_laws: bool = True  # reads the draft laws
    draws: Siblings | None = None  # what a drafter that has the choice should draw; None: the first of `siblings`


@dataclass(frozen=True, slots=True)
class Way:
    """The tree to go down, and how: node by node, or everywhere at once."""

    tree: Topology
    lazily: bool


def laws_in(draft: Draft) -> Tensor:
    """The draft laws (B, N, V), of a draft that must have them."""
    if draft.laws is None:
        raise MismatchError(
            "this rule needs the law each child was drawn from, and the draft has none; use race or match, or a "
            "drafter that gives its laws"
        )
    if draft.laws.dtype not in (torch.float32, torch.float64):
        raise MismatchError(f"draft laws must be float32 or float64, got {draft.laws.dtype}; convert before drawing")
    return draft.laws


def _as_function(logits: Tensor | LogitsAt, draft: Draft) -> LogitsAt:
    if not isinstance(logits, Tensor):
        return logits
    if logits.dim() != 3 or logits.shape[:2] != draft.tokens.shape:
        wanted = tuple(draft.tokens.shape)
        raise ArgumentError(f"logits must be (B, N, V) with (B, N) = {wanted}, got {tuple(logits.shape)}")
    return partial(pick_rows, logits)


class Rule(ABC):
    """Decides, for each row of a batch, which path of a token tree is kept and which token follows it."""

    card: Card
    bias_bound: float = 0.0
    """Total variation that one emitted token may be off by; 0 for a lossless rule."""

    def __call__(
        self,
        logits: Tensor | LogitsAt,
        draft: Draft,
        coins: Coins,
        *,
        tree: Topology | None = None,
        lazily: bool | None = None,
    ) -> Verdict:
        """The verdict on `draft`, given the target's policy logits at its nodes: (B, N, V), or a function of nodes.

        `tree`: the draft's topology, where it was made already (the target call's mask needs it).

        `lazily`: look at nodes one by one down the path (cheapest on a CPU, the default there) or at all at once
        (fewest kernels, the default elsewhere). The verdict is the same.
        """
        self.check(draft)
        if lazily is None:
            lazily = draft.tokens.device.type == "cpu"
        way = Way(topology(draft) if tree is None else tree, lazily)
        return self.verdict(_as_function(logits, draft), draft, coins, way)

    def check(self, draft: Draft) -> None:
        """Refuse a draft this rule does not hold for: with the wrong sibling law it would be silently biased."""
        card = self.card
        if draft.siblings not in card.siblings:
            raise MismatchError(
                f"rule {card.name!r} holds for siblings {', '.join(card.siblings)}; this draft has {draft.siblings!r}. "
                "Choose another rule or let the drafter draw differently"
            )
        if not card.tree and draft.width > 1:
            raise MismatchError(
                f"rule {card.name!r} verifies one chain; this draft is up to {draft.width} nodes wide. "
                "Draft one chain, or choose path_block or optimal for trees"
            )
        if card.needs_laws:
            laws_in(draft)

    @abstractmethod
    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        """The verdict, for a draft that was checked."""
