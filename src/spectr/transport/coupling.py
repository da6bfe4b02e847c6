"""What a coupling is: given the two laws and the drafted tokens, the law of the token that comes out.

A coupling is a law before it is a sampler: `settle` yields, for given drafts, the probability of ending on each of
them and the residual; a draw is made from that with coins, and tests sum it over all drafts. One object, both uses.
Knows no trees and no models; tokens are indices.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.coins import draw
from spectr.errors import ArgumentError, MismatchError
from spectr.rows import Rows
from spectr.transport.laws import check_count, check_pair, check_tokens, normalise, take, without
from spectr.types import Siblings

__all__ = ["Coupling", "Drafted", "Outcome", "first_copies", "settle_hybrid"]


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafted tokens a coupling looks at."""

    tokens: Tensor  # (…, k) int64
    live: Tensor  # (…, k) bool; a dead slot is no draft
    fixed: Tensor | None = None  # (…, k) bool: members of a fixed set; the others are iid off that set. None: all iid

    @property
    def pinned(self) -> Tensor:
        """The live fixed slots."""
        return torch.zeros_like(self.live) if self.fixed is None else self.live & self.fixed

    @property
    def sampled(self) -> Tensor:
        """The live slots that were sampled."""
        return self.live if self.fixed is None else self.live & ~self.fixed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The law of the output token given the drafted ones."""

    ending: Tensor  # (…, k) float64: probability of ending on this draft
    residual: Rows  # (…, V) weights of the output token when no draft is taken

    @property
    def choices(self) -> Tensor:
        """Probabilities of (draft 1, …, draft k, residual), float64 (…, k + 1)."""
        return torch.cat([self.ending, (1 - self.ending.sum(-1, keepdim=True)).clamp_min(0)], -1)

    def law(self, tokens: Tensor) -> Tensor:
        """The law of the output token, (…, V)."""
        weights = self.residual.all()
        spread = normalise(weights, weights) * self.choices[..., -1:].to(weights.dtype)
        return spread.scatter_add(-1, tokens, self.ending.to(weights.dtype))


def first_copies(tokens: Tensor, mask: Tensor) -> Tensor:
    """Of the slots in `mask` (…, k) those whose token stands in no earlier slot of the mask."""
    same = (tokens[..., :, None] == tokens[..., None, :]) & mask[..., None, :]
    return mask & ~same.tril(-1).any(-1)


def settle_hybrid(coupling: "Coupling", target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
    """Hybrid drafts: the fixed ones are a set, the others iid from the draft law off that set.

    The coupling runs on the sampled drafts alone; the target's mass on the fixed tokens is then all in the residual,
    and a residual token among them is a hit.
    """
    tokens, pinned = drafted.tokens, drafted.pinned
    outcome = coupling.settle(target, without(draft, tokens, pinned), Drafted(tokens, drafted.sampled))
    law = normalise(outcome.residual.all(), target)  # (…, V)
    first = first_copies(tokens, pinned)  # of several copies of a fixed token one collects the hit
    hits = torch.where(first, take(law, tokens), 0).to(torch.float64) * outcome.choices[..., -1:]
    return Outcome(outcome.ending + hits, Rows.of(normalise(without(law, tokens, pinned), target)))


class Coupling(ABC):
    """One token-level rule. Stateless and immutable; batched over any leading shape."""

    name: ClassVar[str]
    siblings: ClassVar[tuple[Siblings, ...]] = ("iid", "hybrid", "fixed")
    lossless: ClassVar[bool] = True
    papers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Outcome for laws (…, V) and k sampled drafts; `drafted.fixed` is not looked at. Checks nothing.

        With no live draft nothing is accepted and the residual is the target."""

    @abstractmethod
    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Acceptance in closed form, float64 (…), for k (…) ≤ most drafts; zero where k = 0. Checks nothing."""

    def outcome(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Outcome for drafts of which some may be fixed. Checks nothing."""
        return (
            self.settle(target, draft, drafted)
            if drafted.fixed is None
            else settle_hybrid(self, target, draft, drafted)
        )

    def acceptance(self, target: Tensor, draft: Tensor, k: int | Tensor, *, fixed: Tensor | None = None) -> Tensor:
        """Probability that a drafted token is taken, for k drafts sampled from the draft law (and, where given, the
        ids `fixed` (…, m) beside them, the k then being sampled off that set)."""
        check_pair(target, draft)
        check_count("k", k)
        target, draft = torch.broadcast_tensors(target, draft)
        count = torch.as_tensor(k, device=target.device).expand(target.shape[:-1])
        if fixed is None:
            return self.accepted(target, draft, count, int(count.max()))
        self._check_fixed(fixed, target)
        ids = fixed.expand(*target.shape[:-1], fixed.shape[-1])
        off = without(draft, ids, torch.ones_like(ids, dtype=torch.bool))
        count = torch.where(off.sum(-1) > 0, count, 0)
        off_target = target.scatter(-1, ids, 0)
        covered = (target - off_target).sum(-1, dtype=torch.float64)
        return covered + self.accepted(target, off, count, int(count.max()))

    def output_law(self, target: Tensor, draft: Tensor, tokens: Tensor, *, fixed: Tensor | None = None) -> Tensor:
        """Law of the output token given the k sampled `tokens` (…, k) and, where given, the ids `fixed` (…, m)."""
        target, draft, drafted = self._arguments(target, draft, tokens, fixed)
        return self.outcome(target, draft, drafted).law(drafted.tokens)

    def draw(
        self, target: Tensor, draft: Tensor, tokens: Tensor, coins: Tensor, *, fixed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(slot, token): which of the drafts came out (k + m for none of them), and the output token, decided by two
        float64 coins (…, 2) in [0, 1)."""
        if coins.dtype != torch.float64 or coins.shape[-1:] != (2,):
            raise ArgumentError(f"coins must be float64 (…, 2), got {coins.dtype} {tuple(coins.shape)}; use torch.rand")
        target, draft, drafted = self._arguments(target, draft, tokens, fixed)
        outcome, shape = self.outcome(target, draft, drafted), drafted.tokens.shape[:-1]
        slot = draw(outcome.choices, coins[..., 0].expand(shape))
        other = draw(outcome.residual.all(), coins[..., 1].expand(shape))
        return slot, torch.cat([drafted.tokens, other[..., None]], -1).gather(-1, slot[..., None]).squeeze(-1)

    def _check_fixed(self, fixed: Tensor, target: Tensor) -> None:
        if "hybrid" not in self.siblings:
            raise MismatchError(
                f"coupling {self.name!r} takes no fixed drafts (it holds for {', '.join(self.siblings)})"
            )
        check_tokens("fixed", fixed, target.shape[-1])
        ids = fixed.sort(-1).values
        if bool((ids[..., 1:] == ids[..., :-1]).any()):
            raise ArgumentError("fixed must be distinct token ids in each row; leave the repeated ones out")

    def _arguments(
        self, target: Tensor, draft: Tensor, tokens: Tensor, fixed: Tensor | None
    ) -> tuple[Tensor, Tensor, Drafted]:
        """Checked and broadcast: laws (…, V), and all drafted ids (…, k + m), the fixed ones last."""
        check_pair(target, draft)
        check_tokens("tokens", tokens, target.shape[-1])
        if fixed is not None:
            self._check_fixed(fixed, target)
        extra = tokens.new_zeros(0) if fixed is None else fixed
        if tokens.shape[-1] + extra.shape[-1] < 1:
            raise ArgumentError("tokens must hold at least one drafted id, got none")
        parts = (target, draft, tokens.long(), extra.long())
        try:
            shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        except RuntimeError:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise ArgumentError(
                f"target, draft, tokens, fixed must have leading shapes that broadcast: {shapes}"
            ) from None
        target, draft, tokens, extra = (part.expand(*shape, part.shape[-1]) for part in parts)
        self._check_drafted(draft, tokens, extra)
        slots = torch.cat([tokens, extra], -1)
        pinned = (torch.arange(slots.shape[-1], device=slots.device) >= tokens.shape[-1]).expand_as(slots)
        live = torch.ones_like(slots, dtype=torch.bool)
        return target, draft, Drafted(slots, live, None if fixed is None else pinned)

    def _check_drafted(self, draft: Tensor, tokens: Tensor, extra: Tensor) -> None:
        """A token its law gives no mass was not drawn from that law."""
        off = without(draft, extra, torch.ones_like(extra, dtype=torch.bool)) if extra.shape[-1] else draft
        if bool((take(off, tokens) <= 0).any()):
            raise ArgumentError(
                "tokens must be drawn from the draft law (off the fixed ids): a drafted id has probability 0 there"
            )
