"""Runs one part for each number of clients, and a soak test."""

import copy
import gc
import itertools
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.inflate.speed import graphs_of
from benchmarks.record import Circumstances, Found, Part, Record, chosen, measure
from benchmarks.serving.alone import run_alone
from benchmarks.traffic.flow import percentiles
from benchmarks.traffic.order import Order
from benchmarks.traffic.subject import DEFAULT, Subject, subject_of
from spectr.engine import Engine
from spectr.lm import LM
from spectr.serve import Limits, ServerSettings
from spectr.serve.run import background, exclude_from_collection

__all__ = ["run"]

_CLIENT = Path(__file__).with_name("client.py")  # run as a file, since a module would import torch first
_ALONE, _HTTP = "engine", "server"
_WARM_UPS = 3  # the most runs before the measured ones
_EVERY = 10.0  # seconds between two measurements of memory


def run(order: Order, requests: int, soak: tuple[int, float], say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results.

    `requests` is the number per client, and `soak` the clients and minutes of the soak test. A part with clients that
    was interrupted continues if its settings are the same.
    """
    names = [*(f"clients_{count}" for count in order.load.in_flight), *([f"soak_{soak[0]}"] if soak[1] else [])]
    about = {**order.about(), "what": "the server under load, against the engine alone"}
    record = Record(order.out, about, "benchmarks.serving")
    missing = [n for n in chosen(names, order.only) if order.again or not record.is_done(n)]
    say(f"to measure: {', '.join(missing)}" if missing else "everything is measured already")
    if missing:
        subject = subject_of(order, say)
        settings = {"load": json.loads(json.dumps(asdict(order.load))), "requests": requests}
        how = Circumstances(order.command, subject.target.device, settings)
        for name in missing:
            if name.startswith("soak"):
                part: Part = partial(_soak, subject, *soak)
            else:
                before = {} if order.again else record.begun(name, settings)
                part = partial(_clients, subject, int(name.rpartition("_")[2]), requests, before)
            measure(name, part, how, record, say)
    return record.data


def _lm(subject: Subject, rows: int) -> LM:
    """Return the model as users load it, but ignoring stop tokens, so that texts have the requested length."""
    made = copy.copy(subject.lm)
    made.engine = subject.engine(DEFAULT, rows)
    return made


@contextmanager
def _serving(lm: LM, count: int) -> Iterator[str]:
    """Run a server within the block, and yield its address. What exists by then is excluded from garbage collection, as
    `spectr serve` does. Then free the memory of its rows: FastAPI keeps the latest apps in a cache, and an app refers
    to its engine."""
    limits = Limits(running=max(64, count), queue=10_000, texts=64)
    exclude_from_collection()
    try:
        with background(lm, ServerSettings(port=0, name="measured", receipts=False, limits=limits)) as (url, _):
            yield url
    finally:
        gc.unfreeze()
        lm.engine.scheduler.close()


def _bodies(subject: Subject, seed: int, count: int) -> list[Found]:
    """Return request bodies as a client sends them."""
    stream = subject.stream(seed)
    made = [stream.next() for _ in range(count)]
    return [
        {"prompt": list(r.prompt), "max_tokens": r.max_new_tokens, "seed": r.seed, "temperature": r.policy.temperature}
        for r in made
    ]


def _over_http(url: str, count: int, bodies: list[Found], *more: str) -> list[Found]:
    command = [sys.executable, str(_CLIENT), url, str(count), *more]
    ran = subprocess.run(command, input=json.dumps(bodies), capture_output=True, text=True, check=True)
    found: list[Found] = json.loads(ran.stdout)
    return found


def _clients(subject: Subject, count: int, requests: int, before: Mapping[str, Any]) -> Iterator[Found]:
    """Measure engine and server in turns on the same requests; every repeat has new requests, and those that `before`
    has are not measured again.

    Both use one engine, whose captured graphs are kept. Requests of the engine alone have a cache scope of their own,
    so that neither way finds prefixes of the other.
    """
    repeats, scopes = subject.load.repeats, (f"engine {number}" for number in itertools.count())
    lm = _lm(subject, count)
    rows: dict[str, list[Found]] = {name: list(before.get("runs", {}).get(name, [])) for name in (_ALONE, _HTTP)}
    with _serving(lm, count) as url:
        ways: dict[str, Callable[[list[Found]], list[Found]]] = {
            _ALONE: lambda bodies: run_alone(lm, count, bodies, scope=next(scopes)),
            _HTTP: lambda bodies: _over_http(url, count, bodies),
        }
        _warm_up(subject, lm.engine, count, ways)
        for repeat in range(len(rows[_HTTP]), repeats):
            bodies = _bodies(subject, 2 + repeat, requests * count)
            order = list(ways) if repeat % 2 == 0 else list(reversed(ways))
            for name in order:
                graphs = graphs_of(lm.engine)
                row = _row(ways[name](bodies))
                rows[name].append({**row, "new_graphs": graphs_of(lm.engine) != graphs})
            yield {"clients": count, **_summary(rows), "runs": rows, "left": repeats - repeat - 1}


def _warm_up(subject: Subject, engine: Engine, count: int, ways: Mapping[str, Callable[[list[Found]], Any]]) -> None:
    """Run other requests until all graphs that such requests need are captured, a few times at most."""
    for attempt in range(_WARM_UPS):
        before = graphs_of(engine)
        for way in ways.values():
            way(_bodies(subject, 1_000_000 + attempt, 4 * count))
        if graphs_of(engine) == before:
            break


def _row(found: list[Found]) -> Found:
    """Summarise one run."""
    fine = [one for one in found if "error" not in one]
    if not fine:
        raise RuntimeError(f"all {len(found)} requests failed: {found[0]['error']}")
    seconds = max(one["last"] for one in fine) - min(one["sent"] for one in found)
    tokens = sum(one["tokens"] for one in fine)
    paces = [(one["last"] - one["first"]) / (one["tokens"] - 1) for one in fine if one["tokens"] > 1]
    return {
        "requests": len(found), "errors": len(found) - len(fine), "tokens": tokens, "seconds": seconds,
        "tokens_per_second": tokens / seconds, "events": sum(one["events"] for one in fine),
        "time_to_first_token": percentiles([one["first"] - one["sent"] for one in fine]),
        "time_per_output_token": percentiles(paces),
        "first_error": next((one["error"] for one in found if "error" in one), None),
    }  # fmt: skip


def _summary(rows: dict[str, list[Found]]) -> Found:
    """Return the medians of both ways, and the median of their ratios over the runs."""
    rates = {way: [row["tokens_per_second"] for row in found] for way, found in rows.items()}
    ratios = [http / alone for http, alone in zip(rates[_HTTP], rates[_ALONE], strict=True)]
    return {
        "tokens_per_second": {way: statistics.median(found) for way, found in rates.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _memory() -> int:
    """Return the resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmRSS"))


def _soak(subject: Subject, count: int, minutes: float) -> Iterator[Found]:
    """Keep clients busy for minutes, and record errors and memory."""
    lm, seen, is_over = _lm(subject, count), list[tuple[float, int]](), threading.Event()

    def watch() -> None:
        start = time.perf_counter()
        while not is_over.wait(_EVERY):
            seen.append((time.perf_counter() - start, _memory()))

    with _serving(lm, count) as url:
        _over_http(url, count, _bodies(subject, 1, 2 * count))
        threading.Thread(target=watch, daemon=True).start()
        found = _over_http(url, count, _bodies(subject, 2, 4000), str(60 * minutes))
        is_over.set()
    quarter = max(1, len(seen) // 4)
    early, late = ([size for _, size in part] for part in (seen[quarter : 2 * quarter], seen[-quarter:]))
    growth: Any = statistics.median(late) / statistics.median(early) if early and late else None
    yield {"clients": count, "minutes": minutes, **_row(found), "memory": seen, "memory_growth": growth, "left": 0}
