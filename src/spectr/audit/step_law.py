"""The distribution of the texts that a few steps emit, and its distance from a target's."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from spectr.transport.laws import check_law

__all__ = ["LanguageModel", "StepLaw", "law_after"]

LanguageModel = Callable[[tuple[int, ...]], Tensor | Sequence[float]]
"""A small autoregressive model: it maps the tokens so far to the V probabilities of the next one."""


def law_after(model: LanguageModel, text: tuple[int, ...], name: str) -> Tensor:
    """Return a model's law in float64, checked and divided by its float64 sum.

    The division makes the enumeration exact for float32 models too."""
    answer = model(text)
    law = answer if isinstance(answer, Tensor) else torch.as_tensor(np.asarray(answer, dtype=np.float64))
    check_law(f"{name}{text}", law)
    return law.double() / law.double().sum()


class StepLaw(Mapping[tuple[int, ...], float]):
    """The law of the emitted tokens: a mapping from each text to its probability."""

    def __init__(self, chances: Mapping[tuple[int, ...], float], stops: frozenset[int] = frozenset()) -> None:
        self._chances, self._stops = dict(chances), stops

    def __getitem__(self, text: tuple[int, ...]) -> float:
        return self._chances[text]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._chances)

    def __len__(self) -> int:
        return len(self._chances)

    @property
    def expected_tokens(self) -> float:
        """The expected number of emitted tokens."""
        return sum(len(text) * chance for text, chance in self._chances.items())

    def deviation(self, target_lm: LanguageModel) -> float:
        """Return the largest |probability − target's| over all texts, after the target has completed them to one
        length."""
        return max((abs(found - expected) for found, expected in self._completed(target_lm)), default=0.0)

    def total_variation(self, target_lm: LanguageModel) -> float:
        """Return ½ Σ |probability − target's| over the completed texts."""
        return sum(abs(found - expected) for found, expected in self._completed(target_lm)) / 2

    def first_token_bias(self, target_lm: LanguageModel) -> float:
        """Return the total variation between the law of the first emitted token and the target's."""
        law = law_after(target_lm, (), "target_lm").tolist()
        found = [0.0] * len(law)
        for text, chance in self._chances.items():
            found[text[0]] += chance
        return math.fsum(abs(f - p) for f, p in zip(found, law, strict=True)) / 2

    def _completed(self, target_lm: LanguageModel) -> Iterator[tuple[float, float]]:
        """Yield the probabilities (found, the target's) of every text of maximum length or that ends with a stop
        token."""
        horizon = max(map(len, self._chances))
        stack: list[tuple[tuple[int, ...], float, float]] = [((), 0.0, 1.0)]
        while stack:
            text, inflow, expected = stack.pop()
            found = inflow + self._chances.get(text, 0.0)
            if len(text) == horizon or (text and text[-1] in self._stops):
                yield found, expected
            elif found > 0 or expected > 0:
                law = law_after(target_lm, text, "target_lm").tolist()
                stack += [((*text, x), found * chance, expected * chance) for x, chance in enumerate(law)]
