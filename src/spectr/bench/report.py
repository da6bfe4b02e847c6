"""Formats a run as one self-contained HTML page, and as Markdown.

The template is `report.html` beside this module. Coordinates of charts are percentages of their width or height.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from spectr.bench.methods import METHODS, label_of
from spectr.bench.tables import (
    LEGEND,
    Cells,
    count,
    markdown,
    method_name,
    quality_table,
    size_table,
    task_table,
    vocabulary_table,
    way_table,
)

__all__ = ["as_markdown", "page"]

Row = Mapping[str, Any]
Result = Mapping[str, Any]
Chart = dict[str, Any]

_COLOURS = {
    "plain": "#8c8c8c", "speculative": "#5f7fa3", "block": "#3c8d2f", "recursive": "#8a5cc7", "kseq": "#0072b2",
    "optimal": "#d69e00", "path_block": "#12a5a0", "race": "#d1343f", "topk": "#c06a2b", "lookup": "#4c9be8",
    "default": "#b5179e", "transformers": "#6b6b6b", "transformers_assistant": "#a08060",
    "transformers_lookup": "#86a080",
}  # fmt: skip
_PARTS = {"prompt": "#9aa5b1", "draft": "#4c9be8", "target": "#d69e00", "rule": "#d1343f", "rest": "#8c8c8c"}


def _colour(method: str) -> str:
    return _COLOURS.get(method, "#3f51b5")


def _bars(title: str, rows: Iterable[tuple[Row, str, float, tuple[float, float] | None]], note: str) -> list[Chart]:
    """Return a chart with a bar for each (row, label, value, ends of its spread); no chart without rows."""
    found = list(rows)
    most = max((max(value, *(ends or (0.0,))) for _, _, value, ends in found), default=0.0) or 1.0
    made = []
    for row, label, value, ends in found:
        part = {
            "width": round(100 * value / most, 2),
            "colour": _colour(row["method"]),
            "about": f"{label}: {value:.3g}",
        }
        spread = ends and (round(100 * ends[0] / most, 2), round(100 * (ends[1] - ends[0]) / most, 2))
        made.append({"label": label, "value": f"{value:.3g}", "parts": [part], "spread": spread})
    return [{"title": title, "bars": made, "legend": [], "note": note}] if made else []


def _stacks(title: str, rows: Sequence[Row], note: str) -> list[Chart]:
    """Return a chart of milliseconds per token for each row, stacked by part."""
    times = [{name: max(0.0, value) for name, value in row["milliseconds_per_token"].items()} for row in rows]
    most = max((sum(parts.values()) for parts in times), default=0.0) or 1.0
    made = []
    for row, parts in zip(rows, times, strict=True):
        stack = [
            {"width": round(100 * v / most, 2), "colour": _PARTS[n], "about": f"{n}: {v:.3g} ms"}
            for n, v in parts.items()
        ]
        made.append({"label": method_name(row), "value": f"{sum(parts.values()):.3g}", "parts": stack, "spread": None})
    return [{"title": title, "bars": made, "legend": list(_PARTS.items()), "note": note}] if made else []


Series = dict[tuple[str, str], list[tuple[float, float]]]
"""The points of each line, by method and label."""


def _lines(title: str, series: Series, axes: tuple[str, str], note: str = "", *, log: bool = False) -> list[Chart]:
    """Return a chart with a line for each series; no chart with fewer than two values of x."""
    series = {name: sorted(points) for name, points in series.items()}
    xs = sorted({x for points in series.values() for x, _ in points})
    if len(xs) < 2:
        return []
    place: Callable[[float], float] = math.log10 if log else float
    low, high = place(xs[0]), place(xs[-1])
    top = max(y for points in series.values() for _, y in points) or 1.0

    def across(x: float) -> float:
        return 100 * (place(x) - low) / (high - low)

    made = [
        {
            "label": label,
            "colour": _colour(method),
            "points": " ".join(f"{across(x):.2f},{100 - 100 * y / top:.2f}" for x, y in points),
            "about": f"{label}: " + ", ".join(f"{y:.3g} at {x:.3g}" for x, y in points),
        }
        for (method, label), points in series.items()
    ]
    shown = xs if len(xs) <= 12 else (xs[0], xs[-1])
    ticks = [{"left": round(0.96 * across(x), 2), "label": f"{x:,.0f}" if x >= 100 else f"{x:.3g}"} for x in shown]
    words = {"x": axes[0], "y": axes[1], "top": f"{top:.3g}"}
    return [{"title": title, "lines": made, "ticks": ticks, "note": note, **words}]


def _bests(rows: Iterable[Row], value: Callable[[Row], float]) -> list[Row]:
    """Return the row of every method whose K and L give the largest value."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["method"] not in found or value(row) > value(found[row["method"]]):
            found[row["method"]] = row
    return list(found.values())


