"""`python -m benchmarks.fleet`: traffic on 1 to 1,000 replicas, simulated event by event, beside the capacity model.

Requests arrive at random, are routed, wait, have their prompts read a chunk between two steps, and share the steps of a
replica with others. Replicas fail at random: their requests go on elsewhere from the text so far, which is read there.
The seconds of a step are those of `benchmarks.capacity`; nothing runs on a GPU.
"""

import hashlib
import heapq
import json
import random
import statistics
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.capacity import Estimate, Replica, Traffic, hit_rate
from benchmarks.command import command_line, run_command
from spectr.bench.journal import write_atomically
from spectr.cli.output import JsonFlag, numbers, print_json, talk
from spectr.errors import ArgumentError

__all__ = ["ROUTERS", "Fleet", "Found", "Load", "SimulatedRequest", "fleet", "simulate"]

_MODULE = "benchmarks.fleet"
_CHUNK, _ALONE = 512, 8
_POINTS = 64  # places of a replica on the ring
_BOUND = 1.25  # times the average load that a replica may have before requests spill over


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic of a whole fleet, and how its replicas fail."""

    rate: float  # requests a second
    beginnings: int = 512  # common beginnings of prompts, of which some are much more frequent than others
    shared: int = 800  # tokens of a beginning
    own: float = 200.0  # tokens after it, on average
    output: float = 300.0  # tokens, on average
    kept: int = 16  # beginnings that a replica remembers
    life: float = 0.0  # seconds until a replica fails, on average; 0: it does not
    restart: float = 60.0  # seconds until it is back

    def popularity(self) -> list[float]:
        """How frequent each beginning is: Zipf's law."""
        weights = [1 / rank for rank in range(1, self.beginnings + 1)]
        return [weight / sum(weights) for weight in weights]


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request on its way."""

    beginning: int
    prompt: int
    output: int
    arrived: float
    first: float | None = None  # when its first token came
    ended: float | None = None
    written: float = 0.0  # tokens so far
    target: float = 0.0  # of its replica's clock, at which it ends
    unread: float = 0.0
    moves: int = 0


@dataclass(slots=True, eq=False)
class _Machine:
    """A replica: rows that share steps, and prompts that are read one after the other."""

    model: Replica
    kept: int
    now: float = 0.0
    clock: float = 0.0  # tokens that every active row has got since the beginning
    active: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)  # by where the clock ends them
    reading: deque[SimulatedRequest] = field(default_factory=deque)
    known: OrderedDict[int, None] = field(default_factory=OrderedDict)
    version: int = 0
    is_up: bool = True
    hits: int = 0
    misses: int = 0
    _count: int = 0
    _speeds: dict[int, tuple[float, float]] = field(default_factory=dict)

    def load(self) -> int:
        """Requests here."""
        return len(self.active) + len(self.reading)

    def _rates(self) -> tuple[float, float]:
        """Tokens a second that a row gets, and that are read."""
        rows = len(self.active)
        step, gain = self._step(rows)
        if not self.reading or rows >= self.model.rows:
            return (gain / step if rows else 0.0), 0.0
        chunk = _CHUNK * (1 if rows else _ALONE)
        turn = self.model.reading(chunk) + (step if rows else 0.0)
        return gain / turn, chunk / turn

    def _step(self, rows: int) -> tuple[float, float]:
        """Seconds of a step, and the tokens that it gives a row."""
        if rows not in self._speeds:
            at = max(rows, 1)
            self._speeds[rows] = (self.model.step(at, 1150.0), self.model.gain(self.model.nodes(at)))
        return self._speeds[rows]

    def advance(self, now: float) -> list[SimulatedRequest]:
        """Let time pass up to an event; the requests that end with it."""
        speed, reads = self._rates()
        passed, self.now = now - self.now, now
        self.clock += speed * passed
        if reads and self.reading:
            self.reading[0].unread -= reads * passed
        ended = []
        while self.active and self.active[0][0] <= self.clock + 1e-6:
            asked = heapq.heappop(self.active)[2]
            asked.ended, asked.written = now, asked.output
            ended.append(asked)
        while self.reading and self.reading[0].unread <= 1e-6 and len(self.active) < self.model.rows:
            self._begin(self.reading.popleft())
        return ended

    def _begin(self, asked: SimulatedRequest) -> None:
        """A request whose prompt has been read takes part in steps."""
        asked.target = self.clock + asked.output - asked.written
        self._count += 1
        heapq.heappush(self.active, (asked.target, self._count, asked))
        if asked.first is None:
            asked.first = self.now + self._step(len(self.active))[0]

    def take(self, asked: SimulatedRequest, shared: int) -> None:
        """A request comes, with what was written of it elsewhere; its beginning of `shared` tokens is not read if it is
        known here."""
        knows = asked.beginning in self.known
        self.hits, self.misses = self.hits + knows, self.misses + (not knows)
        self.known[asked.beginning] = None
        self.known.move_to_end(asked.beginning)
        if len(self.known) > self.kept:
            self.known.popitem(last=False)
        asked.unread = asked.prompt + asked.written - (shared if knows else 0)
        self.reading.append(asked)

    def next_event(self) -> float | None:
        """When something changes here by itself."""
        speed, reads = self._rates()
        times = []
        if self.active and speed:
            times.append(self.now + max(0.0, self.active[0][0] - self.clock) / speed)
        if self.reading and reads:
            times.append(self.now + max(0.0, self.reading[0].unread) / reads)
        return min(times, default=None)

    def fail(self) -> list[SimulatedRequest]:
        """Lose everything; the requests that have to go on elsewhere, with what was written of each."""
        moved = [*(asked for _, _, asked in self.active), *self.reading]
        for target, _, asked in self.active:
            asked.written = asked.output - max(0.0, target - self.clock)
        self.active, self.reading, self.is_up = [], deque(), False
        self.known.clear()
        return moved


Router = Callable[["Fleet", SimulatedRequest], int]


def _up(fleet: "Fleet") -> int:
    """Some replica that is up."""
    while True:
        at = fleet.draw.randrange(len(fleet.machines))
        if fleet.machines[at].is_up:
            return at


def _anywhere(fleet: "Fleet", _: SimulatedRequest) -> int:
    return _up(fleet)


def _lesser(fleet: "Fleet", _: SimulatedRequest) -> int:
    """Of two replicas the one with fewer requests."""
    return min(_up(fleet), _up(fleet), key=lambda at: fleet.machines[at].load())


def _by_beginning(fleet: "Fleet", asked: SimulatedRequest) -> int:
    """The replica that the beginning belongs to on a ring; the next one where that has too much to do."""
    bound = _BOUND * (fleet.in_flight + 1) / len(fleet.machines) + 1
    start = bisect(fleet.ring, (_point(f"beginning {asked.beginning}"), 0))
    for step in range(len(fleet.ring)):
        at = fleet.ring[(start + step) % len(fleet.ring)][1]
        if fleet.machines[at].is_up and fleet.machines[at].load() < bound:
            return at
    return _up(fleet)


ROUTERS: dict[str, Router] = {"random": _anywhere, "two": _lesser, "prefix": _by_beginning}


def _point(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


@dataclass(slots=True)
class Found:
    """What a simulation gave, of requests that arrived after the first part of it."""

    requests: int
    tokens_per_second: float
    rows: float  # in flight on a replica, on average
    seconds_per_token: float
    first_token: float  # seconds, on average
    first_token_p99: float
    hits: float  # share of prompts whose beginning was known
    moved: int  # times that a request went on elsewhere
    lost: int  # requests that ended without all their tokens


class Fleet:
    """Replicas, requests and a clock."""

    def __init__(self, model: Replica, count: int, load: Load, router: str, seed: int = 0) -> None:
        if router not in ROUTERS:
            raise ArgumentError(f"router must be one of {', '.join(ROUTERS)}, got {router!r}")
        self.draw, self.load, self.route = random.Random(seed), load, ROUTERS[router]
        self.machines = [_Machine(model, load.kept) for _ in range(count)]
        self.ring = sorted((_point(f"{at} {n}"), at) for at in range(count) for n in range(_POINTS))
        self._sums = list(accumulate(load.popularity()))
        self.asked: list[SimulatedRequest] = []
        self.in_flight, self.area, self.moved, self.since = 0, 0.0, 0, 0.0
        self._events: list[tuple[float, int, str, int, int]] = []
        self._number = 0

    def _plan(self, time: float, kind: str, at: int = 0, version: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, kind, at, version))

    def run(self, seconds: float) -> None:
        """Let requests arrive for so long, and go on until all have ended."""
        self._plan(self.draw.expovariate(self.load.rate), "arrival")
        if self.load.life:
            for at in range(len(self.machines)):
                self._plan(self.draw.expovariate(1 / self.load.life), "failure", at)
        while self._events:
            now, _, kind, at, version = heapq.heappop(self._events)
            if kind == "step" and self.machines[at].version != version:
                continue
            self.area += self.in_flight * (min(now, seconds) - min(self.since, seconds))
            self.since = now
            if kind == "arrival":
                self._arrive(now, seconds)
            elif kind == "step":
                self._changed(at, self.machines[at].advance(now))
            elif now < seconds:
                (self._fail if kind == "failure" else self._recover)(now, at)

    def _arrive(self, now: float, seconds: float) -> None:
        load, draw = self.load, self.draw
        beginning = bisect(self._sums, draw.random() * self._sums[-1])
        own, output = (1 + int(draw.expovariate(1 / mean)) for mean in (load.own, load.output))
        made = SimulatedRequest(min(beginning, load.beginnings - 1), load.shared + own, output, now)
        self.asked.append(made)
        self.in_flight += 1
        self._send(now, made)
        later = now + draw.expovariate(load.rate)
        if later < seconds:
            self._plan(later, "arrival")

    def _send(self, now: float, asked: SimulatedRequest) -> None:
        """Give a request to a replica."""
        at = self.route(self, asked)
        machine = self.machines[at]
        ended = machine.advance(now)
        machine.take(asked, self.load.shared)
        self._changed(at, ended)

    def _changed(self, at: int, ended: list[SimulatedRequest]) -> None:
        self.in_flight -= len(ended)
        machine = self.machines[at]
        machine.version += 1
        if (time := machine.next_event()) is not None:
            self._plan(time, "step", at, machine.version)

    def _fail(self, now: float, at: int) -> None:
        """A replica fails, unless it is the last; its requests go on elsewhere."""
        if sum(machine.is_up for machine in self.machines) < 2:
            self._plan(now + self.draw.expovariate(1 / self.load.life), "failure", at)
            return
        self.in_flight -= len(self.machines[at].advance(now))
        moved = self.machines[at].fail()
        self.machines[at].version += 1
        self.moved += len(moved)
        for asked in moved:
            asked.moves += 1
            self._send(now, asked)
        self._plan(now + self.load.restart, "recovery", at)

    def _recover(self, now: float, at: int) -> None:
        machine = self.machines[at]
        machine.advance(now)
        machine.is_up = True
        self._plan(now + self.draw.expovariate(1 / self.load.life), "failure", at)

    def found(self, seconds: float, warm: float) -> Found:
        """What happened to the requests that arrived after `warm` seconds."""
        late = [asked for asked in self.asked if asked.arrived >= warm]
        firsts = sorted(asked.first - asked.arrived for asked in late if asked.first is not None)
        rates = [(a.ended - a.first) / a.output for a in late if a.ended is not None and a.first is not None]
        hits, misses = (sum(getattr(machine, name) for machine in self.machines) for name in ("hits", "misses"))
        return Found(
            requests=len(late),
            tokens_per_second=sum(asked.output for asked in self.asked) / seconds,
            rows=self.area / seconds / len(self.machines),
            seconds_per_token=statistics.fmean(max(0.0, rate) for rate in rates),
            first_token=statistics.fmean(firsts),
            first_token_p99=firsts[int(0.99 * len(firsts))],
            hits=hits / (hits + misses),
            moved=self.moved,
            lost=sum(asked.ended is None or round(asked.written) != asked.output for asked in self.asked),
        )


def simulate(model: Replica, count: int, load: Load, router: str, seconds: float, seed: int = 0) -> Found:
    """A fleet under some load for so many seconds, of which the first fifth is not counted."""
    made = Fleet(model, count, load, router, seed)
    made.run(seconds)
    return made.found(seconds, seconds / 5)


def expected(model: Replica, count: int, load: Load, router: str) -> tuple[float, Estimate]:
    """The share of known beginnings, and what the capacity model says of one replica."""
    popularity = load.popularity()
    kept = load.kept * (count if router == "prefix" else 1)  # by beginning, every replica remembers others
    hits = hit_rate(popularity, kept)
    prompt = load.shared + load.own
    unread = load.own + (1 - hits) * load.shared
    spread = (load.own**2 + hits * (1 - hits) * load.shared**2) ** 0.5 / unread
    traffic = Traffic(load.rate / count, prompt, load.output, 1 - unread / prompt, spread)
    return hits, model.under(traffic)


def _row(model: Replica, count: int, load: Load, router: str, seconds: float) -> dict[str, Any]:
    """One case: simulated, and estimated."""
    hits, meant = expected(model, count, load, router)
    found = simulate(model, count, load, router, seconds)
    names = ("rows", "seconds_per_token", "first_token")
    return {
        "replicas": count, "router": router, "rate": load.rate, "busy": meant.busy, "life": load.life,
        "simulated": {name: getattr(found, name) for name in Found.__slots__},
        "estimated": {"hits": hits, **{name: getattr(meant, name) for name in names}},
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    found, meant = row["simulated"], row["estimated"]
    parts = [
        f"{row['replicas']:>5} replicas, {row['router']:<6} {row['rate']:>8.1f} requests/s",
        f"hits {found['hits']:.2f} ({meant['hits']:.2f})",
        f"rows {found['rows']:.1f} ({meant['rows']:.1f})",
        f"ms per token {1e3 * found['seconds_per_token']:.2f} ({1e3 * meant['seconds_per_token']:.2f})",
        f"first token {1e3 * found['first_token']:.0f} ms ({1e3 * meant['first_token']:.0f})",
        f"99 % {1e3 * found['first_token_p99']:.0f} ms, moved {found['moved']}, lost {found['lost']}",
    ]
    return "; ".join(parts)


def fleet(
    replicas: Annotated[str, typer.Option(metavar="N,N,...", help="How many there are.")] = "1,10,100,1000",
    rate: Annotated[float, typer.Option(min=0.01, metavar="R", help="Requests a second of each replica.")] = 6.0,
    routers: Annotated[str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(ROUTERS)}.")] = "two,prefix",
    life: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds until a replica fails, on average; 0: never.")
    ] = 0.0,
    requests: Annotated[int, typer.Option(min=100, metavar="N", help="Least requests of a case.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Least seconds of a case.")] = 20.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the cases there, as JSON.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate traffic on fleets of several sizes, and compare with the capacity model (in brackets)."""
    model, rows = Replica(), list[dict[str, Any]]()
    for count in numbers("--replicas", replicas, int, 1):
        for router in routers.split(","):
            load = Load(rate * count, life=life)
            rows.append(_row(model, count, load, router.strip(), max(seconds, requests / load.rate)))
            talk(_line(rows[-1]))
    made = {"command": command_line(_MODULE), "cases": rows}
    if out is not None:
        write_atomically(out, json.dumps(made, indent=1) + "\n")
    if as_json:
        print_json(made)


if __name__ == "__main__":
    run_command(_MODULE, fleet)
