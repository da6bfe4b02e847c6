"""The run: part after part, each within its time, and each on disk as far as it has come."""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from benchmarks.inflate.baselines import peers
from benchmarks.inflate.costs import bandwidth, calls
from benchmarks.inflate.order import Found, Order
from benchmarks.inflate.pair import Pair, build
from benchmarks.inflate.record import Record, said
from benchmarks.inflate.speed import let_go, memory, rows, speed
from benchmarks.inflate.steps import steps
from spectr.bench.machine import hardware, versions
from spectr.errors import UnknownNameError
from spectr.registry import nearest

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
"""In the order they are run; each gives what it has found so far, again and again."""


def _chosen(order: Order) -> list[str]:
    for name in order.only:
        if name not in PARTS:
            raise UnknownNameError(f"no part is called {name!r}; {nearest(name, list(PARTS))}")
    return [name for name in PARTS if not order.only or name in order.only]


def _made(order: Order, pair: Pair) -> Found:
    """How a part came about."""
    return {
        "command": order.command,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(pair.large.target.device),
        "versions": versions(),
        "grid": asdict(order.grid),
        "prompts": {"file": order.prompts.name, "count": len(pair.prompts)},
    }


@dataclass(frozen=True, slots=True)
class _Sitting:
    """A pair, what is asked of it, and where it is written down."""

    pair: Pair
    order: Order
    record: Record
    told: Callable[[str], None]

    def measure(self, name: str) -> None:
        """One part. If it fails it says why, keeps what it had, and leaves the others alone."""
        made, start = _made(self.order, self.pair), time.monotonic()
        try:
            self._follow(name, made, start)
        except Exception as error:  # of any kind: it is one part's, not the run's
            self.told(traceback.format_exc())
            part = self.record.parts.get(name, {})
            kept = part if part.get("begun") == made["begun"] else made
            self.record.put(name, {**kept, "error": said(error)})
        let_go()
        self.told(f"{name}: {_state(self.record.parts[name])} after {time.monotonic() - start:.0f} s")

    def _follow(self, name: str, made: Found, start: float) -> None:
        """Until it is whole, or its time is over."""
        for found in PARTS[name](self.pair, self.order):
            spent = time.monotonic() - start
            self.record.put(name, {**made, "spent_seconds": spent, **found})
            if spent > 60 * self.order.minutes:
                return


def _state(part: Found) -> str:
    return "failed" if "error" in part else f"{part['left']} left" if part["left"] else "done"


def run(order: Order, told: Callable[[str], None]) -> Found:
    """Measure what is missing, and give all there is."""
    chosen, record = _chosen(order), Record(order.out, order.about())
    missing = [name for name in chosen if order.again or not record.is_done(name)]
    told(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if missing:
        sitting = _Sitting(build(order, told), order, record, told)
        for name in missing:
            sitting.measure(name)
    return record.data
