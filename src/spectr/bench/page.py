"""A run as one page of HTML that needs nothing else, and as Markdown. Shows what it is given and measures nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from spectr.bench.methods import METHODS, label_of
from spectr.bench.svg import Bar, Line, bars, lines, stacks
from spectr.bench.tables import Cells, markdown, method_name, task_table, way_table

__all__ = ["as_markdown", "page"]

Row = Mapping[str, Any]
Result = Mapping[str, Any]

_COLOURS = {
    "plain": "#8c8c8c", "speculative": "#5f7fa3", "block": "#3c8d2f", "recursive": "#8a5cc7", "kseq": "#0072b2",
    "optimal": "#d69e00", "path_block": "#12a5a0", "race": "#d1343f", "topk": "#c06a2b", "lookup": "#4c9be8",
    "default": "#b5179e", "transformers": "#6b6b6b", "transformers_assistant": "#a08060",
    "transformers_lookup": "#86a080",
}  # fmt: skip
_PARTS = {"prompt": "#9aa5b1", "draft": "#4c9be8", "target": "#d69e00", "rule": "#d1343f", "rest": "#8c8c8c"}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #ffffff; --line: #d9dde2; --soft: #5c6670; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --paper: #16181b; --line: #3a4047; --soft: #9aa3ad; }
}
body { margin: 2rem auto; max-width: 1180px; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { margin-top: 2.2rem; font-size: 1.2rem; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; }
.soft, figcaption { color: var(--soft); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; } th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; } dt { color: var(--soft); }
dd { margin: 0; } figure { margin: 1.2rem 0; max-width: 760px; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg text { fill: var(--ink); }
svg .title { font-weight: 600; font-size: 14px; } svg .tick { fill: var(--soft); font-size: 11px; }
svg .value { font-size: 11px; } svg .grid { stroke: var(--line); } svg .spread { stroke: var(--ink); stroke-width: 2; }
"""


def _colour(method: str) -> str:
    return _COLOURS.get(method, "#3f51b5")


def _table(cells: Cells) -> str:
    heads, rows = cells
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>\n{body}</table></div>'


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 30):.1f} GiB"


def facts(head: Row, result: Result) -> dict[str, str]:
    """What must stand beside the figures."""
    hardware, drafter, target = head["hardware"], head["drafter"], head["target"]
    gpu = hardware.get("gpu")
    weights = "" if not drafter["weights"] else f", {drafter['weights']['count']:,} weights"
    sittings = [cell for cell in result["cells"].values() if cell["study"] == "sitting"]
    loads = [cell["load"] for cell in result["cells"].values() if cell.get("load") is not None]
    return {
        "command": sittings[-1]["command"] if sittings else "unknown",
        "target": f"{target['name']}, {target['weights']:,} weights, {target['vocabulary']:,} tokens, {head['dtype']}",
        "drafter": f"{drafter['name']} ({drafter['kind']}{weights}); by default with rule {drafter['rule']}",
        "processor": f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} threads, "
        f"{hardware['simd']}, {_bytes(hardware['memory'])}",
        "GPU": "none used" if gpu is None else f"{gpu['name']}, {_bytes(gpu['memory'])}, CUDA {gpu['cuda']}",
        "versions": ", ".join(f"{name} {value}" for name, value in head["versions"].items() if value),
        "seed": str(head["grid"]["seed"]),
        "begun": ", ".join(cell["begun"] for cell in sittings) or "unknown",
        "processes that wanted a core": f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown",
    }


def _notes(result: Result) -> list[str]:
    """What is missing, said out loud."""
    found = [f"Left out {label_of(name)}: {why}" for name, why in result.get("left_out", {}).items()]
    if result.get("cells_missing"):
        found.append(f"{result['cells_missing']} cells were not measured: the run was cut short and can go on.")
    if result.get("too_long"):
        found.append(f"{result['too_long']} prompts did not fit into the model and were left out.")
    return found


def _by_heat(rows: Iterable[Row]) -> dict[float, list[Row]]:
    found: dict[float, list[Row]] = {}
    for row in rows:
        found.setdefault(row["temperature"], []).append(row)
    return found


