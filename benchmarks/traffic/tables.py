"""Formats the results as tables. Computes nothing."""

from collections.abc import Iterable
from typing import Any

from benchmarks.record import Found
from spectr.bench.tables import Cells

__all__ = ["tables"]


def _number(value: Any, places: int = 2, scale: float = 1.0) -> str:
    return "–" if value is None else f"{scale * value:.{places}f}"


def _row(count: int, way: str, cell: Found, ratio: float | None) -> list[str]:
    first, pace, static = cell["time_to_first_token"], cell["time_per_output_token"], cell["static"]
    return [
        str(count), way, _number(cell["tokens_per_second"], 1), _number(cell.get("ratio_to_plain", ratio)),
        *(_number(first[name], 1, 1e3) for name in ("median", "p95")),
        *(_number(pace[name], 2, 1e3) for name in ("median", "p95")),
        _number(static.get("steady_tokens_per_second"), 1),
        _number(cell["prefill"]["seconds_per_output_token"], 3, 1e3),
        _number(cell["bound_tokens_per_second"], 1), _number(cell["share_of_bound"]),
        "yes" if cell["new_graphs"] else "",
    ]  # fmt: skip


def _traffic(parts: Iterable[Found]) -> Cells:
    heads = [
        "in flight", "way", "tok/s", "× plain", "first ms", "p95", "ms per token", "p95", "static tok/s",
        "prefill ms per token", "bound tok/s", "share", "new graphs",
    ]  # fmt: skip
    rows = [
        _row(part["in_flight"], way, cell, part.get("ratio_to_plain") if way == "default" else None)  # older files
        for part in parts
        for way, cell in part["cells"].items()
    ]
    return heads, rows


def _shared(part: Found) -> Cells:
    (second,), (samples,), shared = part["second"], part["samples"], str(part["shared"])
    rows = [["a second request", shared, second["reused"], second["second_ms"], second["first_ms"]]]
    for name in ("conversation", "disturbed_conversation"):
        for at, turn in enumerate(part[name], start=1):
            rows.append(
                [f"{name.replace('_', ' ')}, turn {at}", *(turn[key] for key in ("prompt", "reused", "ms", "anew_ms"))]
            )
    many = f"{samples['samples']:.0f} samples"
    rows.append([many, shared, samples["reused"], samples["ms"], samples["apart_ms"]])
    heads = ["prompt", "tokens", "cached", "first token ms", "ms without the cache"]
    return heads, [[cell if isinstance(cell, str) else _number(cell, 1) for cell in row] for row in rows]


def tables(found: Found) -> Iterable[tuple[str, Cells]]:
    """Return tables of the traffic and of shared prefixes, and a title without a table for each part that failed."""
    parts = found["parts"]
    for name, part in parts.items():
        if "error" in part:
            yield f"{name}, failed: {part['error']}", ([], [])
    flows = [part for name, part in parts.items() if part.get("cells")]
    if flows:
        yield "traffic", _traffic(flows)
    if "second" in parts.get("shared", {}):
        yield "prompts with a shared prefix", _shared(parts["shared"])
