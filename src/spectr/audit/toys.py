"""Small autoregressive models for proofs: every law is a function of a seed and the text so far."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy import Policy
from spectr.transport.laws import law_of

__all__ = ["CASES", "Case", "RandomModel", "toy_pair"]

Case = Literal["plain", "temperature", "top_k", "top_p", "greedy", "greedy_draft", "disjoint", "zeros", "ties", "equal"]
CASES: tuple[Case, ...] = (
    "plain",
    "temperature",
    "top_k",
    "top_p",
    "greedy",
    "greedy_draft",
    "disjoint",
    "zeros",
    "ties",
    "equal",
)


@dataclass(frozen=True)
class RandomModel:
    """Gaussian logits that depend on the whole text, under a policy.

    `parity` 0 or 1 keeps the even or odd tokens alone; `zeros` excludes tokens at random; `steps` rounds the law to
    that many equal parts, so that probabilities tie.
    """

    seed: int
    vocabulary: int
    policy: Policy = field(default_factory=Policy)
    parity: int | None = None
    zeros: float = 0.0
    steps: int = 0

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        """The law of the token after `text`, float64 (V,)."""
        rng = np.random.default_rng([self.seed, len(text), *text])
        logits = torch.from_numpy(1.2 * rng.standard_normal(self.vocabulary))
        gone = torch.from_numpy(rng.random(self.vocabulary) < self.zeros)
        gone[int(rng.integers(self.vocabulary))] = False
        if self.parity is not None:
            gone = torch.arange(self.vocabulary) % 2 != self.parity
        law = law_of(self.policy(logits.masked_fill(gone, -torch.inf)))
        return self._rounded(law) if self.steps else law

    def _rounded(self, law: Tensor) -> Tensor:
        """Every part of 1 / steps goes to the token whose cumulative mass reaches its middle."""
        middles = (torch.arange(self.steps, dtype=torch.float64) + 0.5) / self.steps
        owners = torch.searchsorted(law.cumsum(-1), middles).clamp_max(self.vocabulary - 1)
        return torch.bincount(owners, minlength=self.vocabulary).double() / self.steps


def toy_pair(case: Case, vocabulary: int, seed: int = 0) -> tuple[RandomModel, RandomModel]:
    """(target, draft) for one of the corners that a rule must survive."""
    settings: dict[Case, tuple[dict[str, object], dict[str, object]]] = {
        "plain": ({}, {}),
        "temperature": ({"policy": Policy(0.5)}, {"policy": Policy(0.8)}),
        "top_k": ({"policy": Policy(top_k=2)}, {"policy": Policy(top_k=2)}),
        "top_p": ({"policy": Policy(top_p=0.7)}, {"policy": Policy(0.8, top_p=0.8)}),
        "greedy": ({"policy": Policy(0)}, {}),
        "greedy_draft": ({}, {"policy": Policy(0)}),
        "disjoint": ({"parity": 0}, {"parity": 1}),
        "zeros": ({"zeros": 0.4}, {"zeros": 0.4}),
        "ties": ({"steps": 4}, {"steps": 4}),
        "equal": ({}, {"seed": seed}),
    }
    if case not in settings:
        raise ArgumentError(f"no case is called {case!r}; known: {', '.join(CASES)}")
    target, draft = (
        {"seed": seed + shift, "vocabulary": vocabulary, **own} for shift, own in enumerate(settings[case])
    )
    return RandomModel(**target), RandomModel(**draft)  # type: ignore[arg-type]