def _speed(row: Row) -> float:
    return float((row["speed_up"] or {}).get("median", 0.0))


def _efficiency(row: Row) -> float:
    return float(row["block_efficiency"] or 0.0)


def _with_error(row: Row, label: str) -> tuple[Row, str, float, tuple[float, float] | None]:
    value, error = row["block_efficiency"], row["block_efficiency_error"]
    return row, label, value, None if error is None else (value - error, value + error)


def _profile(rows: Sequence[Row], name: str) -> Series:
    best = _bests((row for row in rows if len(row.get(name) or []) > 1), _efficiency)
    return {(r["method"], method_name(r)): [(at, y) for at, y in enumerate(r[name], start=1)] for r in best}


def _against_drafts(rows: Sequence[Row], longest: int) -> Series:
    found: Series = {}
    for row in rows:
        if row["length"] == longest and row["method"] in METHODS and METHODS[row["method"]].several:
            found.setdefault((row["method"], label_of(row["method"])), []).append((row["drafts"], _efficiency(row)))
    return {name: points for name, points in found.items() if len(points) > 1}


def _charts(temperature: float, rows: Sequence[Row]) -> list[Chart]:
    at, longest = f"T = {temperature:g}", max((row["length"] or 0 for row in rows), default=0)
    fastest = [row for row in _bests(rows, _speed) if row["speed_up"]]
    speeds = [(r, method_name(r), _speed(r), (r["speed_up"]["low"], r["speed_up"]["high"])) for r in fastest]
    counted = _bests((row for row in rows if row["block_efficiency"]), _efficiency)
    timed = [row for row in _bests(rows, _speed) if row["milliseconds_per_token"]]
    return [
        *_bars(f"How many times faster than plain decoding, {at}", speeds,
               "Bars are medians over texts, lines the quartiles; each method at its fastest K × L."),
        *_bars(f"Tokens per target call, {at}", [_with_error(row, method_name(row)) for row in counted],
               "Lines are one standard error either way, over texts; each method at its best K × L."),
        *_lines(f"Tokens per call against K, L = {longest}, {at}", _against_drafts(rows, longest),
                ("K, drafts", "tokens per call"), "Equal nodes: a pruned tree has as many as K chains of L tokens."),
        *_lines(f"Accepted by depth, {at}", _profile(rows, "acceptance_by_depth"), ("depth", "share")),
        *_lines(f"Accepted by rank among siblings, {at}", _profile(rows, "acceptance_by_rank"), ("rank", "share")),
        *_stacks(f"Milliseconds a token, {at}", timed,
                 "transformers reads the prompt inside its target calls; on a GPU the wait for it is in the rest."),
    ]  # fmt: skip


def _by_method(rows: Iterable[Row], x: str, y: str) -> Series:
    found: Series = {}
    for row in rows:
        found.setdefault((row["method"], label_of(row["method"])), []).append((row[x], row[y]))
    return found


def _section(title: str, charts: list[Chart], cells: Cells) -> dict[str, Any]:
    return {"title": title, "charts": charts, "cells": cells}