def _bests(rows: Sequence[Row], value: Callable[[Row], float]) -> list[Row]:
    """Of every method the K and L with the largest value."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["method"] not in found or value(row) > value(found[row["method"]]):
            found[row["method"]] = row
    return list(found.values())


def _task_rows(rows: Sequence[Row]) -> list[Row]:
    """Of every task and temperature each method once, at its best K and L."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["temperature"]), []).append(row)
    return [best for group in groups.values() for best in _bests(group, lambda row: row["block_efficiency"] or 0.0)]


def _speed(row: Row) -> float:
    return float((row["speed_up"] or {}).get("median", 0.0))


def _speeds(heat: float, rows: Sequence[Row]) -> str:
    timed = [row for row in _bests(rows, _speed) if row["speed_up"]]
    if not timed:
        return ""
    found = []
    for row in timed:
        up = row["speed_up"]
        found.append(Bar(method_name(row), up["median"], _colour(row["method"]), up["low"], up["high"]))
    chart = bars(f"How many times faster than plain decoding, T = {heat:g}", found)
    return _figure(chart, "Bars are medians over texts, lines the quartiles; each method at its fastest K × L.")


def _with_error(row: Row, label: str) -> Bar:
    value, error = row["block_efficiency"], row["block_efficiency_error"]
    ends = () if error is None else (value - error, value + error)
    return Bar(label, value, _colour(row["method"]), *ends)


def _efficiencies(heat: float, rows: Sequence[Row]) -> str:
    counted = [row for row in rows if row["block_efficiency"]]
    if not counted:
        return ""
    best = _bests(counted, lambda row: float(row["block_efficiency"]))
    found = [_with_error(row, method_name(row)) for row in best]
    chart = bars(f"Tokens per target call, T = {heat:g}", found)
    return _figure(chart, "Lines are one standard error either way, over texts; each method at its best K × L.")


def _against_drafts(heat: float, rows: Sequence[Row]) -> str:
    """Lines only where there is more than one K."""
    longest = max((row["length"] or 0 for row in rows), default=0)
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["length"] == longest and row["method"] in METHODS and METHODS[row["method"]].several:
            series.setdefault(row["method"], []).append((row["drafts"], row["block_efficiency"]))
    found = [Line(label_of(name), _colour(name), sorted(points)) for name, points in series.items() if len(points) > 1]
    if not found:
        return ""
    chart = lines(f"Tokens per call against K, L = {longest}, T = {heat:g}", found, ("K, drafts", "tokens per call"))
    return _figure(chart, "Equal nodes: a pruned tree has as many as K chains of L tokens.")


def _profile(heat: float, rows: Sequence[Row], name: str, words: tuple[str, str]) -> str:
    counted = [row for row in rows if len(row.get(name) or []) > 1]
    best = _bests(counted, lambda row: float(row["block_efficiency"]))
    if not best:
        return ""
    found = [
        Line(method_name(row), _colour(row["method"]), [(at + 1.0, value) for at, value in enumerate(row[name])])
        for row in best
    ]
    return _figure(lines(f"{words[0]}, T = {heat:g}", found, (words[1], "share")), "")


def _breakdown(heat: float, rows: Sequence[Row]) -> str:
    timed = [row for row in _bests(rows, _speed) if row["milliseconds_per_token"]]
    if not timed:
        return ""
    chart = stacks(
        f"Milliseconds a token, T = {heat:g}",
        {method_name(row): row["milliseconds_per_token"] for row in timed},
        _PARTS,
    )
    return _figure(
        chart, "transformers reads the prompt inside its target calls; on a GPU the wait for it is in the rest."
    )


