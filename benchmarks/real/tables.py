"""Formats the results as tables. Computes nothing."""

from collections.abc import Iterable
from typing import Any

from benchmarks.real.order import PLAIN, SPECTR, STATIC, TRANSFORMERS
from benchmarks.record import Found
from spectr.bench.tables import Cells

__all__ = ["tables"]


def _number(value: Any, places: int = 2, scale: float = 1.0) -> str:
    return "–" if value is None else f"{scale * value:.{places}f}"


def _called(way: str, part: Found) -> str:
    return {
        SPECTR: f"spectr, {part['drafter']}",
        PLAIN: "spectr, plain",
        TRANSFORMERS: "transformers",
        STATIC: "transformers, static cache" + (", compiled" if part["transformers_compiled"] else ""),
    }[way]


def _speed(parts: Iterable[Found]) -> Cells:
    heads = ["task", "T", "way", "texts", "tokens per call", "tok/s", "× plain", "× transformers", "× static cache"]
    rows = []
    for part in parts:
        for way, row in part["ways"].items():
            front = [part["task"], f"{part['temperature']:g}", _called(way, part), str(row["texts"])]
            ratios = [_number(row["ratios"].get(other)) for other in (PLAIN, TRANSFORMERS, STATIC)]
            rows.append([*front, _number(row["tokens_per_call"]), _number(row["tokens_per_second"], 1), *ratios])
    return heads, rows


def _scores(parts: Iterable[Found]) -> Cells:
    heads = [
        "task",
        "T",
        "way",
        "problems",
        "score %",
        "±",
        "cut %",
        "tokens per call",
        "tok/s",
        "difference %",
        "±",
        "z",
    ]
    rows = []
    for part in parts:
        for row in part["rows"]:
            for at, (way, cell) in enumerate(row["ways"].items()):
                front = [part["task"], f"{row['temperature']:g}", way, str(cell["count"])]
                shares = [_number(cell.get(key), 1, 100) for key in ("score", "standard_error", "cut")]
                paces = [_number(cell.get("tokens_per_call")), _number(cell.get("tokens_per_second"), 1)]
                last = [_number(row.get(key), 1, 100) for key in ("difference", "standard_error")]
                rows.append([*front, *shares, *paces, *(["", "", ""] if at else [*last, _number(row.get("z"))])])
    return heads, rows


def tables(found: Found) -> Iterable[tuple[str, Cells]]:
    """Return tables of speeds and scores, and a title without a table for each part that failed or is incomplete."""
    parts = found["parts"]
    for name, part in parts.items():
        if "error" in part:
            yield f"{name}, failed: {part['error']}", ([], [])
        elif part["left"]:
            yield f"{name}: {part['left']} left", ([], [])
        for way, error in part.get("failed", {}).items():
            yield f"{name}: {way} failed: {error}", ([], [])
    if timed := [part for part in parts.values() if part.get("ways")]:
        yield "speed of one text at a time", _speed(timed)
    if graded := [part for part in parts.values() if part.get("rows")]:
        yield "scores in batches", _scores(graded)
