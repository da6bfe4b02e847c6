"""Runs one part for each task and temperature, and one for the scores of each task."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.real.order import Order, Trial
from benchmarks.real.problems import ARITHMETIC, CODE, Problem, problems
from benchmarks.real.scores import scores
from benchmarks.real.speed import speed
from benchmarks.real.ways import Subject, subject_of
from benchmarks.record import Circumstances, Found, Record, chosen, measure

__all__ = ["Measurement", "measurements", "run"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One part of a run: the speed of a task at a temperature, or its scores at all temperatures."""

    task: str
    temperature: float | None = None  # None: scores

    @property
    def name(self) -> str:
        """The name of the part in the result file."""
        return f"scores_{self.task}" if self.temperature is None else f"{self.task}_{self.temperature:g}"

    def part(self, subject: Subject, every: list[Problem], before: Found) -> Iterator[Found]:
        """Yield the results so far, repeatedly."""
        if self.temperature is None:
            found = scores(subject, every, before)
        else:
            found = speed(subject, every, self.temperature, before)
        return ({"task": self.task, **one} for one in found)


def measurements(trial: Trial) -> dict[str, Measurement]:
    """Return the parts by name, in the order in which they run. HumanEval has a score only if programs may be run."""
    graded = (*ARITHMETIC, *(CODE if trial.run_code else ()))
    timed = [Measurement(task, temperature) for task in trial.tasks for temperature in trial.temperatures]
    scored = [Measurement(task) for task in trial.tasks if task in graded and trial.score_temperatures]
    return {one.name: one for one in (*timed, *scored)}


def run(order: Order, say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results. A part that was interrupted continues if its
    settings are the same."""
    every = measurements(order.trial)
    names = chosen(every, order.only)
    record = Record(order.out, order.about(), "benchmarks.real")
    missing = [name for name in names if order.again or not record.is_done(name)]
    say(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if not missing:
        return record.data
    data = {task: problems(task, order.data, say) for task in dict.fromkeys(every[name].task for name in missing)}
    subject = subject_of(order, say)
    settings = {"trial": json.loads(json.dumps(asdict(order.trial)))}
    how = Circumstances(order.command, subject.plain.opened.target.device, settings, 60 * order.minutes)
    for name in missing:
        before = {} if order.again else record.begun(name, settings)
        measure(name, partial(every[name].part, subject, data[every[name].task], before), how, record, say)
    return record.data
