"""Formats the results as tables. Computes nothing."""

from collections.abc import Iterable
from typing import Any

from benchmarks.record import Found
from spectr.bench.tables import Cells

__all__ = ["tables"]


def _number(value: Any, places: int = 1, scale: float = 1.0) -> str:
    return "–" if value is None else f"{scale * value:.{places}f}"


def _row(clients: int, way: str, runs: list[Found], rate: float, ratio: float | None) -> list[str]:
    last = runs[-1]
    first, pace = last["time_to_first_token"], last["time_per_output_token"]
    return [
        str(clients), way, _number(rate), _number(ratio, 3),
        *(_number(first[name], 1, 1e3) for name in ("median", "p95")),
        *(_number(pace[name], 2, 1e3) for name in ("median", "p95")),
        str(sum(run["errors"] for run in runs)),
    ]  # fmt: skip


def tables(found: Found) -> Iterable[tuple[str, Cells]]:
    """Return a table of all numbers of clients, and one of the soak test."""
    for name, part in found["parts"].items():
        if "error" in part:
            yield f"{name}, failed: {part['error']}", ([], [])
    parts = [part for part in found["parts"].values() if part.get("runs")]
    heads = ["clients", "way", "tok/s", "× engine", "first ms", "p95", "ms per token", "p95", "errors"]
    rows = [
        _row(part["clients"], way, runs, part["tokens_per_second"][way], part["ratio"] if way == "server" else None)
        for part in parts
        for way, runs in part["runs"].items()
    ]
    if rows:
        yield "the same requests on the engine alone and over HTTP", (heads, rows)
    for part in found["parts"].values():
        if "memory_growth" in part:
            cells = [str(part["clients"]), _number(part["minutes"]), str(part["requests"]), str(part["errors"]),
                     _number(part["tokens_per_second"]), _number(part["memory_growth"], 3)]  # fmt: skip
            yield (
                "soak test",
                (["clients", "minutes", "requests", "errors", "tok/s", "memory, × early"], [cells]),
            )
