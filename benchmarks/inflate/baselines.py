"""Measures transformers on the same inflated model, with its own defaults.

A streamer records when tokens arrive, so that prefill is excluded, as it is for spectr. The forward hooks of
`spectr.models.baselines` cannot be used here, because they would keep transformers from compiling the model.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.inflate.clock import Pace, joined
from benchmarks.inflate.order import Order
from benchmarks.inflate.pair import Pair
from benchmarks.limit import bounded
from benchmarks.record import Found, said
from spectr.models.fast_kernels import stock_kernels
from spectr.models.hf import open_model

__all__ = ["peers"]

_DRAFTED = 5  # tokens that an assistant drafts per step
_FLATTERING = "the assistant is the model that was inflated: its law is the target's, so nearly all it drafts is kept"


@dataclass(slots=True)
class _Watch:
    """A streamer for transformers that records when tokens arrive."""

    pace: Pace = field(default_factory=Pace)

    def put(self, tokens: Any) -> None:
        """Record tokens that arrive together; the first call has the prompt."""
        self.pace.times.append(time.perf_counter())
        self.pace.tokens.append(int(tokens.numel()))

    def end(self) -> None:
        """Do nothing; transformers calls this when the text is complete."""


@contextmanager
def _drafting(assistant: Any) -> Iterator[None]:
    """Let an assistant draft a fixed number of tokens per step within the block."""
    own = assistant.generation_config
    assistant.generation_config = copy.deepcopy(own)
    assistant.generation_config.num_assistant_tokens = _DRAFTED
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    try:
        yield
    finally:
        assistant.generation_config = own


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A configuration of `generate`."""

    name: str
    tokens: int
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, net: Any, prompt: list[int], temperature: float) -> Pace:
        """Generate the same text twice, and return the second pace, since new shapes are compiled in the first run."""
        paces = []
        with ExitStack() as stack:
            stack.enter_context(stock_kernels(net))
            if (assistant := self.options.get("assistant_model")) is not None:
                stack.enter_context(stock_kernels(assistant))
                stack.enter_context(_drafting(assistant))
            for _ in range(2):
                torch.manual_seed(0)  # transformers has no other source of randomness
                paces.append(self._once(net, prompt, temperature))
        return paces[1]

    def _once(self, net: Any, prompt: list[int], temperature: float) -> Pace:
        law = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            if temperature > 0
            else {"do_sample": False}
        )
        ids, watch = torch.tensor([prompt], device=net.device), _Watch()
        net.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.tokens, min_new_tokens=self.tokens,
            repetition_penalty=1.0, pad_token_id=0, streamer=watch, **law, **self.options,
        )  # fmt: skip
        return Pace(watch.pace.times[1:], watch.pace.tokens[1:])


def _baselines(pair: Pair, order: Order) -> list[_Baseline]:
    """Return the configurations, the compiled one last, so that its failure cannot affect the others."""
    assistant = pair.small.target.model
    if order.assistant is not None:
        assistant = open_model(order.assistant, **order.loading).target.model
    most = order.grid.peer_tokens
    return [
        _Baseline("transformers", max(2, most // 2)),
        _Baseline("transformers, assistant_model", most, {"assistant_model": assistant}),
        _Baseline("transformers, static cache", most, {"cache_implementation": "static"}),
    ]


def _row(baseline: _Baseline, pair: Pair, order: Order, seconds: float) -> Found:
    net = pair.large.target.model
    try:
        with bounded(seconds):
            pace = baseline.write(net, pair.prompts[0], order.grid.temperature)
    except Exception as error:  # an error of transformers, of any kind
        return {"way": baseline.name, "error": said(error)}
    compiled = "cache_implementation" in baseline.options and hasattr(net, "_compiled_call")
    return {"way": baseline.name + (", compiled" if compiled else ""), "compiled": compiled, **joined([pace])}


def peers(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure plain sampling, an assistant model, and a static cache, which transformers compiles on a GPU."""
    about = {"tokens": _DRAFTED, "note": _FLATTERING if order.assistant is None else None}
    every, found, until = _baselines(pair, order), list[Found](), time.monotonic() + 60 * order.minutes
    for at, baseline in enumerate(every, start=1):
        found.append(_row(baseline, pair, order, until - time.monotonic()))
        yield {"rows": found, "assistant": about, "left": len(every) - at}
