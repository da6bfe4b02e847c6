"""The ways to generate a text that are compared: spectr with and without a drafter, and transformers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, NamedTuple, Protocol

import torch

from benchmarks.real.order import PLAIN, SPECTR, STATIC, TRANSFORMERS, Order
from spectr.draft import drafter as named_drafter
from spectr.lm import LM, load
from spectr.models.fast_kernels import stock_kernels
from spectr.models.packed import unpacked

__all__ = ["SAMPLING", "SpectrWay", "Subject", "TransformersWay", "Way", "Written", "subject_of"]

SAMPLING: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
"""Settings in place of those in the model's files, the same for all ways: nothing but a temperature."""


class Written(NamedTuple):
    """The costs of a text."""

    tokens: int
    seconds: float  # from the prompt's tokens to the last token
    calls: int | None = None  # of the target; None: unknown


class Way(Protocol):
    """Generates texts."""

    @property
    def captures(self) -> bool:
        """Whether steps are captured or compiled, so that only whole texts warm it up."""
        ...

    def write(self, prompt: Sequence[int], seed: int, temperature: float, tokens: int) -> Written:
        """Generate a text of at most `tokens` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class SpectrWay:
    """Generates texts with spectr."""

    lm: LM
    _texts: "count[int]" = field(default_factory=count)

    @property
    def captures(self) -> bool:
        """Whether steps are captured."""
        return self.lm.engine.parts.captures

    def write(self, prompt: Sequence[int], seed: int, temperature: float, tokens: int) -> Written:
        """Generate a text; its scope is new, so that its prompt is prefilled and not copied from an earlier text."""
        scope, start = f"text {next(self._texts)}", time.perf_counter()
        out = self.lm.generate(
            list(prompt), tokens, seed, temperature=temperature, cache_scope=scope, **SAMPLING
        )  # fmt: skip
        return Written(len(out.tokens), time.perf_counter() - start, out.stats.steps)


@dataclass(frozen=True, slots=True)
class TransformersWay:
    """Generates texts with `generate` of transformers and its own kernels."""

    net: Any
    stops: frozenset[int]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def captures(self) -> bool:
        """Whether transformers compiles the model, which it does for a static cache on a GPU."""
        return bool(self.options) and self.net.device.type == "cuda"

    def write(self, prompt: Sequence[int], seed: int, temperature: float, tokens: int) -> Written:
        """Generate a text."""
        law = {"do_sample": True, "temperature": temperature, **SAMPLING}
        if temperature == 0:
            law = {"do_sample": False, "repetition_penalty": 1.0}
        ids = torch.tensor([list(prompt)], device=self.net.device)
        with stock_kernels(self.net):
            torch.manual_seed(seed)  # transformers has no other source of randomness
            start = time.perf_counter()
            out = self.net.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=0,
                eos_token_id=sorted(self.stops) or None, **law, **self.options,
            )[0, len(prompt) :].tolist()  # fmt: skip
            return Written(len(out), time.perf_counter() - start, len(out))

    @property
    def is_compiled(self) -> bool:
        """Whether transformers has compiled the model by now."""
        return bool(self.options) and hasattr(self.net, "_compiled_call")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its drafter and without one, and the settings of the run."""

    drafting: LM
    plain: LM
    order: Order

    def ways(self, names: Sequence[str]) -> dict[str, Way]:
        """Return the ways of these names."""
        opened, static = self.plain.opened, {"cache_implementation": "static"}
        made: dict[str, Callable[[], Way]] = {
            SPECTR: lambda: SpectrWay(self.drafting),
            PLAIN: lambda: SpectrWay(self.plain),
            TRANSFORMERS: lambda: TransformersWay(_with_torch_layers(opened.target.model), opened.stops),
            STATIC: lambda: TransformersWay(_with_torch_layers(opened.target.model), opened.stops, static),
        }
        return {name: made[name]() for name in names}


@cache
def _with_torch_layers(net: Any) -> Any:
    """Return the model for transformers: the same weights, in float32 layers of torch if they are packed."""
    return unpacked(net)


def subject_of(order: Order, say: Callable[[str], None]) -> Subject:
    """Load the model and its drafter."""
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    lm = load(order.model, order.drafter, progress=say, **order.options)
    plain = LM(lm.engine.with_parts(drafter=named_drafter("none")), lm.opened)
    for one in (lm, plain):
        one.engine.warm_up()
    return Subject(lm, plain, order)
