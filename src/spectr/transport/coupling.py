"""The interface of a coupling: given the two laws and the drafted tokens, the law of the output token.

Couplings describe probabilities rather than draw samples: `settle` returns, for given drafts, the probability of
accepting each of them and the residual. A sampler draws from these with coins, and tests sum them over all drafts.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.coins import draw
from spectr.errors import ArgumentError, MismatchError
from spectr.rows import LazyRows
from spectr.transport.laws import check_count, check_pair, check_tokens, normalise, take, without
from spectr.types import Siblings

__all__ = ["Coupling", "Drafted", "Outcome", "first_copies", "settle_hybrid"]


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafted tokens at one node."""

    tokens: Tensor  # (…, k) int64
    live: Tensor  # (…, k) bool: which slots hold a draft
    fixed: Tensor | None = None  # (…, k) bool: members of a fixed set; the others are iid outside it. None: all iid

    @property
    def pinned(self) -> Tensor:
        """The live slots that hold fixed drafts, (…, k) bool."""
        return torch.zeros_like(self.live) if self.fixed is None else self.live & self.fixed

    @property
    def sampled(self) -> Tensor:
        """The live slots that hold sampled drafts, (…, k) bool."""
        return self.live if self.fixed is None else self.live & ~self.fixed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The law of the output token, given the drafted tokens."""

    ending: Tensor  # (…, k) float64: probability that this draft is the output
    residual: LazyRows  # (…, V) weights of the output token when no draft is accepted

    @property
    def choices(self) -> Tensor:
        """The probabilities of (draft 1, …, draft k, residual), float64 (…, k + 1)."""
        return torch.cat([self.ending, (1 - self.ending.sum(-1, keepdim=True)).clamp_min(0)], -1)

    def law(self, tokens: Tensor) -> Tensor:
        """Return the law of the output token, (…, V)."""
        weights = self.residual.all()
        spread = normalise(weights, weights) * self.choices[..., -1:].to(weights.dtype)
        return spread.scatter_add(-1, tokens, self.ending.to(weights.dtype))


def first_copies(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the slots of `mask` (…, k) whose token does not occur in an earlier slot of the mask."""
    same = (tokens[..., :, None] == tokens[..., None, :]) & mask[..., None, :]
    return mask & ~same.tril(-1).any(-1)


def settle_hybrid(coupling: "Coupling", target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
    """Return the outcome for hybrid drafts: the fixed ones form a set, the others are iid draws outside that set.

    The coupling runs on the sampled drafts alone. The target's mass on the fixed tokens is then entirely in the
    residual, and a residual token among them counts as accepted.
    """
    tokens, pinned = drafted.tokens, drafted.pinned
    outcome = coupling.settle(target, without(draft, tokens, pinned), Drafted(tokens, drafted.sampled))
    law = normalise(outcome.residual.all(), target)  # (…, V)
    first = first_copies(tokens, pinned)  # copies of a fixed token count once
    hits = torch.where(first, take(law, tokens), 0).to(torch.float64) * outcome.choices[..., -1:]
    return Outcome(outcome.ending + hits, LazyRows.of(normalise(without(law, tokens, pinned), target)))


class Coupling(ABC):
    """A token-level acceptance rule. It is stateless, immutable, and batched over any leading shape."""

    name: ClassVar[str]
    siblings: ClassVar[tuple[Siblings, ...]] = ("iid", "hybrid", "fixed")
    lossless: ClassVar[bool] = True
    papers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Return the outcome for laws (…, V) and k sampled drafts. It ignores `drafted.fixed` and checks nothing.

        Without a live draft nothing is accepted and the residual is the target."""

    @abstractmethod
    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return the acceptance in closed form, float64 (…), for k (…) ≤ most iid drafts; 0 for k = 0. Checks
        nothing."""

    def outcome(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Return the outcome for drafts of which some may be fixed. Checks nothing."""
        return (
            self.settle(target, draft, drafted)
            if drafted.fixed is None
            else settle_hybrid(self, target, draft, drafted)
        )

    def acceptance(self, target: Tensor, draft: Tensor, k: int | Tensor, *, fixed: Tensor | None = None) -> Tensor:
        """Return the probability, float64 (…), that a draft is accepted, for k drafts sampled from the draft law.

        With `fixed` ids (…, m) these are drafted as well, and the k are sampled outside that set."""
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
        """Return the law (…, V) of the output token, given the sampled `tokens` (…, k) and the `fixed` ids (…, m)."""
        target, draft, drafted = self._arguments(target, draft, tokens, fixed)
        return self.outcome(target, draft, drafted).law(drafted.tokens)

    def draw(
        self, target: Tensor, draft: Tensor, tokens: Tensor, coins: Tensor, *, fixed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (slot, token): which draft was accepted (k + m if none was), and the output token.

        Two float64 coins (…, 2) in [0, 1) decide."""
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
                f"coupling {self.name!r} does not support fixed drafts (it holds for {', '.join(self.siblings)})"
            )
        check_tokens("fixed", fixed, target.shape[-1])
        ids = fixed.sort(-1).values
        if bool((ids[..., 1:] == ids[..., :-1]).any()):
            raise ArgumentError("fixed must be distinct token ids in each row; leave the repeated ones out")

    def _arguments(
        self, target: Tensor, draft: Tensor, tokens: Tensor, fixed: Tensor | None
    ) -> tuple[Tensor, Tensor, Drafted]:
        """Check and broadcast the arguments: laws (…, V), and all drafted ids (…, k + m), the fixed ones last."""
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
        """Refuse sampled tokens that have probability 0 under the law they should be drawn from."""
        off = without(draft, extra, torch.ones_like(extra, dtype=torch.bool)) if extra.shape[-1] else draft
        if bool((take(off, tokens) <= 0).any()):
            raise ArgumentError(
                "tokens must be drawn from the draft law (off the fixed ids): a drafted id has probability 0 there"
            )
