"""Runs the parts one after the other, each within its time limit, and writes results to disk as they come."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from benchmarks.cliffs.many import many
from benchmarks.cliffs.order import Order
from benchmarks.cliffs.parts import Subject, auto, lookup, prediction, settings
from benchmarks.record import Circumstances, Found, Record, chosen, measure
from spectr.lm import load

__all__ = ["PARTS", "run"]

PARTS: dict[str, Callable[[Subject], Iterator[Found]]] = {
    "settings": settings,
    "lookup": lookup,
    "auto": auto,
    "prediction": prediction,
    "many": many,
}
"""The parts, in the order in which they run."""


def run(order: Order, say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results."""
    names, record = chosen(PARTS, order.only), Record(order.out, order.about(), "benchmarks.cliffs")
    missing = [name for name in names if order.again or not record.is_done(name)]
    say(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if missing:
        subject = Subject(load(order.model, order.drafter, progress=say, compile=order.compile, **order.loading), order)
        device = subject.lm.opened.target.device
        how = Circumstances(order.command, device, {"trial": asdict(order.trial)}, 60 * order.minutes)
        for name in missing:
            measure(name, partial(PARTS[name], subject), how, record, say)
    return record.data
