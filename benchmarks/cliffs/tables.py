"""Formats the results as tables. Computes nothing."""

from collections.abc import Iterable
from typing import Any

from benchmarks.record import Found
from spectr.bench.tables import Cells

__all__ = ["tables"]


def _number(value: Any, places: int = 2) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _compared(part: Found) -> Cells:
    heads = ["case", "tok/s", "× without", "tokens per call", "steady ms", "× without", "rounds with new graphs"]
    rows = [
        [
            row["case"], _number(row["tokens_per_second"], 1), _number(row.get("ratio")),
            _number(row["tokens_per_call"]), _number(row["steady_ms_per_step"]), _number(row.get("step_ratio")),
            str(row["new_graphs"]),
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return heads, rows


def _many(part: Found) -> Cells:
    names = ["requests", "seconds", *part["growth"]]
    return names, [[_number(look[name], 1 if name == "seconds" else 0) for name in names] for look in part["looks"]]


def tables(found: Found) -> Iterable[tuple[str, Cells]]:
    """Return a titled table for each part; the title says what is missing or why the part failed."""
    for name, part in found["parts"].items():
        left = f", {part['left']} left" if part.get("left") else ""
        title = name + left + (f", failed: {part['error']}" if "error" in part else "")
        yield title, ([], []) if "left" not in part else _many(part) if name == "many" else _compared(part)
