"""Finds roots of many falling functions at once, with a bound that is valid before the search has converged."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Root", "falling_root"]


class Root(NamedTuple):
    """An upper bound of a root, and the best approximation."""

    above: Tensor  # at or right of the root: the function is ≤ 0 there after any number of rounds
    nearest: Tensor  # the argument at which the function was closest to 0


def falling_root(
    function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, rounds: int, halvings: int = 0
) -> Root:
    """Return the root of a non-increasing `function` in [low, high], or `low` if it is ≤ 0 there.

    The function must be ≤ 0 at `high`. The method is false position in the Illinois variant: the value of an end that
    does not move twice is halved, so both ends converge superlinearly. It is slow for a function that is flat beside
    its root; on a CPU the search then continues with `halvings` bisections.
    """
    start, at_low, at_high = low, function(low), function(high)
    enough = 1e-15 if rounds > 32 else 1e-8
    done, side = at_low <= 0, torch.zeros_like(low)
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
        if low.device.type == "cpu" and bool((done | (high - low <= enough * high)).all()):
            break
    return Root(torch.where(done, start, high), torch.where(done, start, nearest))
