"""Muon (Jordan et al. 2024): orthogonalises the momentum of a matrix before each step; equal shapes are batched.

Steps have the same size as Adam's (Liu et al. 2025), so that one learning rate suits both.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon"]

_STEPS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
          (2.8366, -3.0525, 1.2012))  # fmt: skip
"""Coefficients of five quintic iterations that map singular values between 0.01 and 1 to values near 1."""


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices (G, R, C) with the same singular vectors and singular values near 1; in bfloat16 on a GPU."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    tall = matrices.shape[-2] > matrices.shape[-1]
    result = (matrices.mT if tall else matrices).to(dtype)
    result = result / (result.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in _STEPS:
        gram = result @ result.mT
        result = a * result + (b * gram + c * gram @ gram) @ result
    turned: Tensor = result.mT if tall else result
    return turned.to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """An optimizer for weight matrices; biases, norms and embeddings need another one."""

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        ordered = sorted(params, key=lambda weights: tuple(weights.shape))
        super().__init__(ordered, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            known = [weights for weights in group["params"] if weights.grad is not None]
            for _, alike in groupby(known, key=lambda weights: tuple(weights.shape)):
                self._step(list(alike), group)

    def _step(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape; their momentum is stored with the first."""
        grads = torch.stack([weights.grad for weights in alike if weights.grad is not None])
        momentum = self.state[alike[0]].setdefault("momentum", torch.zeros_like(grads))
        momentum.lerp_(grads, 1 - group["momentum"])
        steps = orthogonal(grads.lerp(momentum, group["momentum"]))  # Nesterov
        steps *= group["lr"] * (0.2 * max(alike[0].shape) ** 0.5)
        for weights, step in zip(alike, steps, strict=True):
            weights.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step)
