"""Scores of a task with the drafter and without, in batches.

Both ways answer the same problems with different seeds, so that the scores are two samples of one quantity if drafting
does not change the distribution. At temperature 0 there is no chance, and only rounding can make the texts differ.
"""

import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.real.order import PLAIN, SPECTR
from benchmarks.real.problems import Problem, is_right
from benchmarks.real.speed import prompts_of
from benchmarks.real.ways import SAMPLING, Subject
from benchmarks.record import Found
from spectr.lm import LM

__all__ = ["compared", "score", "scores"]

_APART = 1_000_003  # distance between the seeds of the two ways
_BATCHES = 4  # a call has prompts for so many batches: a text that ends makes room for the next
_RUNNERS = max(1, min(8, (os.cpu_count() or 1) // 2))  # programs that run at once
_NOTHING: Found = {"outcomes": "", "tokens": 0, "calls": 0, "seconds": 0.0, "cut": 0}

Asked = Sequence[tuple[Problem, list[int]]]


def scores(subject: Subject, problems: Sequence[Problem], before: Mapping[str, Any]) -> Iterator[Found]:
    """Answer problems in both ways at every temperature, and yield the scores so far; answers that `before` has are
    not generated again."""
    trial = subject.order.trial
    every = prompts_of(subject.drafting, problems, trial.score_tokens)[: trial.problems]
    models = {SPECTR: subject.drafting, PLAIN: subject.plain}
    if subject.order.drafter == "none":
        del models[SPECTR]
    cells: dict[str, dict[str, Found]] = {
        f"{t:g}": {way: dict(before.get("cells", {}).get(f"{t:g}", {}).get(way, _NOTHING)) for way in models}
        for t in trial.score_temperatures
    }
    size = _BATCHES * trial.rows
    for temperature, found in zip(trial.score_temperatures, cells.values(), strict=True):
        while (done := min(len(cell["outcomes"]) for cell in found.values())) < len(every):
            for at, (way, lm) in enumerate(models.items()):
                seed = trial.seed + _APART * (at + 1) + done
                more = _answers(lm, every[done : done + size], seed, temperature, trial.score_tokens)
                found[way] = {name: found[way][name] + more[name] for name in _NOTHING}
            yield _state(cells, len(every))


def _answers(lm: LM, asked: Asked, seed: int, temperature: float, tokens: int) -> Found:
    """Answer problems, and grade the answers."""
    start = time.perf_counter()
    outs = lm.generate(
        [prompt for _, prompt in asked], tokens, seeds=[seed + at for at in range(len(asked))],
        temperature=temperature, **SAMPLING,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    with ThreadPoolExecutor(_RUNNERS) as runners:
        right = list(runners.map(is_right, [problem for problem, _ in asked], [out.text for out in outs]))
    return {
        "outcomes": "".join("1" if one else "0" for one in right),
        "tokens": sum(len(out.tokens) for out in outs),
        "calls": sum(out.stats.steps for out in outs),
        "seconds": seconds,
        "cut": sum(out.finish_reason == "length" for out in outs),
    }


def _state(cells: dict[str, dict[str, Found]], count: int) -> Found:
    """Return everything so far, with the scores of each temperature."""
    rows = [{"temperature": float(t), **compared(found)} for t, found in cells.items()]
    left = sum(count - len(cell["outcomes"]) for found in cells.values() for cell in found.values())
    return {"problems": count, "rows": rows, "cells": cells, "left": left}


def score(cell: Mapping[str, Any]) -> Found:
    """Return the share of right answers with its standard error, and the costs of the texts."""
    count = len(cell["outcomes"])
    if not count:
        return {"count": 0}
    share = cell["outcomes"].count("1") / count
    return {
        "count": count,
        "score": share,
        "standard_error": math.sqrt(share * (1 - share) / count),
        "cut": cell["cut"] / count,  # share of answers that reached the limit of tokens
        "tokens_per_call": cell["tokens"] / cell["calls"] if cell["calls"] else None,
        "tokens_per_second": cell["tokens"] / cell["seconds"] if cell["seconds"] else None,
    }


def compared(found: Mapping[str, Mapping[str, Any]]) -> Found:
    """Return the scores of all ways, and the difference of drafting and plain decoding.

    Its standard error is that of the mean of the differences problem by problem: the problems are the same in both
    ways, so how hard they are does not add to it. z is None if no outcome differs.
    """
    ways = {way: score(cell) for way, cell in found.items()}
    if len(found) < 2 or min(len(cell["outcomes"]) for cell in found.values()) < 2:
        return {"ways": ways}
    pairs = zip(found[SPECTR]["outcomes"], found[PLAIN]["outcomes"], strict=True)
    differences = [int(one) - int(other) for one, other in pairs]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    return {
        "ways": ways,
        "difference": mean,
        "standard_error": error,
        "z": mean / error if error else None,
        "differing": sum(map(abs, differences)),
    }
