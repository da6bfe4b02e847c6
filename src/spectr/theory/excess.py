"""Acceptance for every number of drafts at once: couplings of iid drafts depend on the two laws through one curve.

E(s) = Σ (target − s·draft)⁺ falls from 1 at s = 0. The acceptance of each coupling of K drafts is a function of E and K
alone, so one sort of the vocabulary suffices for all couplings and all K. Exact; float64.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spectr.transport.laws import check_count, check_pair, ratio
from spectr.transport.roots import falling_root

__all__ = ["CURVES", "Excess", "acceptance_curves"]

_ROUNDS = 80


class Excess:
    """E(s) for laws (n, V), by one sort and two running sums. The ratio of tokens that are never drafted is
    infinite."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        target, draft = target.double(), draft.double()
        self.target, self.draft = target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)
        self.ratio, order = ratio(self.target, self.draft).sort(dim=-1)
        self._target_above, self._draft_above = (
            _from_the_end(law.gather(-1, order)) for law in (self.target, self.draft)
        )

    def __call__(self, scale: Tensor) -> Tensor:
        """Return E at `scale` (n, m)."""
        above = torch.searchsorted(self.ratio, scale.contiguous(), right=True)
        return (self._target_above.gather(-1, above) - scale * self._draft_above.gather(-1, above)).clamp_min(0)

    def accepted(self, scale: Tensor) -> Tensor:
        """Return Σ min(target, scale·draft)."""
        return 1 - self(scale)


def _from_the_end(values: Tensor) -> Tensor:
    """Return the suffix sums (n, V + 1), with 0 after the last element."""
    return torch.nn.functional.pad(values.flip(-1).cumsum(-1).flip(-1), (0, 1))


def _counts(excess: Excess, most: int) -> Tensor:
    return torch.arange(1, most + 1, dtype=torch.float64, device=excess.ratio.device).expand(len(excess.ratio), -1)


def _maximal(excess: Excess, most: int) -> Tensor:
    """Return the acceptance of the first draft, for any K."""
    return excess.accepted(torch.ones_like(_counts(excess, most)))


def _optimal(excess: Excess, most: int) -> Tensor:
    """Return 1 − max_j [Q_j^K − P_j]⁺ over prefixes in the order of target / draft."""
    draft_below = 1 - excess._draft_above[:, 1:]
    target_below = 1 - excess._target_above[:, 1:]
    lost = [(draft_below.clamp(0, 1) ** k - target_below).amax(-1).clamp_min(0) for k in range(1, most + 1)]
    return 1 - torch.stack(lost, -1)


def _recursive(excess: Excess, most: int) -> Tensor:
    """Return the acceptance from s_{m+1} = s_m + E(s_m): after m rejections (target − s_m·draft)⁺ remains."""
    scale, found = torch.zeros_like(excess.ratio[:, :1]), []
    for _ in range(most):
        scale = scale + excess(scale)
        found.append(excess.accepted(scale))
    return torch.cat(found, -1)


def _kseq(excess: Excess, most: int) -> Tensor:
    """Return 1 − (1 − β)^K with β = (1 − E(ρ)) / ρ, at the smallest ρ for which that is at most ρ·β."""
    k = _counts(excess, most)

    def any_of(rho: Tensor) -> Tensor:
        return -torch.expm1(k * torch.log1p(-(excess.accepted(rho) / rho).clamp_max(1 - 2.0**-53)))

    root = falling_root(lambda rho: any_of(rho) - excess.accepted(rho), torch.ones_like(k), k, _ROUNDS)
    return any_of(root.above)


def _levels(low: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much a low and a high draft are over-selected if a draft is low with probability `low`."""
    high = torch.where(low < 1, (1 - low**k) / torch.where(low < 1, 1 - low, 1.0), k)
    return low ** (k - 1), high


def _kseq_plus(excess: Excess, most: int) -> Tensor:
    """Return 1 − E(g₂), where the mass that the two levels cut off the target, E(g₂), equals the mass that they add,
    g₁ − 1 + E(g₁)."""
    k = _counts(excess, most)

    def balance(low: Tensor) -> Tensor:
        first, second = _levels(low, k)
        return excess(second) - (first - 1 + excess(first))

    root = falling_root(balance, torch.zeros_like(k), torch.ones_like(k), _ROUNDS)
    return torch.where(k > 1, excess.accepted(_levels(root.nearest, k)[1]), excess.accepted(torch.ones_like(k)))


def _match(excess: Excess, most: int) -> Tensor:
    """Return Σ target·(1 − (1 − draft)^K), the only curve that is not a function of E."""
    missed = [(excess.target * (1 - excess.draft) ** k).sum(-1) for k in range(1, most + 1)]
    return 1 - torch.stack(missed, -1)


CURVES: Mapping[str, Callable[[Excess, int], Tensor]] = {
    "optimal": _optimal,
    "kseq_plus": _kseq_plus,
    "kseq": _kseq,
    "recursive": _recursive,
    "maximal": _maximal,
    "match": _match,
}


def acceptance_curves(target: Tensor, draft: Tensor, most: int) -> dict[str, Tensor]:
    """Return the acceptance of K = 1 … `most` iid drafts with every coupling, by name, each float64 (…, most).

    The couplings are those of [sun2023spectr] (K-SEQ and the optimum), [miao2024specinfer] (recursive rejection) and
    [leviathan2023] (maximal); K-SEQ+ and the one curve are [spectr]'s.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(value, 4) for value in acceptance_curves(*laws, 4)["kseq"].tolist()]
    [0.6, 0.6584, 0.71, 0.7547]
    """
    check_pair(target, draft)
    check_count("most", most)
    target, draft = torch.broadcast_tensors(target, draft)
    size = target.shape[-1]
    excess = Excess(target.reshape(-1, size), draft.reshape(-1, size))
    return {name: curve(excess, most).view(*target.shape[:-1], most) for name, curve in CURVES.items()}
