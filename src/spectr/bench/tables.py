"""Formats results as rows of tables, for terminals, Markdown and HTML."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spectr.bench.methods import label_of

__all__ = [
    "LEGEND",
    "Cells",
    "count",
    "markdown",
    "method_name",
    "quality_table",
    "size_table",
    "task_table",
    "vocabulary_table",
    "way_table",
]

Row = Mapping[str, Any]
Cells = tuple[list[str], list[list[str]]]
"""Headings, and rows."""

LEGEND = {
    "K": "number of drafts in the token tree",
    "L": "number of tokens in each draft",
    "T": "temperature; 0 is greedy",
}
"""The meaning of the letters in tables."""

_SAME = ("plain", "race", "lookup", "default")  # methods whose text is a function of the seed at any temperature


def _called(row: Row) -> str:
    """Return the method's label, with a note if it is not lossless."""
    return label_of(row["method"]) + {True: "", False: ", LOSSY", None: ", law unknown"}[row["lossless"]]


def count(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> count(1, "thread"), count(1200, "text")
    ('1 thread', '1,200 texts')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def method_name(row: Row) -> str:
    """Return a method's label, with its K and L if it has them.

    >>> method_name({"method": "kseq", "drafts": 4, "length": 2})
    'K-SEQ (SpecTr) 4×2'
    """
    label = label_of(row["method"])
    return label if row["drafts"] is None else f"{label} {row['drafts']}×{row['length']}"


def _spread(found: Row | None, digits: int = 2) -> str:
    if found is None:
        return "–"
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def _one(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _efficiency(row: Row) -> str:
    """Format tokens per call with the standard error."""
    error = row["block_efficiency_error"]
    return _one(row["block_efficiency"]) + (f" ± {error:.2f}" if error else "")


def _same(row: Row) -> str:
    """Format the number of equal texts, for methods that promise them."""
    found = row["identical"]
    if found is None or not (row["temperature"] == 0 or row["method"] in _SAME):
        return ""
    return f"{found['same']} of {found['of']}"


def _parts(row: Row) -> str:
    """Format the milliseconds per token of each part."""
    parts = row["milliseconds_per_token"]
    if parts is None:
        return "–"
    return " / ".join(f"{parts[name]:.1f}" if name in parts else "–" for name in ("draft", "target", "rule", "rest"))


def _mebibytes(size: int | None) -> str:
    return "–" if size is None else f"{size / (1 << 20):,.0f}"


def _size(row: Row) -> tuple[str, str]:
    """Format K and L; they are empty for a method without them."""
    return "" if row["drafts"] is None else str(row["drafts"]), "" if row["length"] is None else str(row["length"])


def way_table(rows: Iterable[Row]) -> Cells:
    """Return a table with a row for each method, K, L and temperature; spreads are quartiles over texts."""
    heads = [
        "method", "K", "L", "T", "tokens per call", "tok/s", "× plain", "× transformers",
        "ms a token: draft / target / rule / rest", "MiB", "same text",
    ]  # fmt: skip
    found = [
        [
            _called(row),
            *_size(row),
            f"{row['temperature']:g}",
            _efficiency(row),
            _spread(row["tokens_per_second"], 1),
            _spread(row["speed_up"]),
            _one((row["speed_up_over_transformers"] or {}).get("median")),
            _parts(row),
            _mebibytes(row["memory"]),
            _same(row),
        ]
        for row in rows
    ]
    return heads, found


def task_table(rows: Sequence[Row]) -> Cells:
    """Return a table with a row for each method, K, L, temperature and task."""
    found = [
        [
            row["task"],
            _called(row),
            *_size(row),
            f"{row['temperature']:g}",
            _efficiency(row),
            _one((row["speed_up"] or {}).get("median")),
        ]
        for row in sorted(rows, key=lambda row: str(row["task"]))
    ]
    return ["task", "method", "K", "L", "T", "tokens per call", "× plain"], found


def size_table(rows: Sequence[Row]) -> Cells:
    """Return the table of the ablation over drafters."""
    heads, found = way_table(rows)
    return ["drafter", *heads], [[row["drafter"], *line] for row, line in zip(rows, found, strict=True)]


def quality_table(rows: Iterable[Row]) -> Cells:
    """Return the table of acceptance with a drafter whose logits are mixed with noise."""
    found = [
        [
            label_of(row["method"]), *_size(row), f"{row['noise']:g}", f"{row['total_variation']:.3f}",
            f"{row['acceptance']:.3f} ± {row['error']:.3f}", f"{row['best']:.3f}", f"{row['block_efficiency']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    heads = ["method", "K", "L", "noise", "total variation", "accepted per node", "iid optimum", "tokens per call"]
    return heads, found


def vocabulary_table(rows: Iterable[Row]) -> Cells:
    """Return the table of the time of a verdict over vocabularies of several sizes."""
    found = [
        [
            label_of(row["method"]), f"{row['vocabulary']:,}", *_size(row), f"{row['milliseconds']:.2f}",
            f"{row['block_efficiency']:.2f} ± {row['error']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return ["method", "vocabulary", "K", "L", "ms a verdict", "tokens per call"], found


def markdown(cells: Cells) -> str:
    """Format a table as Markdown."""
    heads, rows = cells
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
