"""Small autoregressive models for enumeration: every law is a function of a seed and the text so far.

Policies are applied by the reference implementation, so that no law depends on the audited code.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from spectr.audit.reference_policy import ReferencePolicy
from spectr.errors import ArgumentError
from spectr.policy import Policy

__all__ = ["CORNERS", "Corner", "RandomModel", "sparse_pair", "toy_pair"]

Corner = Literal[
    "plain", "temperature", "top_k", "top_p", "greedy", "greedy_draft", "disjoint", "zeros", "ties", "equal"
]
CORNERS: tuple[Corner, ...] = get_args(Corner)
"""Corner cases: pairs of laws for which a rule must be correct."""


@dataclass(frozen=True)
class RandomModel:
    """Gaussian logits that depend on the whole text, under a policy.

    `parity` 0 or 1 keeps only the even or odd tokens; `zeros` excludes tokens at random; `steps` rounds the law to that
    many equal parts, so that probabilities tie.
    """

    seed: int
    vocabulary: int
    policy: Policy = field(default_factory=Policy)
    parity: int | None = None
    zeros: float = 0.0
    steps: int = 0

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        """Return the law of the token after `text`, float64 (V,)."""
        rng = np.random.default_rng([self.seed, len(text), *text])
        logits = torch.from_numpy(1.2 * rng.standard_normal(self.vocabulary))
        excluded = torch.from_numpy(rng.random(self.vocabulary) < self.zeros)
        excluded[int(rng.integers(self.vocabulary))] = False
        if self.parity is not None:
            excluded = torch.arange(self.vocabulary) % 2 != self.parity
        shaped = ReferencePolicy(self.policy).law(logits.masked_fill(excluded, -torch.inf).tolist())
        law = torch.tensor(shaped, dtype=torch.float64)
        return self._rounded(law) if self.steps else law

    def _rounded(self, law: Tensor) -> Tensor:
        """Give every part of 1 / steps to the token whose cumulative mass reaches its middle."""
        middles = (torch.arange(self.steps, dtype=torch.float64) + 0.5) / self.steps
        owners = torch.searchsorted(law.cumsum(-1), middles).clamp_max(self.vocabulary - 1)
        return torch.bincount(owners, minlength=self.vocabulary).double() / self.steps


def toy_pair(corner: Corner, vocabulary: int, seed: int = 0) -> tuple[RandomModel, RandomModel]:
    """Return (target, draft) for one of the corner cases."""
    settings: dict[Corner, tuple[dict[str, object], dict[str, object]]] = {
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
    if corner not in settings:
        raise ArgumentError(f"no corner is called {corner!r}; known: {', '.join(CORNERS)}")
    target, draft = (
        {"seed": seed + shift, "vocabulary": vocabulary, **own} for shift, own in enumerate(settings[corner])
    )
    return RandomModel(**target), RandomModel(**draft)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Sparse:
    """A model of few tokens, spread over the ids of a larger vocabulary."""

    model: RandomModel
    ids: tuple[int, ...]
    vocabulary: int

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        """Return the law of the token after `text`, float64 (V,)."""
        law = torch.zeros(self.vocabulary, dtype=torch.float64)
        law[list(self.ids)] = self.model(text)
        return law


def sparse_pair(vocabulary: int, seed: int = 0) -> tuple[_Sparse, _Sparse]:
    """Return (target, draft) whose four tokens are far apart in a large vocabulary; all drafts can be enumerated."""
    ids = (0, vocabulary // 3, vocabulary // 2 + 1, vocabulary - 1)
    target, draft = (_Sparse(RandomModel(seed + shift, len(ids)), ids, vocabulary) for shift in (0, 1))
    return target, draft
