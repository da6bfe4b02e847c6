"""The bias–rejection frontier (Yin et al. 2024): the fewest rejections that a bias budget allows. LOSSY.

A lossless test rejects with probability TV(target, law). Rejecting with R ≤ TV costs at least TV − R in total
variation, and shrinking every rejection by one factor attains that bound: with a budget per token, R = (TV − budget)⁺
and the bias is min(budget, TV).
"""

from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.transport.selection import SelectingCoupling
from spectr.verify.lossy.relaxed import RelaxedCoupling, selecting
from spectr.verify.walk import Walk

__all__ = ["Pareto"]


class ParetoCoupling(RelaxedCoupling):
    """Shrinks every rejection probability by the factor that spends the budget."""

    name: ClassVar[str] = "pareto"
    papers: ClassVar[tuple[str, ...]] = ("yin2024",)

    def __init__(self, inner: SelectingCoupling, budget: float) -> None:
        super().__init__(inner)
        self.budget = budget

    def test(self, lossless: Tensor, gap: Tensor) -> Tensor:
        """1 − (1 − min(1, target / law)) · (1 − budget / TV)⁺."""
        shrink = torch.where(gap > 0, 1 - self.budget / torch.where(gap > 0, gap, 1.0), 0.0).clamp_min(0)
        return 1 - (1 - lossless) * shrink


class Pareto(Walk):
    """The walk whose tokens are each off by at most `budget` in total variation."""

    def __init__(self, budget: float = 0.01, coupling: str = "optimal") -> None:
        if not 0 <= budget <= 1:
            raise ArgumentError(f"budget is a total variation per token and must lie in [0, 1], got {budget}")
        summary = "LOSSY: rejects as seldom as a total-variation budget per token allows"
        super().__init__(ParetoCoupling(selecting(coupling), budget), "pareto", summary)
        self.bias_bound = budget
