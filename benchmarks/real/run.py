"""Runs one part for each task and temperature, and one for the scores of each task."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from benchmarks.real.order import Order, Trial
from benchmarks.real.problems import ARITHMETIC, CODE, Problem, problems
from benchmarks.real.scores import scores
from benchmarks.real.speed import speed
from benchmarks.real.ways import Subject, subject_of
from benchmarks.record import Circumstances, Found, Part, Record, chosen, measure

__all__ = ["part_names", "run"]

_SCORES = "scores_"


def part_names(trial: Trial) -> list[str]:
    """Return the parts in the order in which they run. HumanEval has a score only if programs may be run."""
    graded = (*ARITHMETIC, *(CODE if trial.run_code else ()))
    timed = [f"{task}_{temperature:g}" for task in trial.tasks for temperature in trial.temperatures]
    return [*timed, *(f"{_SCORES}{task}" for task in trial.tasks if task in graded and trial.score_temperatures)]


def _task(name: str) -> str:
    return name.removeprefix(_SCORES) if name.startswith(_SCORES) else name.rpartition("_")[0]


def _part(name: str, subject: Subject, every: list[Problem], before: Found) -> Part:
    if name.startswith(_SCORES):
        return partial(scores, subject, every, before)
    return partial(speed, subject, every, float(name.rpartition("_")[2]), before)


def run(order: Order, told: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results. A part that was interrupted continues if its
    settings are the same."""
    names = chosen(part_names(order.trial), order.only)
    record = Record(order.out, order.about(), "benchmarks.real")
    missing = [name for name in names if order.again or not record.is_done(name)]
    told(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if not missing:
        return record.data
    data = {task: problems(task, order.data, told) for task in dict.fromkeys(map(_task, missing))}
    subject = subject_of(order, told)
    settings = {"trial": json.loads(json.dumps(asdict(order.trial)))}
    how = Circumstances(order.command, subject.plain.opened.target.device, settings, 60 * order.minutes)
    for name in missing:
        before = record.parts.get(name, {})
        kept = before if not order.again and before.get("trial") == settings["trial"] else {}
        measure(name, _part(name, subject, data[_task(name)], kept), how, record, told)
    return record.data
