"""Times the texts of one task at one temperature, one text at a time, in all ways in turn."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.limit import bounded
from benchmarks.real.order import PLAIN, SPECTR, STATIC, TRANSFORMERS
from benchmarks.real.problems import Problem
from benchmarks.real.ways import Subject, TransformersWay, Way, Written
from benchmarks.record import Found, said
from spectr.errors import ArgumentError
from spectr.lm import LM

__all__ = ["prompts_of", "speed", "summary"]

_WARM_TOKENS = 8  # of a warm-up text where nothing is captured or compiled
_WARM_SEED = 1_000_003
_LEAST_SECONDS = 30.0  # for a text of transformers, even if the time of its part is over
_AGAINST = (PLAIN, TRANSFORMERS, STATIC)


def prompts_of(lm: LM, problems: Sequence[Problem], tokens: int) -> list[tuple[Problem, list[int]]]:
    """Return the problems whose prompt and answer fit into the model's context, each with the tokens of its prompt."""
    context, found = lm.engine.target.context, list[tuple[Problem, list[int]]]()
    for problem in problems:
        prompt = lm.encode(problem.prompt, raw=problem.raw)
        if len(prompt) + tokens <= context:
            found.append((problem, prompt))
    if not found:
        raise ArgumentError(f"no prompt with {tokens} tokens after it fits into the model's context of {context}")
    return found


def speed(
    subject: Subject, problems: Sequence[Problem], temperature: float, before: Mapping[str, Any]
) -> Iterator[Found]:
    """Generate every text in all ways, after a warm-up; texts that `before` has are not generated again."""
    trial, until = subject.order.trial, time.monotonic() + 60 * subject.order.minutes
    prompts = [prompt for _, prompt in prompts_of(subject.drafting, problems, trial.tokens)[: trial.texts]]
    ways, failed = subject.ways(subject.order.ways), dict[str, str]()
    runs: list[Found] = list(before.get("runs", ()))
    drafter = subject.drafting.engine.drafter
    about = {"temperature": temperature, "drafter": drafter.name, "nodes": drafter.nodes}
    if len(runs) < len(prompts):
        _warm_up(ways, prompts, (temperature, trial.tokens, until), failed)
    for number in range(len(runs), len(prompts)):
        names = [name for name in ways if name not in failed]
        first = number % max(1, len(names))
        row: Found = {}
        for name in names[first:] + names[:first]:
            wanted = (prompts[number], trial.seed + number, temperature, trial.tokens)
            if (written := _write(name, ways[name], wanted, until, failed)) is not None:
                row[name] = written._asdict()
        runs.append(row)
        compiled = any(isinstance(way, TransformersWay) and way.is_compiled for way in ways.values())
        found = {**about, "ways": summary(runs), "failed": failed, "transformers_compiled": compiled, "runs": runs}
        yield {**found, "left": len(prompts) - len(runs)}


def _warm_up(
    ways: Mapping[str, Way], prompts: Sequence[list[int]], how: tuple[float, int, float], failed: dict[str, str]
) -> None:
    """Generate a text after the longest prompt, for which transformers makes its largest static cache, and one after
    the shortest, so that spectr captures steps of every size; a few tokens are enough where nothing is captured."""
    temperature, tokens, until = how
    longest, shortest = max(prompts, key=len), min(prompts, key=len)
    for name, way in ways.items():
        most = tokens if way.captures else min(tokens, _WARM_TOKENS)
        for prompt in (longest, shortest) if way.captures else (longest,):
            if name not in failed:
                _write(name, way, (prompt, _WARM_SEED, temperature, most), until, failed)


def _write(
    name: str, way: Way, wanted: tuple[Sequence[int], int, float, int], until: float, failed: dict[str, str]
) -> Written | None:
    """Generate a text. A way of transformers that fails or takes too long is left out from then on."""
    if name in (SPECTR, PLAIN):
        return way.write(*wanted)
    try:
        with bounded(max(_LEAST_SECONDS, until - time.monotonic())):
            return way.write(*wanted)
    except Exception as error:  # an error of transformers, of any kind
        failed[name] = said(error)
        return None


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Found]:
    """Return for each way the median rate, tokens per call, and medians of its ratios to other ways text by text."""
    found: dict[str, Found] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        own = [run[name] for run in runs if name in run]
        calls = sum(one["calls"] for one in own)
        found[name] = {
            "texts": len(own),
            "tokens": sum(one["tokens"] for one in own),
            "tokens_per_second": statistics.median(map(_rate, own)),
            "tokens_per_call": sum(one["tokens"] for one in own) / calls if calls else None,
            "ratios": {other: _ratio(runs, name, other) for other in _AGAINST if other != name},
        }
    return found


def _rate(one: Mapping[str, Any]) -> float:
    return float(one["tokens"] / one["seconds"])


def _ratio(runs: Sequence[Mapping[str, Any]], name: str, other: str) -> float | None:
    both = [run for run in runs if name in run and other in run and run[other]["tokens"]]
    return statistics.median(_rate(run[name]) / _rate(run[other]) for run in both) if both else None
