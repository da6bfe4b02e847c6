"""K-SEQ (SpecTr, Sun et al. 2023, algorithm 2), and K-SEQ+, which tests one draft again if all were rejected.

K-SEQ tests the drafts one after the other with min(1, target / (ρ·draft)). Every ρ ≥ ρ* is exactly lossless with its
own residual; only the acceptance depends on how close ρ is to ρ*. The root is therefore bounded from above, not exact.
"""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.kernels import usable
from spectr.rows import LazyRows
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.laws import ratio, residual, take
from spectr.transport.roots import falling_root
from spectr.transport.selection import SelectingCoupling, Selection, first_draft, has_single_draft

__all__ = ["KSeq", "KSeqPlus"]

_ROUNDS = {torch.float32: 24, torch.float64: 60}  # at most; on a CPU the search stops when it has converged
_HALVINGS = 32  # bisections after that: for nearly equal laws false position converges too slowly


def _clipped(target: Tensor, draft: Tensor, scale: Tensor) -> Tensor:
    """Return Σ min(target, scale·draft), float64 (…), for scale (…)."""
    return torch.minimum(target, draft * scale[..., None].to(draft.dtype)).sum(-1, dtype=torch.float64)


def _any_of(chance: Tensor, k: Tensor) -> Tensor:
    """Return 1 − (1 − chance)^k, computed without cancellation."""
    return -torch.expm1(k * torch.log1p(-chance.clamp(max=1 - 2.0**-53)))


def _per_visit(chance: Tensor, k: Tensor) -> Tensor:
    """Return (1 − (1 − chance)^k) / chance, and its limit k at chance 0."""
    return torch.where(chance > 0, _any_of(chance, k) / torch.where(chance > 0, chance, 1.0), k)


def _visit(target: Tensor, draft: Tensor, rho: Tensor) -> Tensor:
    """Return min(draft, target / ρ), the mass that the test of one draft accepts."""
    return torch.minimum(draft, target / rho.to(target.dtype))


def _kseq_residual(target: Tensor, draft: Tensor, plan: Tensor) -> Tensor:
    rho, phi = plan[..., :1], plan[..., 1:]
    return residual(target, _visit(target, draft, rho) * phi.to(target.dtype))


def _two_values(low: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much a low and a high draft are over-selected if a draft is low with probability `low` (…).

    Both are (…, 1)."""
    return (low ** (k - 1))[..., None], _per_visit(1 - low, k)[..., None]


class KSeq(Coupling):
    """SpecTr's K-SEQ with the smallest valid ρ; it accepts at least 1 − (1 − 1/k)^k of the optimum.

    >>> import torch
    >>> target, draft = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(float(KSeq().acceptance(target, draft, k)), 4) for k in (1, 2, 4)]
    [0.6, 0.6584, 0.7547]
    """

    name: ClassVar[str] = "kseq"
    papers: ClassVar[tuple[str, ...]] = ("sun2023spectr",)

    def __init__(self, rho: float | None = None) -> None:
        self.rho = rho  # a fixed ρ in place of ρ*; the output is biased if it is below ρ*

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        """Apply the same test to every draft; the first that passes is the output."""
        tokens, live = drafted.tokens, drafted.live
        plan = self._plan(target, draft, live)
        passes = _visit(take(target, tokens), take(draft, tokens), plan[..., :1]).to(torch.float64)
        passes = passes / take(draft, tokens).to(torch.float64).clamp_min(1e-300)
        passes = torch.where(live, passes.clamp_max(1.0), 0.0)
        before = torch.cat([torch.ones_like(passes[..., :1]), (1 - passes).cumprod(-1)[..., :-1]], -1)
        return Outcome(before * passes, LazyRows(_kseq_residual, (target, draft, plan)))

    def _plan(self, target: Tensor, draft: Tensor, live: Tensor) -> Tensor:
        """Return (ρ, φ) of each row, (…, 2)."""
        if self.rho is None and usable(target, draft):
            from spectr.kernels.kseq_search import kseq_plan

            return kseq_plan(target, draft, live.sum(-1), live.shape[-1])
        rho, k = self._rho(target, draft, live.sum(-1))
        phi = _per_visit(_visit(target, draft, rho[..., None]).sum(-1, dtype=torch.float64), k)
        return torch.stack([rho, phi], -1)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return 1 − (1 − β)^k with β = Σ min(draft, target / ρ)."""
        rho, count = self._rho(target, draft, k)
        return _any_of(_clipped(target, draft, rho) / rho, count)

    def _rho(self, target: Tensor, draft: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return an upper bound of ρ* (…), and k as float64."""
        count = k.to(torch.float64)
        if self.rho is not None:
            return torch.full_like(count, self.rho), count
        if k.device.type == "cpu" and bool((k < 2).all()):
            return torch.ones_like(count), count

        def surplus(rho: Tensor) -> Tensor:
            clipped = _clipped(target, draft, rho)
            return _any_of(clipped / rho, count) - clipped

        one, top = torch.ones_like(count), count.clamp_min(1.0)
        rho = falling_root(surplus, one, top, _ROUNDS[target.dtype], _HALVINGS).above
        margin = 4 * torch.finfo(target.dtype).eps  # allows for rounding in the sums
        return torch.where(count > 1, rho * (1 + margin), one), count


class KSeqPlus(SelectingCoupling):
    """Marks each draft as high with probability a(x), selects the first high one (or else the first), and tests it.

    The selected law is recomputed from the a(x) in use, so an inexact root costs acceptance but never correctness.
    """

    name: ClassVar[str] = "kseq_plus"
    papers: ClassVar[tuple[str, ...]] = ("sun2023spectr", "spectr")

    def select(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """Select the first high draft, or the first draft if none is high."""
        tokens, live = drafted.tokens, drafted.live
        if has_single_draft(live):
            return first_draft(draft, drafted)
        high, law = self._levels(target, draft, live.sum(-1))
        up = torch.where(live, take(high, tokens).to(torch.float64), 0.0)
        none_before = torch.cat([torch.ones_like(up[..., :1]), (1 - up).cumprod(-1)], -1)
        first = live & (live.cumsum(-1) == 1)
        chance = none_before[..., :-1] * up + first * none_before[..., -1:]
        return Selection(chance, LazyRows.of(law), take(law, tokens))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ min(target, r) for the selected law r."""
        return torch.minimum(target, self._levels(target, draft, k)[1]).sum(-1, dtype=torch.float64)

    def _levels(self, target: Tensor, draft: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return a(x) and the selected law r, both (…, V)."""
        count = k.to(torch.float64).clamp_min(1.0)

        def excess(low: Tensor) -> Tensor:
            below, above = _two_values(low, count)
            missed, spilt = (target - above * draft).clamp_min(0), (below * draft - target).clamp_min(0)
            return missed.sum(-1, dtype=torch.float64) - spilt.sum(-1, dtype=torch.float64)

        zero, one = torch.zeros_like(count), torch.ones_like(count)
        below, above = _two_values(falling_root(excess, zero, one, _ROUNDS[target.dtype]).nearest, count)
        span = torch.where(above > below, above - below, 1.0)
        high = ((ratio(target, draft).clamp_max(1e9) - below) / span).clamp(0, 1).to(target.dtype)
        below, above = _two_values((draft * (1 - high)).sum(-1, dtype=torch.float64), count)
        law = draft * ((1 - high) * below + high * above).to(target.dtype)
        return high, law * (k > 0)[..., None]
