"""`spectr bench acceptance` and `spectr tree show`: counts and trees, in tables and JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.conftest import target

__all__ = ["target"]

Spectr = Callable[..., Any]


def test_every_rule_is_counted(spectr: Spectr, target: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"prompts": [{"text": "one two one two one"}, "ha ha ha ha"]}))
    out = tmp_path / "found.json"
    flags = ("--model", target, "--prompts", str(prompts), "--drafter", "ngram", "--nodes", "6", "--tokens", "6")
    flags = (*flags, "--temperatures", "1,0")
    ran = spectr("bench", "acceptance", *flags, "--rules", "race,optimal,match,chain,block", "--out", str(out))
    assert ran.code == 0, ran.err
    rows = json.loads(out.read_text())["results"]
    assert len(rows) == 10
    assert all(1 <= row["tokens_per_call"] <= 9 and row["steps"] > 0 for row in rows)
    assert "tokens per call" in ran.out
    bad = spectr("bench", "acceptance", "--prompts", str(prompts), "--rules", "raec")
    assert bad.code == 2
    assert "did you mean race" in bad.err


def test_trees(spectr: Spectr, tmp_path: Path) -> None:
    found = json.loads(spectr("tree", "show", "--nodes", "4", "--chances", "0.6,0.2/0.5,0.1", "--json").out)
    assert found["parents"] == [0, 0, 1, 0]
    shown = spectr("tree", "show", "--nodes", "6").out
    assert "tokens per call expected, 6 nodes" in shown
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps({"stats": {"acceptance_by_depth": [0.7, 0.5], "ranks": [6, 2]}}))
    measured = json.loads(spectr("tree", "show", "--nodes", "3", "--stats", str(stats), "--json").out)
    assert measured["values"] == [1.0, 0.7 * 0.75, 0.7 * 0.75 * 0.5 * 0.75]
    assert spectr("tree", "show", "--chances", "a,b").code == 2
    for chances in ("nan", "0.5,nan", "0.5/nan", "inf"):
        assert "must fall with rank and sum to at most 1" in spectr("tree", "show", "--chances", chances).err
    wrong = {"stats": {"acceptance_by_depth": "a", "ranks": ["x"]}}
    for content in (b"{}", b"[]", b"\xff\xfe\x00", json.dumps(wrong).encode()):
        stats.write_bytes(content)
        ran = spectr("tree", "show", "--stats", str(stats))
        assert (ran.code, "must be the output of spectr generate" in ran.err) == (2, True), ran.err
