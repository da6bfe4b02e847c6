"""Summaries, tables and a self-contained page from cells."""

import json
import re
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spectr.bench.journal import read_results
from spectr.bench.report import as_markdown, page
from spectr.bench.summary import summarise
from spectr.bench.tables import LEGEND

Measure = Callable[..., dict[str, Any]]


def cell(**given: Any) -> dict[str, Any]:
    """Return a cell of a text of 10 tokens in 1 second."""
    base = {
        "study": "main", "task": "code", "prompt": 0, "temperature": 1.0, "round": 0, "sitting": 0, "method": "plain",
        "drafts": None, "length": None, "drafter": "none", "tokens": 10, "seconds": 1.0, "steps": 10,
        "parts": {"prompt": 0.1, "draft": 0.0, "target": 0.6, "rule": 0.1}, "drafted": 0, "reached": [], "kept": [],
        "ranks": [], "memory": 100, "digest": "a", "lossless": True,
    }  # fmt: skip
    return {**base, **given}


def test_figures_by_hand() -> None:
    texts = [cell(prompt=at) for at in range(4)]
    mine = {"method": "kseq", "drafts": 2, "length": 2, "drafter": "d", "drafted": 20}
    for at, seconds in enumerate((0.5, 0.25, 1.0, 2.0)):
        counts = {"reached": [5, 3], "kept": [3, 1], "ranks": [3, 1], "steps": 5, "memory": 100 + at}
        texts.append(cell(prompt=at, **mine, seconds=seconds, digest="ab"[at % 2], **counts))
    texts[-1]["sitting"] = 1  # its plain text was written in another sitting
    found = summarise({str(at): text for at, text in enumerate(texts)})
    plain, row = found["results"]
    assert plain["speed_up"] == {"median": 1.0, "low": 1.0, "high": 1.0, "count": 4}
    assert row["speed_up"] == {"median": 2.0, "low": 1.5, "high": 3.0, "count": 3}
    assert row["tokens_per_second"]["median"] == statistics.median([20, 40, 10, 5])
    assert (row["block_efficiency"], row["drafted_per_call"], row["memory"]) == (2.0, 4.0, 103)
    assert row["block_efficiency_error"] == 0.0  # all texts alike
    assert row["acceptance_by_depth"] == pytest.approx([12 / 20, 4 / 12])
    assert row["acceptance_by_rank"] == pytest.approx([12 / 32, 4 / 32])
    assert row["identical"] == {"same": 2, "of": 4}
    assert plain["milliseconds_per_token"] == pytest.approx(
        {"prompt": 10, "draft": 0, "target": 60, "rule": 10, "rest": 20}
    )
    assert [row["task"] for row in found["by_task"]] == ["code", "code"]


def test_the_error_of_tokens_per_call_is_that_of_the_mean_where_calls_are_equal() -> None:
    texts = [cell(prompt=at, tokens=tokens, steps=5) for at, tokens in enumerate((10, 5, 15, 10))]
    (row,) = summarise({str(at): text for at, text in enumerate(texts)})["results"]
    assert row["block_efficiency"] == 2.0
    assert row["block_efficiency_error"] == pytest.approx(statistics.stdev([2, 1, 3, 2]) / 2)
    (alone,) = summarise({"a": texts[0]})["results"]
    assert alone["block_efficiency_error"] is None


def test_empty_texts_are_summarised() -> None:
    found = summarise({"a": cell(tokens=0, seconds=0.1, steps=0), "b": cell(method="race", tokens=0)})
    assert all(row["speed_up"] is None for row in found["results"])
    assert summarise({})["results"] == []


class Page(HTMLParser):
    """Collects the resources a page would fetch, unclosed tags, and the titles and shapes of its charts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.titles: list[str] = []
        self.widths: list[float] = []
        self.points: list[tuple[float, float]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]
        self.fetched += [tag] if tag in ("script", "link", "iframe") else []
        self.widths += [float(width) for width in re.findall(r"width:([^%;]+)%", given.get("style") or "")]
        self.points += [tuple(map(float, pair.split(","))) for pair in (given.get("points") or "").split()]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h3"]:
            self.titles.append(data)


@pytest.mark.slow
def test_the_page_needs_nothing_else(measure: Measure, tmp_path: Path) -> None:
    measure(
        drafts=(1, 2), tokens=8, studies=("quality", "size", "vocabulary"), noises=(0.0, 0.5),
        vocabularies=(300, 900), sizes=("early_exit:1", "early_exit:3"),
        methods=("plain", "speculative", "kseq", "race", "topk", "lookup", "transformers"),
        tasks=("arithmetic", "dialogue"),
    )  # fmt: skip
    head, cells, data = read_results(tmp_path / "bench.json")
    result = {**data, **summarise(cells), "cells": cells}
    assert json.loads(json.dumps(summarise(cells))) == {name: data[name] for name in summarise(cells)}
    text = page(head, result)
    made = Page(text)
    assert (made.fetched, made.open) == ([], [])
    assert text.startswith("<!doctype html>")
    assert "url(" not in text
    for words in ("faster than plain", "per target call", "against K", "by depth", "by rank", "Milliseconds", "quality",
                  "several sizes", "vocabulary"):  # fmt: skip
        assert any(words in title for title in made.titles), words
    assert all(meaning in text for meaning in LEGEND.values())
    assert made.widths
    assert all(0 <= width <= 100.001 for width in made.widths)
    assert max(made.widths) == pytest.approx(100)
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in made.points)
    assert {x for x, _ in made.points} >= {0.0, 100.0}  # charts use their whole width
    for value in ("nan", "inf", "None"):
        assert not re.search(rf"\b{value}\b", text)
    written = as_markdown(head, result)
    table = [line for line in written.splitlines() if line.startswith("| ")]
    methods = {row["method"] for row in data["by_task"]}
    assert len(table) == 2 + len([r for r in data["results"] if r["study"] == "main"]) + 2 + 2 * len(methods)
    assert len({line.count("|") for line in table}) == 2
    assert "spectr bench run" in written
    assert f"K: {LEGEND['K']}" in written
    assert head["hardware"]["cpu"] in written
    assert head["hardware"]["cpu"].replace("&", "&amp;") in text


def test_html_is_escaped(measure: Measure, tmp_path: Path) -> None:
    measure(methods=("plain",), command="spectr <script>alert(1)</script> | x")
    head, cells, data = read_results(tmp_path / "bench.json")
    assert "<script>" not in page(head, {**data, "cells": cells})


def test_nouns_are_singular_or_plural(measure: Measure, tmp_path: Path) -> None:
    measure(methods=("plain",))
    head, cells, data = read_results(tmp_path / "bench.json")
    one = {**head, "hardware": {**head["hardware"], "cores": 1, "threads": 1}}
    result = {**data, "cells": cells, "cells_missing": 1, "too_long": 2}
    for text in (page(one, result), as_markdown(one, result)):
        assert "1 core, 1 thread, " in text
        assert "Not measured: 1 cell;" in text
        assert "Left out 2 prompts too long" in text
