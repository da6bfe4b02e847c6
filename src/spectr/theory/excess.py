"""Acceptance for every number of drafts at once: the couplings of iid drafts see two laws through one curve.

E(s) = Σ (target − s·draft)⁺ falls from 1 at s = 0. What each coupling accepts of K drafts is a function of E and K
alone, so one sort of the vocabulary serves all couplings and all K. Exact; float64.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spectr.transport.laws import check_count, check_pair, ratio
from spectr.transport.roots import falling_root

__all__ = ["CURVES", "Excess", "acceptance_curves"]

_ROUNDS = 80


class Excess:
    """E(s) for laws (n, V), by one sort and two running sums. Tokens that are never drafted exceed every s."""

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        target, draft = target.double(), draft.double()
        self.target, self.draft = target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)
        self.ratio, order = ratio(self.target, self.draft).sort(dim=-1)
        self._owed, self._given = (_from_the_end(law.gather(-1, order)) for law in (self.target, self.draft))

    def __call__(self, scale: Tensor) -> Tensor:
        """E at `scale` (n, m)."""
        above = torch.searchsorted(self.ratio, scale.contiguous(), right=True)
        return (self._owed.gather(-1, above) - scale * self._given.gather(-1, above)).clamp_min(0)

    def accepted(self, scale: Tensor) -> Tensor:
        """Σ min(target, scale·draft)."""
        return 1 - self(scale)


def _from_the_end(values: Tensor) -> Tensor:
    """Sums of what stands at each place and after it, and nothing after the last: (n, V + 1)."""
    return torch.nn.functional.pad(values.flip(-1).cumsum(-1).flip(-1), (0, 1))


def _counts(excess: Excess, most: int) -> Tensor:
    return torch.arange(1, most + 1, dtype=torch.float64, device=excess.ratio.device).expand(len(excess.ratio), -1)


def _maximal(excess: Excess, most: int) -> Tensor:
    """One draft is looked at, however many there are."""
    return excess.accepted(torch.ones_like(_counts(excess, most)))


def _optimal(excess: Excess, most: int) -> Tensor:
    """1 − max_j [Q_j^K − P_j]⁺ over prefixes in the order of target / draft."""
    drafted = 1 - excess._given[:, 1:]
    owed = 1 - excess._owed[:, 1:]
    lost = [(drafted.clamp(0, 1) ** k - owed).amax(-1).clamp_min(0) for k in range(1, most + 1)]
    return 1 - torch.stack(lost, -1)


def _recursive(excess: Excess, most: int) -> Tensor:
    """After m rejections (target − s_m·draft)⁺ is left, with s_{m+1} = s_m + E(s_m)."""
    scale, found = torch.zeros_like(excess.ratio[:, :1]), []
    for _ in range(most):
        scale = scale + excess(scale)
        found.append(excess.accepted(scale))
    return torch.cat(found, -1)


def _kseq(excess: Excess, most: int) -> Tensor:
    """1 − (1 − β)^K with β = (1 − E(ρ)) / ρ, at the smallest ρ for which that is at most ρ·β."""
    k = _counts(excess, most)

    def any_of(rho: Tensor) -> Tensor:
        return -torch.expm1(k * torch.log1p(-(excess.accepted(rho) / rho).clamp_max(1 - 2.0**-53)))

    root = falling_root(lambda rho: any_of(rho) - excess.accepted(rho), torch.ones_like(k), k, _ROUNDS)
    return any_of(root.above)


def _levels(low: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """How much a low and a high draft are over-selected when a draft is low with that chance; k·low^(k−1) at one."""
    high = torch.where(low < 1, (1 - low**k) / torch.where(low < 1, 1 - low, 1.0), k)
    return low ** (k - 1), high


def _kseq_plus(excess: Excess, most: int) -> Tensor:
    """1 − E(g₂), where what the two levels cut off the target, E(g₂), is what they fill up, g₁ − 1 + E(g₁)."""
    k = _counts(excess, most)

    def balance(low: Tensor) -> Tensor:
        first, second = _levels(low, k)
        return excess(second) - (first - 1 + excess(first))

    root = falling_root(balance, torch.zeros_like(k), torch.ones_like(k), _ROUNDS)
    return torch.where(k > 1, excess.accepted(_levels(root.nearest, k)[1]), excess.accepted(torch.ones_like(k)))


def _match(excess: Excess, most: int) -> Tensor:
    """Σ target·(1 − (1 − draft)^K): the one that looks at tokens one by one."""
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
    """Acceptance of K = 1 … `most` iid drafts under every coupling of them, by name, each float64 (…, most).

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
