"""Runs the parts one after the other, each within its time limit, and writes results to disk as they come."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from benchmarks.inflate.baselines import peers
from benchmarks.inflate.costs import bandwidth, calls
from benchmarks.inflate.order import Order
from benchmarks.inflate.pair import Pair, build
from benchmarks.inflate.speed import memory, rows, speed
from benchmarks.inflate.steps import steps
from benchmarks.record import Circumstances, Found, Record, chosen, measure

__all__ = ["PARTS", "run"]

PARTS: dict[str, Callable[[Pair, Order], Iterator[Found]]] = {
    "bandwidth": bandwidth,
    "calls": calls,
    "step": steps,
    "speed": speed,
    "rows": rows,
    "memory": memory,
    "peers": peers,
}
"""The parts, in the order in which they run; each repeatedly yields its results so far."""


def run(order: Order, say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results."""
    names, record = chosen(PARTS, order.only), Record(order.out, order.about(), "benchmarks.inflate")
    missing = [name for name in names if order.again or not record.is_done(name)]
    say(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if missing:
        pair = build(order, say)
        settings = {
            "grid": asdict(order.grid),
            "prompts": {"file": order.prompts.name, "count": len(pair.prompts)},
        }
        how = Circumstances(order.command, pair.large.target.device, settings, 60 * order.minutes)
        for name in missing:
            measure(name, partial(PARTS[name], pair, order), how, record, say)
    return record.data
