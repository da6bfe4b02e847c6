"""Runs one part for each number of requests in flight, and one for prompts with shared prefixes."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from benchmarks.record import Circumstances, Found, Part, Record, chosen, measure
from benchmarks.traffic.cells import traffic
from benchmarks.traffic.order import Load, Order
from benchmarks.traffic.shared import shared
from benchmarks.traffic.subject import Subject, subject_of

__all__ = ["run"]

_SHARED = "shared"


def _names(load: Load) -> list[str]:
    return [*(f"in_flight_{count}" for count in load.in_flight), *([_SHARED] if load.shared else [])]


def _part(name: str, subject: Subject, before: Found) -> Part:
    if name == _SHARED:
        return partial(shared, subject)
    return partial(traffic, subject, int(name.rpartition("_")[2]), before)


def _is_done(record: Record, name: str, load: Load) -> bool:
    """Return whether a part is complete; one of traffic has all the ways that are to be measured."""
    ways = () if name == _SHARED else load.ways
    return record.is_done(name) and all(way in record.parts[name]["cells"] for way in ways)


def run(order: Order, say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results. A part that was interrupted continues if its load is
    the same."""
    names = chosen(_names(order.load), order.only)
    record = Record(order.out, order.about(), "benchmarks.traffic")
    missing = [name for name in names if order.again or not _is_done(record, name, order.load)]
    say(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if missing:
        subject = subject_of(order, say)
        load = {name: value for name, value in asdict(order.load).items() if name != "ways"}  # these may be added
        settings = {"load": json.loads(json.dumps(load))}
        how = Circumstances(order.command, subject.target.device, settings)
        for name in missing:
            before = {} if order.again else record.begun(name, settings)
            measure(name, _part(name, subject, before), how, record, say)
    return record.data
