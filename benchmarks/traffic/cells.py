"""Measures one number of requests in flight: all ways on the same traffic, and the upper bound of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks.inflate.clock import joined
from benchmarks.inflate.speed import full_rate, graphs_of, settled
from benchmarks.record import Found, let_go
from benchmarks.traffic.flow import flow
from benchmarks.traffic.order import Load
from benchmarks.traffic.subject import PLAIN, Subject
from benchmarks.traffic.texts import Stream
from benchmarks.watch import watched
from spectr.engine import Engine, Request

__all__ = ["bound", "traffic"]

_SIZES = (256, 512, 1024, 2048, 4096, 8192)  # window sizes of captured steps, in tokens of a row
_WARM_TOKENS = 24  # enough for every shape to be run, captured and replayed
_RAMP = 0.25  # time before the measurement, as a share of the measured time
_TRIES = 2  # the most times that traffic is measured; the second time if the first captured new graphs
_SETTLING = 4  # the most times that unmeasured traffic runs
_MOST = 3600.0  # time limit in seconds; the loop ends by itself when there are no more requests
_TOGETHER = 0.0005  # seconds within which the host receives all rows of a step


def traffic(subject: Subject, in_flight: int, before: Mapping[str, Any]) -> Iterator[Found]:
    """Measure the ways one after the other, each on its own engine; a way that `before` has is not measured again."""
    cells: dict[str, Found] = dict(before.get("cells", {}))
    missing = [way for way in subject.load.ways if way not in cells]
    for at, way in enumerate(missing, start=1):
        cells[way] = _cell(subject, way, in_flight)
        let_go()
        yield {"in_flight": in_flight, "cells": _compared(cells), "left": len(missing) - at}


def _compared(cells: dict[str, Found]) -> dict[str, Found]:
    """Add the ratios of all ways to plain decoding, if that was measured."""
    if PLAIN not in cells:
        return cells
    found, plain = dict[str, Found](), cells[PLAIN]
    rate, static = plain["tokens_per_second"], plain["static"].get("steady_tokens_per_second")
    for way, cell in cells.items():
        ratio = cell["tokens_per_second"] / rate if rate else None
        own = cell["static"].get("steady_tokens_per_second")
        static_ratio = own / static if own and static else None
        ratios = {"ratio_to_plain": ratio, "static_ratio_to_plain": static_ratio}
        found[way] = cell if way == PLAIN else {**cell, **ratios}
    return found


def _cell(subject: Subject, way: str, in_flight: int) -> Found:
    load, engine = subject.load, subject.engine(way, in_flight)
    other, stream = subject.stream(1 + 2 * in_flight), subject.stream(2 * in_flight)  # the same for every way
    seconds = 60 * load.minutes
    _warm_up(engine, other, in_flight)
    static = _static(engine, other, in_flight)
    _settle(engine, other, in_flight, _RAMP * seconds)
    for _ in range(_TRIES):
        before = graphs_of(engine)
        found = flow(engine, stream.next, in_flight, load.delay, (_RAMP * seconds, seconds))
        after = graphs_of(engine)
        if before == after:
            break
    row, prefill = found.row(), _settled_prefill(engine, found.requests[: load.prefills], in_flight, static)
    graphs = {"before": [count for *_, count in before], "after": [count for *_, count in after]}
    limits = bound(prefill, static, row["tokens_per_second"])
    drafter = engine.drafter
    return {
        "drafter": drafter.name, "nodes": drafter.nodes, **row, "static": static, "prefill": prefill, **limits,
        "graphs": graphs, "new_graphs": before != after,
    }  # fmt: skip


def _warm_up(engine: Engine, stream: Stream, in_flight: int) -> None:
    """Make room for the longest request, and capture the shapes that the traffic will need.

    These are the batch sizes that are common with so many requests in flight, with all lengths for small batches.
    """
    load = stream.load
    prompt, output = load.prompt_tokens[1], load.output_tokens[1]
    engine.generate([stream.request(stream.texts.prompt(prompt), output, 1.0)])
    engine.warm_up(in_flight)
    if not any(lane.runner.captures for lane in engine.scheduler.lanes.values()):
        return
    lengths = _lengths(load)
    wide = 1 << (in_flight - 1).bit_length()
    for rows in [count for count in (wide, wide // 2, wide // 4) if count]:
        for length in lengths if rows <= 4 else lengths[-2:]:
            for first in range(len(load.temperatures) if rows <= 2 else 1):
                watched(engine, _side_by_side(stream, min(rows, in_flight), length, first), enough=1)


def _settle(engine: Engine, stream: Stream, in_flight: int, seconds: float) -> None:
    """Run other traffic for some seconds, again and again while that captures new graphs, a few times at most."""
    for _ in range(_SETTLING):
        before = graphs_of(engine)
        flow(engine, stream.next, in_flight, stream.load.delay, (0.0, seconds))
        if graphs_of(engine) == before:
            break


def _lengths(load: Load) -> list[int]:
    """Return a prompt length for every window size of a captured step."""
    most = load.prompt_tokens[1]
    return sorted({min(most, int(0.6 * size)) for size in _SIZES if 0.3 * size < most})


def _side_by_side(stream: Stream, rows: int, length: int, first: int) -> list[Request]:
    """Return requests with one long prompt and otherwise short ones."""
    every = stream.load.temperatures
    texts = [stream.texts.prompt(length if row == 0 else min(16, length)) for row in range(rows)]
    return [stream.request(text, _WARM_TOKENS, every[(first + row) % len(every)]) for row, text in enumerate(texts)]


def _static(engine: Engine, stream: Stream, rows: int) -> Found:
    """Measure the rate of full batches with short prompts."""
    load = stream.load
    batches = [stream.short(rows, load.static_tokens) for _ in range(-(-load.static_texts // rows))]
    return full_rate(rows, joined([settled(engine, batch) for batch in batches]))


def _settled_prefill(engine: Engine, requests: Sequence[Request], in_flight: int, static: Found) -> Found:
    """Measure prefill again as long as that captured new graphs, a few times at most."""
    for attempt in range(1, _SETTLING):
        before = graphs_of(engine)
        found = _prefill(engine, [_begun_anew(one, attempt, engine) for one in requests], in_flight, static)
        if graphs_of(engine) == before:
            break
    return found


def _prefill(engine: Engine, requests: Sequence[Request], in_flight: int, static: Found) -> Found:
    """Measure prefill separately: run prompts with one new token each.

    The steps that generate the new tokens are assumed to take as long as those of a full batch; the remaining time is
    the prefill.
    """
    fresh = iter([replace(request, max_new_tokens=1) for request in requests])
    found = flow(engine, lambda: next(fresh, None), in_flight, 0.0, (0.0, _MOST))
    ends = [event.time for event in found.log]
    seconds = max(ends) - found.submitted[0] if ends else 0.0
    rounds = 1 + sum(later - sooner > _TOGETHER for sooner, later in pairwise(ends))
    steps = rounds * static.get("steady_ms_per_step", 0.0) / 1e3
    output = sum(request.max_new_tokens for request in requests)
    return {
        "prompts": len(requests), "prompt_tokens": sum(len(request.prompt) for request in requests),
        "seconds": seconds, "steps": rounds, "seconds_of_steps": steps, "output_tokens": output,
        "reused_tokens": sum(result.reused for result in found.results.values()),
        "seconds_per_output_token": max(0.0, seconds - steps) / output if output else None,
        "seconds_per_output_token_with_steps": seconds / output if output else None,
    }  # fmt: skip


def _begun_anew(request: Request, by: int, engine: Engine) -> Request:
    """Return a request whose first token is another one, so that the prefix cache does not help."""
    first, *rest = request.prompt
    return replace(request, prompt=[(first + by) % engine.target.vocabulary, *rest])


def bound(prefill: Found, static: Found, rate: float) -> Found:
    """Return the upper bound of a rate, and the share of it that was reached.

    Every output token costs its share of the prefill and its share of a full batch's step. The bound `with_steps`
    counts the steps after prefill twice, so it is a little lower.
    """
    static_rate = static.get("steady_tokens_per_second")
    found: Found = {}
    for key, name in (("", "seconds_per_output_token"), ("_with_steps", "seconds_per_output_token_with_steps")):
        if not static_rate or prefill[name] is None:
            return {"bound_tokens_per_second": None, "share_of_bound": None}
        most = 1 / (prefill[name] + 1 / static_rate)
        found |= {f"bound{key}_tokens_per_second": most, f"share_of_bound{key}": rate / most}
    return found
