"""The interface of a rule, and the card that declares which drafts it is valid for.

A rule sees policy logits, never a model.
"""

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

__all__ = ["Card", "Descent", "Rule", "law_of", "laws_in"]


@dataclass(frozen=True, slots=True)
class Card:
    """Declares which drafts a rule is valid for. The engine compares it with the drafter once, at construction."""

    name: str
    summary: str
    siblings: tuple[Siblings, ...]
    papers: tuple[str, ...]
    lossless: bool = True
    tree: bool = True  # False: the rule verifies single chains only
    capturable: bool = True  # the rule makes no host round trip
    needs_laws: bool = True  # the rule reads the draft laws
    draws: Siblings | None = None  # the kind of siblings a drafter should prefer; None: the first of `siblings`
    text_depends_on_drafts: bool = True  # False: a seed gives the same text with any drafter, any tree, or none


@dataclass(frozen=True, slots=True)
class Descent:
    """The tree to descend, and whether to look at its nodes one by one (`lazily`) or all at once."""

    tree: Topology
    lazily: bool


def laws_in(draft: Draft) -> Tensor:
    """Return the draft laws (B, N, V), or raise if the draft has none."""
    if draft.laws is None:
        raise MismatchError(
            "this rule requires the distributions the children were drawn from (draft.laws), and the draft has none; "
            "use the rule race or match, or a drafter that returns its laws"
        )
    if draft.laws.dtype not in (torch.float32, torch.float64):
        raise MismatchError(f"draft laws must be float32 or float64, got {draft.laws.dtype}; convert before drawing")
    return draft.laws


def _as_function(logits: Tensor | LogitsAt, draft: Draft) -> LogitsAt:
    if not isinstance(logits, Tensor):
        return logits
    if logits.dim() != 3 or logits.shape[:2] != draft.tokens.shape:
        expected = tuple(draft.tokens.shape)
        raise ArgumentError(f"logits must be (B, N, V) with (B, N) = {expected}, got {tuple(logits.shape)}")
    return partial(pick_rows, logits)


class Rule(ABC):
    """Decides, for each row of a batch, which path of a token tree is kept and which token follows it."""

    card: Card
    bias_bound: float = 0.0
    """The largest total variation between the distribution of an emitted token and the target's; 0 if lossless."""

    def __call__(
        self,
        logits: Tensor | LogitsAt,
        draft: Draft,
        coins: Coins,
        *,
        tree: Topology | None = None,
        lazily: bool | None = None,
    ) -> Verdict:
        """Return the verdict on `draft`, given the target's policy logits at its nodes: (B, N, V), or a function of
        nodes.

        `tree` is the draft's topology, if it was computed before (the attention mask of the target call needs it).

        `lazily` looks at the nodes one by one down the path (cheapest on a CPU, the default there); otherwise all nodes
        are processed at once (fewest kernels, the default elsewhere). The verdict is the same.
        """
        self.check(draft)
        if lazily is None:
            lazily = draft.tokens.device.type == "cpu"
        descent = Descent(topology(draft) if tree is None else tree, lazily)
        return self.verdict(_as_function(logits, draft), draft, coins, descent)

    def check(self, draft: Draft) -> None:
        """Refuse a draft this rule is not valid for: with the wrong kind of siblings the output would be biased."""
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
    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Return the verdict on a draft that has passed `check`."""
