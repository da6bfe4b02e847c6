"""Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before each step, matrices of a shape together.

Steps have the size that Adam's have (Liu et al. 2025), so one learning rate serves both.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon"]

_STEPS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
          (2.8366, -3.0525, 1.2012))  # fmt: skip
"""Coefficients of a quintic applied five times: singular values between 0.01 and 1 come to lie near 1."""


def orthogonal(matrices: Tensor) -> Tensor:
    """(G, R, C) with all singular values near 1, directions kept; in bfloat16 on a GPU."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    tall = matrices.shape[-2] > matrices.shape[-1]
    found = (matrices.mT if tall else matrices).to(dtype)
    found = found / (found.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in _STEPS:
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    turned: Tensor = found.mT if tall else found
    return turned.to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """For weight matrices; biases, norms and embeddings need another optimizer."""

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        ordered = sorted(params, key=lambda weights: tuple(weights.shape))
        super().__init__(ordered, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step for every matrix that has a gradient."""
        for group in self.param_groups:
            known = [weights for weights in group["params"] if weights.grad is not None]
            for _, alike in groupby(known, key=lambda weights: tuple(weights.shape)):
                self._step(list(alike), group)

    def _step(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        """Momentum of all of them is held with the first."""
        grads = torch.stack([weights.grad for weights in alike if weights.grad is not None])
        held = self.state[alike[0]].setdefault("momentum", torch.zeros_like(grads))
        held.lerp_(grads, 1 - group["momentum"])
        steps = orthogonal(grads.lerp(held, group["momentum"]))  # Nesterov
        steps *= group["lr"] * (0.2 * max(alike[0].shape) ** 0.5)
        for weights, step in zip(alike, steps, strict=True):
            weights.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step)
