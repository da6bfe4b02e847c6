"""Couplings that first select one draft and then test it alone: the canonical form every coupling can be given.

Select a draft so that the selected token has law r; accept it with min(1, target / r); else draw from (target − r)⁺.
Acceptance is Σ min(target, r). Rules that look at whole paths use the selection without the test.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.rows import Rows
from spectr.transport.coupling import Coupling, Drafted, Outcome, first_copies
from spectr.transport.laws import residual, take, without

__all__ = [
    "SelectingCoupling",
    "Selection",
    "at_most_one",
    "first_draft",
    "left_over",
    "one_draft_test",
    "select_hybrid",
]


@dataclass(frozen=True, slots=True)
class Selection:
    """One of the drafts, chosen."""

    chance: Tensor  # (…, k) float64: probability that this draft is selected, given all of them; sums to 1
    law: Rows  # (…, V): law of the selected token over all drafts; zero where there is no live draft
    at_drafts: Tensor  # (…, k): that law at the drafted tokens

    def acceptance(self, target: Tensor, tokens: Tensor) -> Tensor:
        """min(1, target / law) at the drafted tokens, float64 (…, k)."""
        return one_draft_test(take(target, tokens), self.at_drafts)


def one_draft_test(owed: Tensor, given: Tensor) -> Tensor:
    """min(1, owed / given), float64; 1 where nothing was given."""
    owed, given = owed.to(torch.float64), given.to(torch.float64)
    return torch.where(given > owed, owed / torch.where(given > 0, given, 1.0), 1.0)


def _where_live(draft: Tensor, live: Tensor) -> Tensor:
    return draft * live.any(-1, keepdim=True)


def first_draft(draft: Tensor, drafted: Drafted) -> Selection:
    """The first live draft, whose law is the draft law."""
    live = drafted.live
    first = live & (live.cumsum(-1) == 1)
    return Selection(first.to(torch.float64), Rows(_where_live, (draft, live)), take(draft, drafted.tokens))


def at_most_one(live: Tensor) -> bool:
    """No row has two live drafts, as far as can be known without waiting for a device."""
    return live.shape[-1] == 1 or (live.device.type == "cpu" and bool((live.sum(-1) < 2).all()))


def left_over(target: Tensor, law: Rows) -> Rows:
    """(target − law)⁺ as rows."""
    return Rows(lambda target, *parts: residual(target, law.compute(*parts)), (target, *law.parts))


class SelectingCoupling(Coupling):
    """A coupling in canonical form."""

    papers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def select(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """The selection for sampled drafts (…, k); `drafted.fixed` is not looked at."""

    def selection(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """The selection for drafts of which some may be fixed."""
        return (
            self.select(target, draft, drafted)
            if drafted.fixed is None
            else select_hybrid(self, target, draft, drafted)
        )

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Select, then the one-draft test on the selected law."""
        chosen = self.select(target, draft, drafted)
        return Outcome(chosen.chance * chosen.acceptance(target, drafted.tokens), left_over(target, chosen.law))


def select_hybrid(coupling: SelectingCoupling, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
    """Selection among hybrid drafts: a sampled draft that would be rejected gives way to a fixed one, as often as the
    target's mass on the fixed set T allows. The selected law is then the target's on T, and with nothing but fixed
    drafts it is the target restricted to T."""
    tokens, pinned, sampled = drafted.tokens, drafted.pinned, drafted.sampled
    chosen = coupling.select(target, without(draft, tokens, pinned), Drafted(tokens, sampled))
    lone = ~sampled.any(-1, keepdim=True)
    chosen_law = chosen.law.all()
    excess = (chosen_law - target).clamp_min(0)  # what the one-draft test would reject
    lost = excess.sum(-1, keepdim=True, dtype=torch.float64)
    among, mass = _target_among(target, tokens, first_copies(tokens, pinned))
    share = torch.where(lost > 0, mass / torch.where(lost > 0, lost, 1.0), 0.0).clamp_max(1.0)
    move = chosen.chance * (1 - chosen.acceptance(target, tokens)) * share
    moved, moved_law = (torch.where(lone, 1.0, x) for x in (move.sum(-1, keepdim=True), share * lost))
    spread = torch.zeros_like(target, dtype=torch.float64).scatter_add_(-1, tokens, among)
    law = (chosen_law - share * excess + moved_law * spread).to(target.dtype)
    return Selection(chosen.chance - move + moved * among, Rows.of(law), take(law, tokens))


def _target_among(target: Tensor, tokens: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The target's law on the tokens in `slots` (…, k), and its mass there (…, 1). Without mass: the uniform one,
    which is then only reached when there is nothing else to select."""
    owed = torch.where(slots, take(target, tokens), 0).to(torch.float64)
    mass = owed.sum(-1, keepdim=True)
    uniform = slots.to(torch.float64) / slots.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mass > 0, owed / torch.where(mass > 0, mass, 1.0), uniform), mass
