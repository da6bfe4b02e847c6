"""What a step costs around the model: spectr against transformers' own sampling, interleaved in one run.

Timed, so never a test. Python time is what a step takes beyond the model's forward and the rule.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from spectr.engine import Job, Request
from spectr.lm import LM, load
from spectr.metrics import Stats
from spectr.models.tuned import untuned
from spectr.policy import Policy

__all__ = ["run"]

PROMPTS = (
    "Explain tides in a few sentences.",
    "Write a short story about a lighthouse keeper and a fox.",
    "List five ways to save water at home, with a reason for each.",
)


@dataclass(slots=True)
class _Clock:
    """Seconds inside the model's forward."""

    seconds: float = 0.0
    _since: float = field(default=0.0, repr=False)

    @contextmanager
    def watching(self, net: torch.nn.Module) -> Iterator[None]:
        """While the context is open."""
        before = net.register_forward_pre_hook(lambda *_: setattr(self, "_since", time.perf_counter()))
        after = net.register_forward_hook(lambda *_: self._stop())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _stop(self) -> None:
        self.seconds += time.perf_counter() - self._since


@dataclass(frozen=True, slots=True)
class Timing:
    """One text by one way."""

    tokens: int
    seconds: float
    model: float  # seconds inside the model
    stats: Stats | None = None

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens

    @property
    def python(self) -> float:
        """Seconds a step outside model and rule."""
        assert self.stats is not None
        return (self.seconds - self.model - self.stats.seconds["rule"]) / self.stats.steps


def _time_transformers(lm: LM, ids: list[int], tokens: int, seed: int) -> Timing:
    net: Any = lm.opened.target.model
    clock = _Clock()
    torch.manual_seed(seed)
    start = time.perf_counter()
    with clock.watching(net), untuned(net):
        out = net.generate(
            torch.tensor([ids], device=net.device),
            do_sample=True, top_k=0, temperature=1.0, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0,
        )  # fmt: skip
    return Timing(out.shape[1] - len(ids), time.perf_counter() - start, clock.seconds)


def _time_spectr(lm: LM, ids: list[int], tokens: int, seed: int) -> Timing:
    clock = _Clock()
    start = time.perf_counter()
    with clock.watching(lm.opened.target.model):
        result = lm.engine.generate(Job([Request(ids, seed, tokens)], Policy(min_new_tokens=tokens)))[0]
    return Timing(len(result.tokens), time.perf_counter() - start, clock.seconds, result.stats)


def _summary(timings: Sequence[Timing], plain: Sequence[Timing]) -> dict[str, Any]:
    """Medians of a way, and its time per token in those of transformers' plain sampling, prompt by prompt."""
    ratios = [mine.per_token / theirs.per_token for mine, theirs in zip(timings, plain, strict=True)]
    found = {
        "ms_per_token": 1e3 * statistics.median(t.per_token for t in timings),
        "ratio_to_transformers": statistics.median(ratios),
        "ratios": ratios,
    }
    if timings[0].stats is None:
        return found
    calls = [t.tokens / t.stats.steps for t in timings if t.stats is not None]
    python = statistics.median(t.python for t in timings)
    return {**found, "tokens_per_call": statistics.mean(calls), "python_ms_per_step": 1e3 * python}


def run(
    model: str, drafters: Sequence[str], tokens: int, repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Every way on every prompt, in turn, `repeats` times, after one round that is not counted."""
    lms = {name: load(model, name, progress=progress) for name in drafters[:1]}
    first = lms[drafters[0]]
    net, tokenizer = first.opened.target.model, first.tokenizer
    lms |= {name: load(net, name, tokenizer=tokenizer) for name in drafters[1:]}
    found: dict[str, list[Timing]] = {"transformers": [], **{name: [] for name in lms}}
    for turn in range(repeats + 1):
        for number, prompt in enumerate(PROMPTS):
            ids = first.encode(prompt)
            round_ = {"transformers": _time_transformers(first, ids, tokens, number)}
            round_ |= {name: _time_spectr(lm, ids, tokens, number) for name, lm in lms.items()}
            if turn:
                for name, timing in round_.items():
                    found[name].append(timing)
        progress(f"round {turn} of {repeats}" if turn else "warm")
    return {
        "what": "time per generated token, T=1, batch 1",
        "model": model,
        "device": str(net.device),
        "dtype": str(net.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tokens": tokens,
        "results": {name: _summary(timings, found["transformers"]) for name, timings in found.items()},
    }
