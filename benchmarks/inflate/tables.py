"""Formats the results as tables. Computes nothing."""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.record import Found
from spectr.bench.tables import Cells

__all__ = ["tables"]


def _number(value: Any, places: int = 2) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _way(row: Found) -> str:
    return f"{row['way']}: {row['error']}" if "error" in row else str(row["way"])


def _bandwidth(part: Found) -> Cells:
    heads = ["TB/s copied", "GB of weights a call", "floor ms", "plain at most tok/s"]
    row = [
        _number(part["bytes_per_second"] / 1e12, 3),
        _number(part["weight_bytes"] / 1e9, 3),
        _number(part["floor_ms"], 3),
        _number(part["plain_limit_tokens_per_second"], 1),
    ]
    return heads, [row]


def _calls(part: Found) -> Cells:
    heads = ["context", "nodes", "ms", "× floor"]
    rows = [[str(r["context"]), str(r["nodes"]), _number(r["ms"], 3), _number(r["over_floor"])] for r in part["rows"]]
    doubled = [[str(r["context"]), "128 / 64", _number(r["ratio_128_to_64"], 3), ""] for r in part.get("doubling", ())]
    return heads, rows + doubled


def _step(part: Found) -> Cells:
    heads = ["nodes", "depth", "drafter", "step ms", "draft", "topology", "target", "rule", "keep", "not target"]
    rows = []
    for row in part["rows"]:
        pieces, native = row["pieces_ms"], row["with_native_drafter"]
        rest = [_number(pieces[name], 3) for name in ("topology", "target", "policy_and_rule", "keep")]
        for called, whole, draft in (("inflated", row, pieces["draft"]), ("native", native, native["draft_ms"])):
            share = f"{whole['other_ms']:.3f} ms, {whole['other_share']:.1%}"
            front = [str(row["nodes"]), str(row["depth"]), called, _number(whole["step_ms"], 3), _number(draft, 3)]
            rows.append([*front, *rest, share])
    return heads, rows


_PACE = ["tok/s", "steady tok/s", "tokens per call", "ms a step", "steady ms"]


def _pace(row: Found) -> list[str]:
    keys = ("tokens_per_second", "steady_tokens_per_second", "tokens_per_call", "ms_per_step", "steady_ms_per_step")
    return [_number(row.get(key), 1 if key.endswith("second") else 2) for key in keys]


def _speed(part: Found) -> Cells:
    heads = ["way", *_PACE, "× plain", "× one draft", "× top-k", "× K-SEQ"]
    against = ("plain", "speculative", "topk", "kseq")
    rows = [[_way(row), *_pace(row), *(_number(row["ratios"].get(name)) for name in against)] for row in part["rows"]]
    return heads, rows


def _rows(part: Found) -> Cells:
    best = {(row["rows"], row["nodes"]) for row in part["best"]}
    found = [
        [
            str(row["rows"]), str(row["nodes"]), _way(row), *_pace(row),
            "best" if (row["rows"], row["nodes"]) in best else "",
        ]
        for row in part["results"]
    ]  # fmt: skip
    return ["rows", "nodes", "way", *_PACE, ""], found


def _memory(part: Found) -> Cells:
    weights = sum(part["weight_bytes"].values())
    values = (weights, part["cache_bytes"], part["beside_bytes"])
    return ["weights MiB", "caches MiB", "other MiB"], [[_number(v and v / 2**20, 1) for v in values]]


def _peers(part: Found) -> Cells:
    return ["way", *_PACE], [[_way(row), *_pace(row)] for row in part["rows"]]


_TABLES: dict[str, Callable[[Found], Cells]] = {
    "bandwidth": _bandwidth,
    "calls": _calls,
    "step": _step,
    "speed": _speed,
    "rows": _rows,
    "memory": _memory,
    "peers": _peers,
}


def tables(found: Found) -> Iterable[tuple[str, Cells]]:
    """Return a titled table for each part; the title says what is missing or why the part failed."""
    for name, part in found["parts"].items():
        left = f", {part['left']} left" if part.get("left") else ""
        title = name + left + (f", failed: {part['error']}" if "error" in part else "")
        yield title, _TABLES[name](part) if "left" in part else ([], [])
