"""Samplers that claim to draw from a target's distribution; they map seeds to texts.

This file has those of the engine and of a Python function; endpoints and transformers have files of their own. A
sampler has its own prompt and settings, and does not depend on the distribution it is compared with.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch

from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.replay import Replay, RowsAfter
from spectr.audit.texts import LawsAfter, Text
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError
from spectr.garbage import without_collection
from spectr.policy import Policy
from spectr.threads import one_thread

__all__ = ["EngineSampler", "Function", "FunctionSampler", "OnOneThread", "Sampler", "reference_laws"]

Function = Callable[[list[int], int], Sequence[int]]
"""Maps (prompt, seed) to new tokens, at least as many as are tested unless they end with a stop token."""

_MOST_NUMBERS = 1 << 25  # logits of one step
_BATCH = 8192  # texts requested at once


class Sampler(Protocol):
    """Samples texts after one prompt."""

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """Return a text of `length` tokens for each seed, in order; shorter only if it ends with a stop token."""
        ...


@dataclass(slots=True)
class EngineSampler:
    """Samples with the real engine, rule and drafter. A replay runs as many rows at once as fit into memory."""

    engine: Engine
    prompt: Sequence[int]
    policy: Policy = field(default_factory=Policy)
    steps: int = 0  # target calls so far, counted for each row
    emitted: int = 0  # tokens so far

    def __post_init__(self) -> None:
        if isinstance(self.engine.target, Replay):
            numbers = self.engine.target.vocabulary * self.engine.drafter.nodes
            rows = max(1, min(_BATCH, _MOST_NUMBERS // numbers))
            self.engine = self.engine.with_parts(rows=rows, chunk=_BATCH * max(1, len(self.prompt)))

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """Return texts for the seeds, some thousands at a time."""
        parts = (seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH))
        with without_collection(), one_thread() if isinstance(self.engine.target, Replay) else nullcontext():
            return [text for part in parts for text in self._texts(part, length)]

    def _texts(self, seeds: Sequence[int], length: int) -> list[Text]:
        results = self.engine.generate([Request(self.prompt, seed, length, self.policy) for seed in seeds])
        self.steps += sum(result.stats.steps for result in results)
        self.emitted += sum(result.stats.emitted for result in results)
        return [tuple(result.tokens) for result in results]


@dataclass(frozen=True, slots=True)
class FunctionSampler:
    """Samples with a function (prompt, seed) → tokens."""

    function: Function
    prompt: Sequence[int]
    stops: frozenset[int] = frozenset()

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """Call the function once for each seed; tokens beyond the length or a stop token are cut."""
        return [self._cut(self.function(list(self.prompt), seed), length) for seed in seeds]

    def _cut(self, tokens: Sequence[int], length: int) -> Text:
        try:
            text = tuple(int(token) for token in tokens)[:length]
        except (TypeError, ValueError):
            raise ArgumentError(f"a sampler must return token ids, got {tokens!r}") from None
        end = next((at for at, token in enumerate(text, start=1) if token in self.stops), len(text))
        return text[:end]


@dataclass(frozen=True, slots=True)
class OnOneThread:
    """A sampler whose tensors are too small for several threads."""

    sampler: Sampler

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """Return the texts of the sampler."""
        with one_thread():
            return self.sampler(seeds, length)


def reference_laws(rows: RowsAfter, prompt: Sequence[int], reference: ReferencePolicy) -> LawsAfter:
    """Return a function that computes the laws under a reference policy after a prompt and more text, float64."""
    start = tuple(prompt)

    def laws(texts: Sequence[Text]) -> torch.Tensor:
        logits = rows([start + text for text in texts]).tolist()
        found = [reference.law(row, start, text) for row, text in zip(logits, texts, strict=True)]
        return torch.tensor(found, dtype=torch.float64)

    return laws