def _quality(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["method"], []).append((row["total_variation"], row["acceptance"]))
    found = [Line(label_of(name), _colour(name), sorted(points)) for name, points in series.items()]
    words = ("total variation between target and draft law", "accepted per node")
    chart = lines("Acceptance against the drafter's quality", found, words)
    heads = ["method", "K", "L", "noise", "total variation", "accepted per node", "iid optimum", "tokens per call"]
    cells = [
        [
            label_of(row["method"]), str(row["drafts"]), str(row["length"]), f"{row['noise']:g}",
            f"{row['total_variation']:.3f}", f"{row['acceptance']:.3f} ± {row['error']:.3f}",
            f"{row['best']:.3f}",
            f"{row['block_efficiency']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return _figure(chart, "The drafter's logits, mixed with its own logits of other tokens.") + _table((heads, cells))


def _vocabulary(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["method"], []).append((row["vocabulary"], row["milliseconds"]))
    found = [Line(label_of(name), _colour(name), sorted(points)) for name, points in series.items()]
    chart = lines("A verdict against the vocabulary, CPU", found, ("tokens", "milliseconds"), log=len(rows) > 1)
    heads = ["method", "vocabulary", "K", "L", "ms a verdict", "tokens per call"]
    cells = [
        [
            label_of(row["method"]), f"{row['vocabulary']:,}", str(row["drafts"]), str(row["length"]),
            f"{row['milliseconds']:.2f}", f"{row['block_efficiency']:.2f} ± {row['error']:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return _figure(chart, "Made-up laws of a Zipf shape and a drafter close to its target.") + _table((heads, cells))


def _size(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    named = {row["drafter"]: row for row in rows if row["method"] != "plain"}
    found = [_with_error(row, f"race, {name}") for name, row in named.items()]
    heads, cells = way_table(rows)
    heads, cells = ["drafter", *heads], [[row["drafter"], *line] for row, line in zip(rows, cells, strict=True)]
    return _figure(bars("Tokens per call with drafters of several sizes", found), "") + _table((heads, cells))


def _charts(heat: float, rows: Sequence[Row]) -> list[str]:
    depth, rank = ("Accepted by depth", "depth"), ("Accepted by rank among siblings", "rank")
    return [
        _speeds(heat, rows),
        _efficiencies(heat, rows),
        _against_drafts(heat, rows),
        _profile(heat, rows, "acceptance_by_depth", depth),
        _profile(heat, rows, "acceptance_by_rank", rank),
        _breakdown(heat, rows),
    ]


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<h2>{escape(title)}</h2>\n{body}\n" if body else ""


def page(head: Row, result: Result) -> str:
    """Everything, in one file."""
    main = [row for row in result["results"] if row["study"] == "main"]
    sizes = [row for row in result["results"] if row["study"] == "size"]
    title = f"spectr bench: {head['target']['name']}"
    listed = "".join(f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in facts(head, result).items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(result))
    charts = [chart for heat, rows in _by_heat(main).items() for chart in _charts(heat, rows)]
    body = [
        f"<h1>{escape(title)}</h1>",
        '<p class="soft">Medians, with quartiles over texts in brackets; all methods interleaved in one run.</p>',
        f"<ul>{notes}</ul>" if notes else "",
        _section("Methods", _table(way_table(main)) if main else ""),
        _section("In pictures", *charts),
        _section("By task", _table(task_table(_task_rows(result["by_task"]))) if result["by_task"] else ""),
        _section("Draft quality", _quality(result["quality"])),
        _section("Draft size", _size(sizes)),
        _section("Vocabulary", _vocabulary(result["vocabulary"])),
        _section("How it was measured", f"<dl>{listed}</dl>"),
    ]
    frame = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{frame}{view}<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n" + "\n".join(
        [part for part in body if part] + ["</body></html>\n"]
    )


def as_markdown(head: Row, result: Result) -> str:
    """The main table, the tasks, and what must stand beside them."""
    main = [row for row in result["results"] if row["study"] == "main"]
    lines_ = [f"- {name}: {value}" for name, value in facts(head, result).items() if name != "command"]
    parts = [markdown(way_table(main)), "\n".join(_notes(result)), markdown(task_table(_task_rows(result["by_task"])))]
    command = f"```sh\n{facts(head, result)['command']}\n```\n"
    return "\n".join(part for part in [*parts, "\n".join(lines_) + "\n", command] if part.strip())
