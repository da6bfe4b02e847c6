"""From cells to figures, tables and a page that needs nothing else."""

import json
import re
import statistics
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spectr.bench.journal import read_results
from spectr.bench.page import as_markdown, page
from spectr.bench.summary import summarise
from spectr.bench.svg import Bar, Line, bars, lines, stacks

Measure = Callable[..., dict[str, Any]]


def cell(**given: Any) -> dict[str, Any]:
    """A text of 10 tokens in 1 second."""
    base = {
        "study": "main", "task": "code", "prompt": 0, "temperature": 1.0, "round": 0, "sitting": 0, "method": "plain",
        "drafts": None, "length": None, "drafter": "none", "tokens": 10, "seconds": 1.0, "steps": 10,
        "parts": {"prompt": 0.1, "draft": 0.0, "target": 0.6, "rule": 0.1}, "drafted": 0, "reached": [], "kept": [],
        "ranks": [], "memory": 100, "digest": "a", "score": 0.5, "lossless": True,
    }  # fmt: skip
    return {**base, **given}


def test_figures_by_hand() -> None:
    texts = [cell(prompt=at) for at in range(4)]
    mine = {"method": "kseq", "drafts": 2, "length": 2, "drafter": "d", "drafted": 20}
    for at, seconds in enumerate((0.5, 0.25, 1.0, 2.0)):
        counts = {"reached": [5, 3], "kept": [3, 1], "ranks": [3, 1], "steps": 5, "memory": 100 + at}
        texts.append(cell(prompt=at, **mine, seconds=seconds, digest="ab"[at % 2], score=0.5 + 0.1 * at, **counts))
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
    task = found["by_task"][1]
    assert task["score"]["mean"] == pytest.approx(0.65)
    assert task["score_difference"]["mean"] == pytest.approx(0.15)
    assert task["within_noise"] is True


def test_the_error_of_tokens_per_call_is_that_of_the_mean_where_calls_are_equal() -> None:
    texts = [cell(prompt=at, tokens=tokens, steps=5) for at, tokens in enumerate((10, 5, 15, 10))]
    (row,) = summarise({str(at): text for at, text in enumerate(texts)})["results"]
    assert row["block_efficiency"] == 2.0
    assert row["block_efficiency_error"] == pytest.approx(statistics.stdev([2, 1, 3, 2]) / 2)
    (alone,) = summarise({"a": texts[0]})["results"]
    assert alone["block_efficiency_error"] is None


def test_a_difference_beyond_chance_is_named() -> None:
    texts = [cell(prompt=at, score=0.1 * at) for at in range(9)]
    texts += [cell(prompt=at, method="race", score=0.1 * at + 0.2 + 0.001 * at) for at in range(9)]
    found = summarise({str(at): text for at, text in enumerate(texts)})["by_task"]
    assert [row["within_noise"] for row in found] == [True, False]
    for text in texts[9:]:
        text["score"] -= 0.204
    found = summarise({str(at): text for at, text in enumerate(texts)})["by_task"]
    assert found[1]["within_noise"] is True
    alone = summarise({"a": cell(), "b": cell(method="race", score=0.7)})["by_task"]
    assert alone[1]["within_noise"] is None  # one text cannot tell


def test_texts_of_nothing_do_no_harm() -> None:
    found = summarise({"a": cell(tokens=0, seconds=0.1, steps=0), "b": cell(method="race", tokens=0)})
    assert all(row["speed_up"] is None for row in found["results"])
    assert summarise({})["results"] == []


class Links(HTMLParser):
    """Everything a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]
        self.found += [tag] if tag in ("script", "link", "iframe") else []


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
    made = page(head, result)
    links = Links()
    links.feed(made)
    assert links.found == []
    assert "url(" not in made
    charts = re.findall(r"<svg.*?</svg>", made, re.DOTALL)
    titles = [ElementTree.fromstring(chart).find("text").text for chart in charts]  # type: ignore[union-attr]
    for words in ("faster than plain", "per target call", "against K", "by depth", "by rank", "Milliseconds", "quality",
                  "several sizes", "vocabulary"):  # fmt: skip
        assert any(words in str(title) for title in titles), words
    for value in ("nan", "inf", "None"):
        assert value not in " ".join(charts)
    text = as_markdown(head, result)
    table = [line for line in text.splitlines() if line.startswith("| ")]
    methods = {row["method"] for row in data["by_task"]}
    assert len(table) == 2 + len([r for r in data["results"] if r["study"] == "main"]) + 2 + 2 * len(methods)
    assert len({line.count("|") for line in table}) == 2
    assert "spectr bench run" in text
    assert head["hardware"]["cpu"] in text
    assert head["hardware"]["cpu"].replace("&", "&amp;") in made


def test_words_cannot_break_the_page(measure: Measure, tmp_path: Path) -> None:
    measure(methods=("plain",), command="spectr <script>alert(1)</script> | x")
    head, cells, data = read_results(tmp_path / "bench.json")
    assert "<script>" not in page(head, {**data, "cells": cells})


def test_charts() -> None:
    one = bars("A < B", [Bar("x", 0.0, "#000")])
    assert ElementTree.fromstring(one).find("text").text == "A < B"  # type: ignore[union-attr]
    flat = lines("t", [Line("a", "#000", [(1.0, 2.0)]), Line("b", "#000", [(1.0, 2.0)])], ("x", "y"))
    places = [node.get("y") for node in ElementTree.fromstring(flat) if node.text in ("a", "b")]
    assert len(set(places)) == 2  # names do not lie upon each other
    wide = lines("t", [Line("a", "#000", [(10_000, 1.0), (152_064, 2.0)])], ("x", "y"), log=True)
    assert "152,064" in wide
    assert ElementTree.fromstring(stacks("s", {"m": {"p": 1.0, "q": -0.1}}, {"p": "#111", "q": "#222"})) is not None
