"""Measures generation on the large side: tokens per second of single texts and of batches, and memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.inflate.clock import Pace, joined, paced
from benchmarks.inflate.order import Order
from benchmarks.inflate.pair import Pair
from benchmarks.inflate.ways import Way, batched, compared, race
from benchmarks.record import Found, let_go, said
from spectr.engine import Engine, Request

__all__ = ["full_rate", "graphs_of", "memory", "rows", "settled", "speed"]

_TRIES = 4  # maximum times that a text is generated until all of its graphs have been captured
_STEADY = "steady_tokens_per_second"
_AGAINST = ("plain", "speculative", "topk", "kseq")


def graphs_of(engine: Engine) -> list[tuple[int, int, int]]:
    """Return the number of shapes run and captured so far in each lane; a lane that grows starts again from none."""
    held = [lane.memory.graphs for lane in engine.scheduler.lanes.values()]
    return [(id(graphs), len(graphs.seen), len(graphs.graphs)) for graphs in held]


def settled(engine: Engine, requests: Sequence[Request]) -> Pace:
    """Return the pace of a batch; texts are generated again as long as new graphs were captured meanwhile."""
    for _ in range(_TRIES):
        before = graphs_of(engine)
        pace = paced(engine, requests)
        if graphs_of(engine) == before:
            break
    return pace


@dataclass(slots=True)
class _Entrant:
    """A way with its engine, and the paces of its texts or the error it failed with."""

    way: Way
    engine: Engine
    paces: list[Pace] = field(default_factory=list)
    error: str | None = None

    def write(self, requests: Sequence[Request], *, counts: bool) -> None:
        """Generate a batch of texts. A way that has failed is skipped from then on."""
        if self.error is not None:
            return
        try:
            pace = settled(self.engine, requests)
        except Exception as error:  # any error ends this way only, not the run
            self.error = said(error)
            return
        if counts:
            self.paces.append(pace)

    def row(self) -> Found:
        plan = self.way.plan
        about = {"way": self.way.key, "method": self.way.method, "nodes": self.way.nodes}
        more = {} if plan is None else {"drafts": plan.drafts, "depth": plan.length, "siblings": plan.siblings}
        failed = {} if self.error is None else {"error": self.error}
        return {**about, **more, **failed, "texts": len(self.paces), **joined(self.paces)}


def _best(found: Sequence[Found], method: str, key: str) -> float | None:
    """Return the best tokens per second of a method over its shapes."""
    return max((row[key] for row in found if row["method"] == method and key in row), default=None)


def _ratios(found: Sequence[Found], row: Mapping[str, Any], key: str) -> dict[str, float]:
    if key not in row:
        return {}
    best = {method: _best(found, method, key) for method in _AGAINST}
    return {method: row[key] / value for method, value in best.items() if value}


def _compared(entrants: Sequence[_Entrant]) -> list[Found]:
    found = [entrant.row() for entrant in entrants]
    for row in found:
        row["ratios"] = _ratios(found, row, "tokens_per_second")
        row["steady_ratios"] = _ratios(found, row, _STEADY)
    return found


def speed(pair: Pair, order: Order) -> Iterator[Found]:
    """Generate single texts with all ways in turn; the first text of each is the warm-up."""
    entrants = [_Entrant(way, way.engine(pair)) for way in compared(order.grid)]
    requests = pair.requests(order.grid.texts + 1, order)
    for at, request in enumerate(requests):
        turned = entrants[at % len(entrants) :] + entrants[: at % len(entrants)]  # each text begins with another way
        for entrant in turned:
            entrant.write([request], counts=at > 0)
        yield {"rows": _compared(entrants), "left": len(requests) - 1 - at}


def _batches(pair: Pair, order: Order, count: int) -> list[list[Request]]:
    """Return batches of `count` texts, as many as it takes to cover all texts."""
    number = -(-order.grid.texts // count)
    every = pair.requests(number * count, order)
    return [every[start : start + count] for start in range(0, len(every), count)]


def _batched(count: int, entrant: _Entrant) -> Found:
    """Return the rate of batches of `count` rows.

    Rows end one after the other, and at different times with each way, so the rate is scaled to a full batch.
    """
    row = full_rate(count, {"rows": count, **entrant.row()})
    row["texts"] *= count
    return row


def full_rate(count: int, row: Found) -> Found:
    """Scale the result of `joined` to batches in which all `count` rows continue until the end."""
    if not row.get("rows_going"):
        return row
    rates = {key: row[key] * count / row["rows_going"] for key in ("tokens_per_second", _STEADY)}
    return {**row, "tokens_per_call": row["tokens_per_call"] / row["rows_going"], **rates}  # per row and call


def _best_nodes(found: Sequence[Found]) -> list[Found]:
    """Return the number of nodes with the most tokens per second for each batch size; plain decoding is one node."""
    best: dict[int, Found] = {}
    whole = [row for row in found if _STEADY in row and "error" not in row]
    for row in whole:
        if row[_STEADY] > best.get(row["rows"], {}).get(_STEADY, 0.0):
            best[row["rows"]] = row
    plain = {row["rows"]: row[_STEADY] for row in whole if row["nodes"] == 1}
    return [
        {"rows": count, "nodes": row["nodes"], _STEADY: row[_STEADY], "over_plain": row[_STEADY] / plain[count]}
        for count, row in best.items()
        if count in plain
    ]


def rows(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure batches of different prompts, with plain decoding and with trees of several sizes."""
    grid, found = order.grid, list[Found]()
    cases = [(count, way) for count in grid.rows for way in batched(grid)]
    for at, (count, way) in enumerate(cases, start=1):
        entrant = _Entrant(way, way.engine(pair, count))
        for requests in _batches(pair, order, count):
            entrant.write(requests, counts=True)
        found.append(_batched(count, entrant))
        del entrant
        let_go()
        yield {"results": found, "best": _best_nodes(found), "left": len(cases) - at}


def _held(session: Any) -> int:
    """Return the bytes of keys, values and features."""
    layers = [buffer for layer in session.cache.layers for buffer in (layer.keys, layer.values)]
    return sum(buffer.nbytes for buffer in [*layers, session.store.features] if buffer is not None)


def _weights(net: torch.nn.Module, own: Any = None) -> int:
    """Return the bytes of a model, and of its own output layer if it has one."""
    layers = [net] if own is None else [net, own]
    return sum(weights.nbytes for layer in layers for weights in (*layer.parameters(), *layer.buffers()))


def _caches(engine: Engine) -> int:
    """Return the bytes of all caches that an engine holds for its rows."""
    states: list[Any] = [lane.memory.opened() for lane in engine.scheduler.lanes.values()]
    return sum(_held(session) + _held(drafting.session) for _, session, drafting in states)


def memory(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure the peak memory of a text besides weights and caches."""
    way, device = race(order.grid.tree), pair.large.target.device
    engine, is_gpu = way.engine(pair), device.type == "cuda"
    let_go()
    before = torch.cuda.memory_allocated(device) if is_gpu else 0
    if is_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    engine.generate(pair.requests(1, order))
    cache = _caches(engine)
    beside = torch.cuda.max_memory_allocated(device) - before - cache if is_gpu else None
    output = pair.large.head.output_layer
    own = output if output is not pair.large.target.output_layer else None
    weights = {"target": _weights(pair.large.target.model), "head": _weights(pair.large.head.model, own)}
    yield {"way": way.key, "weight_bytes": weights, "cache_bytes": cache, "beside_bytes": beside, "left": 0}
