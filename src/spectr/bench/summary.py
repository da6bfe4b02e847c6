"""Summarises single texts: medians with their spread, sums of counts, and comparisons of methods text by text.

Every figure is a function of the cells, so that a killed run can be reported too.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spectr.bench.methods import METHODS

__all__ = ["PARTS", "summarise"]

Text = Mapping[str, Any]
"""The recorded measurements of one text of one method."""

PARTS = ("prompt", "draft", "target", "rule", "rest")
_WAY = ("study", "method", "drafts", "length", "drafter", "temperature")  # the key of a row of the table
_TURN = ("study", "task", "prompt", "temperature", "round")  # the key of texts that are compared with each other


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the median and the quartiles."""
    if not values:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "low": low, "high": high, "count": len(values)}


def _sums(lists: Iterable[Sequence[int]]) -> list[int]:
    """Add lists of counts element by element."""
    found: list[int] = []
    for counts in lists:
        found += [0] * (len(counts) - len(found))
        for at, count in enumerate(counts):
            found[at] += count
    return found


def _shares(counts: Sequence[int], of: Sequence[int]) -> list[float]:
    return [count / total if total else 0.0 for count, total in zip(counts, of, strict=True)]


def _groups(texts: Iterable[Text], names: Sequence[str]) -> dict[tuple[Any, ...], list[Text]]:
    found: dict[tuple[Any, ...], list[Text]] = defaultdict(list)
    for text in texts:
        found[tuple(text[name] for name in names)].append(text)
    return dict(found)


class _Bases:
    """The texts of one method, with which others are compared turn by turn."""

    def __init__(self, texts: Sequence[Text], method: str) -> None:
        self._known = {tuple(text[name] for name in _TURN): text for text in texts if text["method"] == method}

    def of(self, text: Text) -> Text | None:
        """Return the base's text of the same turn."""
        return self._known.get(tuple(text[name] for name in _TURN))

    def speed_ups(self, texts: Sequence[Text]) -> list[float]:
        """Return the speed-ups per token over the base's texts, only for texts of the same process, because the machine
        may change between processes."""
        pairs = [(text, self.of(text)) for text in texts]
        return [
            base["seconds"] / base["tokens"] / (text["seconds"] / text["tokens"])
            for text, base in pairs
            if base is not None and base["sitting"] == text["sitting"] and base["tokens"] and text["tokens"]
        ]

    def identical(self, texts: Sequence[Text]) -> dict[str, int] | None:
        """Return how many texts are equal to the base's, token for token."""
        pairs = [(text, self.of(text)) for text in texts]
        same = [text["digest"] == base["digest"] for text, base in pairs if base is not None and text["digest"]]
        return {"same": sum(same), "of": len(same)} if same else None


def _parts(texts: Sequence[Text]) -> dict[str, float] | None:
    """Return the milliseconds per token of each part; the rest is Python, and on a GPU the wait for it."""
    tokens = sum(text["tokens"] for text in texts)
    known = [name for name in PARTS if any(name in text["parts"] for text in texts)]
    if not known or not tokens:
        return None
    seconds = {name: sum(text["parts"].get(name, 0.0) for text in texts) for name in known}
    seconds["rest"] = sum(text["seconds"] for text in texts) - sum(seconds.values())
    return {name: 1e3 * value / tokens for name, value in seconds.items()}


def _efficiency(texts: Sequence[Text]) -> dict[str, float | None]:
    """Return tokens per target call over all texts, and its standard error by the jackknife over texts."""
    counts = [(text["tokens"], text["steps"] or 0) for text in texts]
    tokens, steps, size = sum(t for t, _ in counts), sum(s for _, s in counts), len(counts)
    if not steps:
        return {"block_efficiency": None, "block_efficiency_error": None}
    without = [(tokens - t) / (steps - s) for t, s in counts if steps > s]
    error = math.sqrt((size - 1) ** 2 / size * statistics.variance(without)) if len(without) > 1 else None
    return {"block_efficiency": tokens / steps, "block_efficiency_error": error}


def _counts(texts: Sequence[Text]) -> dict[str, Any]:
    """Return counts of speculation, summed over all texts; they are a function of the seeds."""
    tokens = sum(text["tokens"] for text in texts)
    steps = sum(text["steps"] or 0 for text in texts)
    found = {"lossless": texts[0]["lossless"], "texts": len(texts), "tokens": tokens, **_efficiency(texts)}
    if any(text["reached"] is None for text in texts):
        return found
    reached, kept, ranks = (_sums(text[name] for text in texts) for name in ("reached", "kept", "ranks"))
    return {
        **found,
        "drafted_per_call": sum(text["drafted"] for text in texts) / max(1, steps),
        "acceptance_by_depth": _shares(kept, reached),
        "acceptance_by_rank": [count / sum(reached) for count in ranks] if sum(reached) else [],
    }


def _times(texts: Sequence[Text], bases: Mapping[str, _Bases]) -> dict[str, Any]:
    rates = [text["tokens"] / text["seconds"] for text in texts if text["tokens"]]
    return {
        "tokens_per_second": _spread(rates),
        "speed_up": _spread(bases["plain"].speed_ups(texts)),
        "speed_up_over_transformers": _spread(bases["transformers"].speed_ups(texts)),
        "milliseconds_per_token": _parts(texts),
        "memory": max((text["memory"] for text in texts if text["memory"]), default=None),
        "identical": bases["plain"].identical(texts),
    }


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = list(METHODS)
    place = names.index(row["method"]) if row["method"] in names else len(names)
    return (
        row["study"],
        row["temperature"],
        place,
        row["drafts"] or 0,
        row["length"] or 0,
        len(row["drafter"]),
        row["drafter"],
    )


def _rows(texts: Sequence[Text], names: Sequence[str], measure: Callable[[list[Text]], dict[str, Any]]) -> list[Any]:
    groups = _groups(texts, names).items()
    return sorted(({**dict(zip(names, key, strict=True)), **measure(group)} for key, group in groups), key=_order)


def summarise(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows by method, K, L and temperature, the same by task, and the cells of the ablations."""
    texts = [cell for cell in cells.values() if cell["study"] in ("main", "size")]
    bases = {name: _Bases(texts, name) for name in ("plain", "transformers")}

    def measure(group: list[Text]) -> dict[str, Any]:
        return {**_counts(group), **_times(group, bases)}

    return {
        "results": _rows(texts, _WAY, measure),
        "by_task": _rows([text for text in texts if text["study"] == "main"], (*_WAY, "task"), measure),
        "quality": [dict(cell) for cell in cells.values() if cell["study"] == "quality"],
        "vocabulary": [dict(cell) for cell in cells.values() if cell["study"] == "vocabulary"],
    }
