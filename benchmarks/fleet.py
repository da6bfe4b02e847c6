"""`python -m benchmarks.fleet`: simulates traffic on 1 to 1,000 replicas and compares it with the capacity model.

The simulation is event-driven. Requests arrive at random, are routed and wait; their prompts are prefilled, a chunk
between two steps, and then they share the steps of a replica. Replicas fail at random. The requests of a failed
replica continue elsewhere from the text so far, which is prefilled there. The times of steps are those of
`benchmarks.capacity`; nothing runs on a GPU.
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
_POINTS = 64  # points of each replica on the hash ring
_BOUND = 1.25  # load of a replica, relative to the average, above which requests spill over to the next one


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic of a whole fleet, and how its replicas fail."""

    rate: float  # requests per second
    beginnings: int = 512  # number of shared prompt prefixes
    shared: int = 800  # tokens of a prefix
    own: float = 200.0  # average tokens of a prompt after the prefix
    output: float = 300.0  # average tokens of a text
    kept: int = 16  # prefixes that the cache of a replica holds
    life: float = 0.0  # average seconds until a replica fails; 0: never
    restart: float = 60.0  # seconds until a failed replica is back

    def popularity(self) -> list[float]:
        """Return the frequency of each prefix, by Zipf's law."""
        weights = [1 / rank for rank in range(1, self.beginnings + 1)]
        return [weight / sum(weights) for weight in weights]


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """The state of a request in the simulation."""

    beginning: int
    prompt: int
    output: int
    arrived: float
    first: float | None = None  # time of its first token
    ended: float | None = None
    written: float = 0.0  # tokens so far
    target: float = 0.0  # value of its replica's token clock at which it ends
    unread: float = 0.0
    moves: int = 0


@dataclass(slots=True, eq=False)
class _Machine:
    """A replica: rows that share steps, and prompts that are prefilled one after the other."""

    model: Replica
    kept: int
    now: float = 0.0
    clock: float = 0.0  # tokens that a row active since the start would have received
    active: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)  # a heap by `target`
    reading: deque[SimulatedRequest] = field(default_factory=deque)
    known: OrderedDict[int, None] = field(default_factory=OrderedDict)
    version: int = 0
    is_up: bool = True
    hits: int = 0
    misses: int = 0
    _count: int = 0
    _speeds: dict[int, tuple[float, float]] = field(default_factory=dict)

    def load(self) -> int:
        """Return the number of requests on this replica."""
        return len(self.active) + len(self.reading)

    def _rates(self) -> tuple[float, float]:
        """Return the tokens per second of each row, and those of prefill."""
        rows = len(self.active)
        step, gain = self._step(rows)
        if not self.reading or rows >= self.model.rows:
            return (gain / step if rows else 0.0), 0.0
        chunk = _CHUNK * (1 if rows else _ALONE)
        turn = self.model.reading(chunk) + (step if rows else 0.0)
        return gain / turn, chunk / turn

    def _step(self, rows: int) -> tuple[float, float]:
        """Return the seconds of a step, and the tokens that it gives each row."""
        if rows not in self._speeds:
            at = max(rows, 1)
            self._speeds[rows] = (self.model.step(at, 1150.0), self.model.gain(self.model.nodes(at)))
        return self._speeds[rows]

    def advance(self, now: float) -> list[SimulatedRequest]:
        """Advance to the time of an event, and return the requests that have ended."""
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
        """Make a row of a request whose prompt has been prefilled."""
        asked.target = self.clock + asked.output - asked.written
        self._count += 1
        heapq.heappush(self.active, (asked.target, self._count, asked))
        if asked.first is None:
            asked.first = self.now + self._step(len(self.active))[0]

    def take(self, asked: SimulatedRequest, shared: int) -> None:
        """Accept a request, with the text that other replicas have generated for it.

        The first `shared` tokens of its prompt need no prefill if they are in the cache.
        """
        knows = asked.beginning in self.known
        self.hits, self.misses = self.hits + knows, self.misses + (not knows)
        self.known[asked.beginning] = None
        self.known.move_to_end(asked.beginning)
        if len(self.known) > self.kept:
            self.known.popitem(last=False)
        asked.unread = asked.prompt + asked.written - (shared if knows else 0)
        self.reading.append(asked)

    def next_event(self) -> float | None:
        """Return the time at which a row or a prefill will end next."""
        speed, reads = self._rates()
        times = []
        if self.active and speed:
            times.append(self.now + max(0.0, self.active[0][0] - self.clock) / speed)
        if self.reading and reads:
            times.append(self.now + max(0.0, self.reading[0].unread) / reads)
        return min(times, default=None)

    def fail(self) -> list[SimulatedRequest]:
        """Lose the whole state, and return the requests that must continue elsewhere, with their text so far."""
        moved = [*(asked for _, _, asked in self.active), *self.reading]
        for target, _, asked in self.active:
            asked.written = asked.output - max(0.0, target - self.clock)
        self.active, self.reading, self.is_up = [], deque(), False
        self.known.clear()
        return moved


