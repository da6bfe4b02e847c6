"""Roots of falling functions, many at once, with a bound that is safe to use before the root is exact."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Root", "falling_root"]


class Root(NamedTuple):
    """Where a root is, as far as it was looked for."""

    above: Tensor  # at or right of the root: the function is ≤ 0 there, however few the rounds
    nearest: Tensor  # where the function was seen closest to 0


def falling_root(
    function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, rounds: int, halvings: int = 0
) -> Root:
    """The root of a non-increasing `function` in [low, high], or `low` if it is ≤ 0 there; it must be ≤ 0 at `high`.

    Illinois' false position: the end that stays put twice has its value halved, so both ends close in superlinearly.
    That is slow where a function is flat beside its root: a CPU, which sees it, then halves the interval so often.
    """
    start, at_low, at_high = low, function(low), function(high)
    enough = 1e-15 if rounds > 32 else 1e-8
    settled, side = at_low <= 0, torch.zeros_like(low)
    nearest, least = torch.where(at_low.abs() < at_high.abs(), low, high), torch.minimum(at_low.abs(), at_high.abs())
    for turn in range(rounds + (halvings if low.device.type == "cpu" else 0)):
        span = at_low - at_high if turn < rounds else torch.zeros_like(low)
        middle = torch.where(span > 0, low + (high - low) * at_low / torch.where(span > 0, span, 1.0), (low + high) / 2)
        value = function(middle)
        nearest, least = torch.where(value.abs() < least, middle, nearest), torch.minimum(value.abs(), least)
        right = value <= 0  # the root is at or left of the middle
        at_low = torch.where(right, torch.where(side > 0, at_low / 2, at_low), value)
        at_high = torch.where(right, value, torch.where(side < 0, at_high / 2, at_high))
        low, high = torch.where(right, low, middle), torch.where(right, middle, high)
        side = torch.where(right, 1.0, -1.0)
        if low.device.type == "cpu" and bool((settled | (high - low <= enough * high)).all()):
            break
    return Root(torch.where(settled, start, high), torch.where(settled, start, nearest))
