"""Measures the time of a step outside the model: spectr against transformers' own sampling, interleaved in one run.

Python time is the time of a step besides the model's forward call and the rule.
"""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spectr.checks import whole
from spectr.data.prompts import timing
from spectr.engine import Request
from spectr.engine.metrics import Stats
from spectr.lm import LM, load
from spectr.models.baselines import ForwardTimer, TransformersBaseline
from spectr.policy import Policy

__all__ = ["run"]


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one text with one method."""

    tokens: int
    seconds: float
    model: float  # seconds inside the model
    stats: Stats | None = None

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens

    @property
    def python(self) -> float:
        """Seconds per step outside model and rule."""
        assert self.stats is not None
        return (self.seconds - self.model - self.stats.seconds["rule"]) / self.stats.steps


def _time_transformers(lm: LM, ids: list[int], tokens: int, seed: int) -> Timing:
    settings = {"temperature": 1.0, "max_new_tokens": tokens, "min_new_tokens": tokens}
    found = TransformersBaseline(lm.opened.target.model, lm.opened.stops).write(ids, seed, settings)
    return Timing(len(found.tokens), found.seconds, found.target)


def _time_spectr(lm: LM, ids: list[int], tokens: int, seed: int) -> Timing:
    timer = ForwardTimer()
    request = Request(ids, seed, tokens, Policy(min_new_tokens=tokens))
    start = time.perf_counter()
    with timer.watching(lm.opened.target.model):
        result = lm.engine.generate([request])[0]
    inside = timer.seconds or result.stats.seconds["target"]  # a compiled decoder does not call the module
    return Timing(len(result.tokens), time.perf_counter() - start, inside, result.stats)


def _summary(timings: Sequence[Timing], plain: Sequence[Timing]) -> dict[str, Any]:
    """Return medians of a method, and its time per token relative to transformers' plain sampling, prompt by prompt."""
    ratios = [mine.per_token / theirs.per_token for mine, theirs in zip(timings, plain, strict=True)]
    found = {
        "ms_per_token": 1e3 * statistics.median(t.per_token for t in timings),
        "ratio_to_transformers": statistics.median(ratios),
        "ratios": ratios,
    }
    every = [timing.stats for timing in timings if timing.stats is not None]
    if not every:
        return found
    steps = sum(stats.steps for stats in every)
    python = statistics.median(t.python for t in timings)
    return {
        **found,
        "tokens_per_call": sum(timing.tokens for timing in timings) / steps,
        "python_ms_per_step": 1e3 * python,
        "ms_per_step": {part: 1e3 * sum(s.seconds[part] for s in every) / steps for part in every[0].seconds},
    }


def _of_prompt(ratios: Sequence[float], prompts: int) -> list[float]:
    """Return the median of each prompt over the rounds."""
    return [statistics.median(ratios[at::prompts]) for at in range(prompts)]


def _against(found: dict[str, Any], name: str, prompts: int) -> dict[str, Any]:
    """Add the speed-up over transformers' plain sampling: over all prompts, and for each."""
    each = [1 / ratio for ratio in _of_prompt(found[name]["ratios"], prompts)]
    return {**found[name], "speedup": statistics.median(each), "speedup_by_prompt": each, "least_speedup": min(each)}


def _loaded(model: Any, name: str, **options: Any) -> LM:
    """Load a drafter; `auto@3` has trees of three nodes, `early_exit:4@3` the first four layers."""
    name, _, nodes = name.partition("@")
    drafter, _, layers = name.partition(":") if name.startswith("early_exit:") else (name, "", "")
    if layers:
        options["layers"] = whole("layers after :", int(layers) if layers.isdigit() else layers, 1)
    if nodes:
        options["nodes"] = whole("nodes after @", int(nodes) if nodes.isdigit() else nodes, 2)
    lm = load(model, drafter, **options)
    return LM(lm.engine.with_parts(rows=1, reuses_prefixes=False), lm.opened)  # no prefix cache, because prompts repeat


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of the measurement."""

    model: str = "smollm2-135m"
    drafters: Sequence[str] = ("none", "lookup")
    prompts: Sequence[str] = field(default_factory=timing)
    tokens: int = 128
    repeats: int = 3


def run(trial: Trial, progress: Callable[[str], None]) -> dict[str, Any]:
    """Time every method on every prompt in turn, `repeats` times, after a warm-up round."""
    names = trial.drafters
    first = _loaded(trial.model, names[0], progress=progress)
    net, tokenizer = first.opened.target.model, first.tokenizer
    lms = {names[0]: first} | {name: _loaded(net, name, tokenizer=tokenizer) for name in names[1:]}
    found: dict[str, list[Timing]] = {"transformers": [], **{name: [] for name in lms}}
    for turn in range(trial.repeats + 1):
        for number, prompt in enumerate(trial.prompts if turn else trial.prompts[:1]):
            ids = first.encode(prompt)
            round_ = {"transformers": _time_transformers(first, ids, trial.tokens, number)}
            round_ |= {name: _time_spectr(lm, ids, trial.tokens, number) for name, lm in lms.items()}
            if turn:
                for name, timing in round_.items():
                    found[name].append(timing)
        progress(f"round {turn} of {trial.repeats}" if turn else "warm")
    results = {name: _summary(timings, found["transformers"]) for name, timings in found.items()}
    return {
        "what": "time per generated token, T=1, batch 1",
        "model": trial.model,
        "device": str(net.device),
        "dtype": str(net.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tokens": trial.tokens,
        "prompts": len(trial.prompts),
        "results": {name: _against(results, name, len(trial.prompts)) for name in results},
    }