Router = Callable[["Fleet", SimulatedRequest], int]


def _up(fleet: "Fleet") -> int:
    """Return a random replica that is up."""
    while True:
        at = fleet.draw.randrange(len(fleet.machines))
        if fleet.machines[at].is_up:
            return at


def _anywhere(fleet: "Fleet", _: SimulatedRequest) -> int:
    return _up(fleet)


def _lesser(fleet: "Fleet", _: SimulatedRequest) -> int:
    """Return the less loaded of two random replicas."""
    return min(_up(fleet), _up(fleet), key=lambda at: fleet.machines[at].load())


def _by_beginning(fleet: "Fleet", asked: SimulatedRequest) -> int:
    """Return the replica to which the hash ring maps the prefix, or the next one on the ring that is not overloaded."""
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
    """The results of a simulation, without the requests that arrived during the warm-up."""

    requests: int
    tokens_per_second: float
    rows: float  # average requests in flight per replica
    seconds_per_token: float
    first_token: float  # average seconds to the first token
    first_token_p99: float
    hits: float  # hit rate of the prefix caches
    moved: int  # times that a request continued on another replica
    lost: int  # requests that ended without all of their tokens


class Fleet:
    """The simulation: replicas, requests and a queue of events."""

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
        """Let requests arrive for `seconds` seconds, and continue until all have ended."""
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
        """Route a request to a replica."""
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
        """Let a replica fail unless it is the last one, and route its requests to others."""
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
        """Return the results for the requests that arrived after `warm` seconds."""
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
    """Simulate a fleet under a load for `seconds` seconds, of which the first fifth is the warm-up."""
    made = Fleet(model, count, load, router, seed)
    made.run(seconds)
    return made.found(seconds, seconds / 5)


def expected(model: Replica, count: int, load: Load, router: str) -> tuple[float, Estimate]:
    """Return the expected hit rate, and the capacity model's estimate for one replica."""
    popularity = load.popularity()
    kept = load.kept * (count if router == "prefix" else 1)  # routed by prefix, the replicas hold different prefixes
    hits = hit_rate(popularity, kept)
    prompt = load.shared + load.own
    unread = load.own + (1 - hits) * load.shared
    spread = (load.own**2 + hits * (1 - hits) * load.shared**2) ** 0.5 / unread
    traffic = Traffic(load.rate / count, prompt, load.output, 1 - unread / prompt, spread)
    return hits, model.under(traffic)


def _row(model: Replica, count: int, load: Load, router: str, seconds: float) -> dict[str, Any]:
    """Simulate and estimate one case."""
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
    replicas: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of replicas.")] = "1,10,100,1000",
    rate: Annotated[float, typer.Option(min=0.01, metavar="R", help="Requests per second and replica.")] = 6.0,
    routers: Annotated[str, typer.Option(metavar="NAME,...", help=f"Routers: {', '.join(ROUTERS)}.")] = "two,prefix",
    life: Annotated[
        float, typer.Option(min=0, metavar="S", help="Average seconds until a replica fails; 0: never.")
    ] = 0.0,
    requests: Annotated[int, typer.Option(min=100, metavar="N", help="Minimum requests per case.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Minimum simulated seconds per case.")] = 20.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the cases to this JSON file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate traffic on fleets of several sizes, and compare it with the capacity model (in brackets)."""
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