def _task_rows(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each task, temperature and method, at its best K and L."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["temperature"]), []).append(row)
    return [best for group in groups.values() for best in _bests(group, _efficiency)]


def _sections(result: Result) -> list[dict[str, Any]]:
    main, sizes = ([row for row in result["results"] if row["study"] == study] for study in ("main", "size"))
    temperatures = dict.fromkeys(row["temperature"] for row in main)
    charts = [chart for t in temperatures for chart in _charts(t, [row for row in main if row["temperature"] == t])]
    apart = ("total variation between target and draft distribution", "accepted per node")
    blurred = _by_method(result["quality"], "total_variation", "acceptance")
    quality = _lines("Acceptance against the drafter's quality", blurred, apart,
                     "The drafter's logits, mixed with its own logits of other tokens.")  # fmt: skip
    named = [_with_error(row, f"race, {row['drafter']}") for row in sizes if row["method"] != "plain"]
    size = _bars("Tokens per call with drafters of several sizes", named, "")
    taken = _by_method(result["vocabulary"], "vocabulary", "milliseconds")
    note = "Made-up distributions of a Zipf shape, and a drafter close to its target."
    cost = _lines("Time of a verdict over the vocabulary, CPU", taken, ("tokens", "milliseconds"), note, log=True)
    return [
        _section("Methods", [], way_table(main)),
        _section("In pictures", charts, ([], [])),
        _section("By task", [], task_table(_task_rows(result["by_task"]))),
        _section("Draft quality", quality, quality_table(result["quality"])),
        _section("Draft size", size, size_table(sizes)),
        _section("Vocabulary", cost, vocabulary_table(result["vocabulary"])),
    ]


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 30):.1f} GiB"


def facts(head: Row, result: Result) -> dict[str, str]:
    """Return the facts about a run that are needed to interpret its figures."""
    hardware, drafter, target = head["hardware"], head["drafter"], head["target"]
    gpu = hardware.get("gpu")
    weights = "" if not drafter["weights"] else f", {count(drafter['weights']['count'], 'weight')}"
    sittings = [cell for cell in result["cells"].values() if cell["study"] == "sitting"]
    loads = [cell["load"] for cell in result["cells"].values() if cell.get("load") is not None]
    return {
        "command": sittings[-1]["command"] if sittings else "unknown",
        "target": f"{target['name']}, {count(target['weights'], 'weight')}, {count(target['vocabulary'], 'token')}, "
        f"{head['dtype']}",
        "drafter": f"{drafter['name']} ({drafter['kind']}{weights}); by default with rule {drafter['rule']}",
        "processor": f"{hardware['cpu']}, {count(hardware['cores'], 'core')}, {count(hardware['threads'], 'thread')}, "
        f"{hardware['simd']}, {_bytes(hardware['memory'])}",
        "GPU": "none used" if gpu is None else f"{gpu['name']}, {_bytes(gpu['memory'])}, CUDA {gpu['cuda']}",
        "versions": ", ".join(f"{name} {value}" for name, value in head["versions"].items() if value),
        "seed": str(head["grid"]["seed"]),
        "begun": ", ".join(cell["begun"] for cell in sittings) or "unknown",
        "processes that wanted a core": f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown",
    }


def _notes(result: Result) -> list[str]:
    """Return notes on what is missing, and why."""
    found = [f"Left out {label_of(name)}: {why}" for name, why in result.get("left_out", {}).items()]
    if missing := result.get("cells_missing"):
        found.append(f"Not measured: {count(missing, 'cell')}; the run was stopped early and can be continued.")
    if long := result.get("too_long"):
        found.append(f"Left out {count(long, 'prompt')} too long for the model.")
    return found


def page(head: Row, result: Result) -> str:
    """Return the run as one HTML page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("spectr.bench") / "report.html").read_text("utf-8"))
    made = template.render(
        title=f"spectr bench: {head['target']['name']}", legend=LEGEND.items(), notes=_notes(result),
        sections=_sections(result), facts=facts(head, result).items(),
    )  # fmt: skip
    return made.strip() + "\n"


def as_markdown(head: Row, result: Result) -> str:
    """Return the main table, the tasks, and the facts about the run as Markdown."""
    main = [row for row in result["results"] if row["study"] == "main"]
    known = facts(head, result)
    command = known.pop("command")
    parts = [
        markdown(way_table(main)),
        "\n".join(f"- {name}: {meaning}" for name, meaning in LEGEND.items()) + "\n",
        "\n".join(f"- {note}" for note in _notes(result)) + "\n",
        markdown(task_table(_task_rows(result["by_task"]))),
        "\n".join(f"- {name}: {value}" for name, value in known.items()) + "\n",
        f"```sh\n{command}\n```\n",
    ]
    return "\n".join(part for part in parts if part.strip())
