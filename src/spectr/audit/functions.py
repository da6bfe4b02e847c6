"""Correct and faulty samplers as plain functions, for testing the audit of a user's function."""

import random
from bisect import bisect_right
from collections.abc import Callable

import torch
from torch import Tensor

from spectr.audit.report import CELLS
from spectr.audit.samplers import Function
from spectr.audit.texts import Text, TextLaw
from spectr.errors import ArgumentError

__all__ = ["biased_function", "paired_function", "right_function", "shifted"]

Change = Callable[[Tensor, Text], Tensor]


def _function(law: TextLaw, change: Change) -> Function:
    """Return a function that draws token by token by inverse CDF, from laws that `change` may alter."""
    known: dict[Text, list[float]] = {}

    def sample(_: list[int], seed: int) -> list[int]:
        draw, text = random.Random(seed), tuple[int, ...]()
        for coin in (draw.random() for _ in range(law.length)):
            if text not in known:
                known[text] = change(law.laws([text])[0], text).cumsum(0).tolist()
            sums = known[text]
            text = (*text, min(bisect_right(sums, coin * sums[-1]), len(sums) - 1))
            if text[-1] in law.stops:
                break
        return list(text)

    return sample


def right_function(law: TextLaw) -> Function:
    """Return a function (prompt, seed) → text that draws from the law."""
    return _function(law, lambda row, _: row)


def shifted(row: Tensor, bias: float) -> Tensor:
    """Return a law that is off by exactly `bias` in the way that is hardest to detect.

    Every second one of the likeliest tokens becomes more likely by one factor, all other tokens less likely by
    another."""
    order = row.sort(descending=True, stable=True).indices
    more = torch.zeros_like(row, dtype=torch.bool)
    more[order[1 : CELLS - 1 : 2]] = True
    mass = float(row[more].sum())
    if not bias < mass < 1 - bias:
        raise ArgumentError(
            f"a bias of {bias} must be smaller than the mass {mass:.3f} of the raised tokens and of the rest; use less"
        )
    return torch.where(more, row * (1 + bias / mass), row * (1 - bias / (1 - mass)))


def biased_function(law: TextLaw, bias: float) -> Function:
    """Return a function whose first token is off by `bias` in total variation."""
    return _function(law, lambda row, text: row if text else shifted(row, bias))


def paired_function(law: TextLaw) -> Function:
    """Return a function that gives every text twice: each is correct, and neighbours are equal."""
    right = right_function(law)
    return lambda prompt, seed: right(prompt, seed // 2)
