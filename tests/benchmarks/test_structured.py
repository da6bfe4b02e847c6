"""`benchmarks.structured` on a small model: every part really runs, and all ways give the same texts."""

import json
from pathlib import Path

import pytest
from tests.benchmarks.conftest import Command

from benchmarks.structured import Order, run, tables
from benchmarks.structured.__main__ import structured
from benchmarks.structured.run import WAYS


@pytest.mark.slow
def test_texts_and_walks(target: str, tmp_path: Path) -> None:
    said = list[str]()
    order = Order(tmp_path / "found.json", target, "lookup", tokens=24, seeds=1)
    found = run(order, said.append)
    assert set(found["parts"]) == {"line, greedy", "line, sampled", "any, greedy", "any, sampled", "walk"}, said
    for name, part in found["parts"].items():
        assert part["left"] == 0, (name, part)
        if name == "walk":
            assert all(row["microseconds"] > 0 for row in part["rows"])
            continue
        rows = part["rows"]
        assert part["differing"] == 0
        assert set(rows) == set(WAYS)
        assert rows["plain"]["tokens"] == rows["plain"]["calls"] == rows["forced"]["tokens"]
        assert rows["forced"]["calls"] < rows["plain"]["calls"]
    assert len(list(tables(found))) == 5
    assert run(order, said.append) == found
    assert said[-1] == "everything is measured already"


@pytest.mark.slow
def test_the_command_saves_the_chosen_parts(target: str, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "found.json"
    ran = command(structured, "--model", target, "--drafter", "none", "--tokens", "8", "--seeds", "1",
                  "--only", "line, greedy", "--out", str(out))  # fmt: skip
    assert ran.code == 0, ran.err
    assert "× plain" in ran.out
    part = json.loads(out.read_text())["parts"]["line, greedy"]
    assert part["command"].startswith("python -m benchmarks.structured")
    bad = command(structured, "--model", target, "--only", "nothing", "--out", str(tmp_path / "other.json"))
    assert bad.code == 2
    assert "no part is called" in bad.err


@pytest.mark.parametrize("name", WAYS)
def test_the_ways(name: str) -> None:
    drafter, forced = WAYS[name]
    assert ("forced" in name) == forced
    assert ("drafter" in name) == (drafter == "auto")
