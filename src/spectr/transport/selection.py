"""Couplings that first select one draft and then test it alone. Every coupling can be written in this form.

They select a draft such that the selected token has law r, accept it with min(1, target / r), and otherwise draw from
(target − r)⁺. Acceptance is Σ min(target, r). Rules for whole paths use the selection without the test.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.rows import LazyRows
from spectr.transport.coupling import Coupling, Drafted, Outcome, first_copies
from spectr.transport.laws import residual, take, without

__all__ = [
    "SelectingCoupling",
    "Selection",
    "first_draft",
    "has_single_draft",
    "left_over",
    "one_draft_test",
    "select_hybrid",
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The probabilities of selecting each draft, and the law of the selected token."""

    chance: Tensor  # (…, k) float64: probability that this draft is selected, given all of them; sums to 1
    law: LazyRows  # (…, V): law of the selected token over all drafts; zero where there is no live draft
    at_drafts: Tensor  # (…, k): that law at the drafted tokens

    def acceptance(self, target: Tensor, tokens: Tensor) -> Tensor:
        """Return min(1, target / law) at the drafted tokens, float64 (…, k)."""
        return one_draft_test(take(target, tokens), self.at_drafts)


def one_draft_test(target_mass: Tensor, draft_mass: Tensor) -> Tensor:
    """Return min(1, target_mass / draft_mass), float64; 1 where the draft mass is zero."""
    target_mass, draft_mass = target_mass.to(torch.float64), draft_mass.to(torch.float64)
    return torch.where(draft_mass > target_mass, target_mass / torch.where(draft_mass > 0, draft_mass, 1.0), 1.0)


def _where_live(draft: Tensor, live: Tensor) -> Tensor:
    return draft * live.any(-1, keepdim=True)


def first_draft(draft: Tensor, drafted: Drafted) -> Selection:
    """The first live draft, whose law is the draft law."""
    live = drafted.live
    first = live & (live.cumsum(-1) == 1)
    return Selection(first.to(torch.float64), LazyRows(_where_live, (draft, live)), take(draft, drafted.tokens))


def has_single_draft(live: Tensor) -> bool:
    """Return whether no row has two live drafts, as far as that is known without waiting for a device."""
    return live.shape[-1] == 1 or (live.device.type == "cpu" and bool((live.sum(-1) < 2).all()))


def left_over(target: Tensor, law: LazyRows) -> LazyRows:
    """Return (target − law)⁺ as rows that are computed on demand."""
    return LazyRows(lambda target, *parts: residual(target, law.compute(*parts)), (target, *law.parts))


class SelectingCoupling(Coupling):
    """A coupling that selects one draft and tests it alone."""

    papers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def select(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """Return the selection among sampled drafts (…, k). It ignores `drafted.fixed`."""

    def selection(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """Return the selection among drafts of which some may be fixed."""
        return (
            self.select(target, draft, drafted)
            if drafted.fixed is None
            else select_hybrid(self, target, draft, drafted)
        )

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Select one draft and apply the one-draft test to it."""
        chosen = self.select(target, draft, drafted)
        return Outcome(chosen.chance * chosen.acceptance(target, drafted.tokens), left_over(target, chosen.law))


def select_hybrid(coupling: SelectingCoupling, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
    """Return the selection among hybrid drafts.

    A sampled draft that would be rejected is replaced by a fixed one, as often as the target's mass on the fixed set T
    allows. On T the selected law is then the target's; with fixed drafts only, it is the target restricted to T."""
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
    return Selection(chosen.chance - move + moved * among, LazyRows.of(law), take(law, tokens))


def _target_among(target: Tensor, tokens: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the target restricted to the tokens in `slots` (…, k), and its mass there (…, 1).

    Without mass it is uniform; it is then used only if there is nothing else to select."""
    target_mass = torch.where(slots, take(target, tokens), 0).to(torch.float64)
    mass = target_mass.sum(-1, keepdim=True)
    uniform = slots.to(torch.float64) / slots.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mass > 0, target_mass / torch.where(mass > 0, mass, 1.0), uniform), mass
