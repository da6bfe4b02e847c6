"""`spectr bench`: flags, tables, JSON and pages; measured values are not checked here."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spectr.bench import rules as bench_rules
from spectr.bench.grid import PRESETS, Grid
from spectr.bench.journal import Journal
from spectr.bench.run import Bench, Progress
from spectr.bench.summary import summarise
from spectr.cli import bench as cli_bench

Spectr = Callable[..., Any]

ROW = {"rule": "kseq", "vocabulary": 32000, "children": 4, "mode": "captured"}
RESULTS = {"results": [{**ROW, "milliseconds": 1.25, "softmax_milliseconds": 0.5, "ratio": 2.5}]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of the benchmark, which measures nothing."""
    seen: dict[str, Any] = {}

    def run(**options: Any) -> dict[str, Any]:
        options.pop("progress")("measuring")
        seen.update(options)
        return RESULTS

    fake = ModuleType("spectr.bench.rules")
    fake.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spectr.bench", ModuleType("spectr.bench"))
    monkeypatch.setitem(sys.modules, "spectr.bench.rules", fake)
    return seen


def test_flags_reach_the_benchmark(spectr: Spectr, asked: dict[str, Any]) -> None:
    flags = ("--vocabulary", "8,16", "--children", "2", "--rules", "kseq,race", "--nodes", "5", "--repeats", "3")
    assert spectr("bench", "rules", *flags).code == 0
    assert asked == {
        "vocabularies": (8, 16),
        "children": (2,),
        "rules": ("kseq", "race"),
        "size": (5, "cpu", 3),
    }


@pytest.mark.usefixtures("asked")
def test_the_table(spectr: Spectr) -> None:
    ran = spectr("bench", "rules")
    assert ran.err == "measuring\n"
    assert ran.out.splitlines()[-1].split() == ["kseq", "captured", "32,000", "4", "1.250", "0.500", "2.50"]


@pytest.mark.usefixtures("asked")
def test_json_is_pure_and_goes_to_a_file_too(spectr: Spectr, tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    ran = spectr("bench", "rules", "--json", "--out", str(path))
    assert json.loads(ran.out) == json.loads(path.read_text()) == RESULTS
    assert ran.err == f"measuring\nwrote {path}\n"


@pytest.mark.usefixtures("asked")
def test_a_file_that_cannot_be_written_is_named(spectr: Spectr, tmp_path: Path) -> None:
    ran = spectr("bench", "rules", "--out", str(tmp_path))
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith(f"spectr: cannot write {tmp_path}")


def test_a_folder_that_is_not_there_is_refused_before_the_work(
    spectr: Spectr, asked: dict[str, Any], tmp_path: Path
) -> None:
    ran = spectr("bench", "rules", "--out", str(tmp_path / "nowhere" / "rules.json"))
    assert (ran.code, ran.out, asked) == (2, "", {})
    assert f"there is no folder {tmp_path / 'nowhere'}" in ran.err


@pytest.mark.parametrize(
    "flags",
    [("--vocabulary", "0"), ("--children", "x"), ("--rules", "nothing"), ("--nodes", "0"), ("--device", "gpu9")],
)
def test_what_is_refused_is_not_measured(spectr: Spectr, asked: dict[str, Any], flags: tuple[str, ...]) -> None:
    ran = spectr("bench", "rules", *flags)
    assert (ran.code, ran.out, asked) == (2, "", {})
    assert flags[0] in ran.err or flags[1] in ran.err


def test_a_device_that_is_not_here_is_refused(
    spectr: Spectr, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ran = spectr("bench", "rules", "--device", "cuda:1")
    assert (ran.code, asked) == (2, {})
    assert ran.err == "spectr: --device cuda:1 requires a CUDA device, and torch finds none; use --device cpu\n"


def test_the_default_rules_are_those_of_the_benchmark() -> None:
    assert tuple(cli_bench._RULES.split(",")) == bench_rules.RULES


def test_the_benchmark_itself_runs(spectr: Spectr) -> None:
    """A small run; the figures are not checked."""
    small = ("--vocabulary", "16", "--children", "2", "--rules", "race,kseq", "--nodes", "5", "--repeats", "1")
    rows = json.loads(spectr("bench", "rules", *small, "--json").out)["results"]
    assert {row["rule"] for row in rows} == {"race", "kseq"}
    assert all(row["milliseconds"] > 0 and row["ratio"] > 0 for row in rows)


TEXT = {
    "study": "main", "task": "code", "prompt": 0, "temperature": 1.0, "round": 0, "sitting": 0, "method": "plain",
    "drafts": None, "length": None, "drafter": "none", "tokens": 10, "seconds": 1.0, "steps": 10, "parts": {},
    "drafted": 0, "reached": [], "kept": [], "ranks": [], "memory": None, "digest": "a",
    "lossless": False,
}  # fmt: skip
FOUND = {"cells_missing": 0, "interrupted": False, **summarise({"a": TEXT})}


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    """Record the arguments of a run, which measures nothing."""
    seen: list[Bench] = []

    def run(bench: Bench, progress: Progress) -> dict[str, Any]:
        progress.expect(1)
        progress.tick()
        seen.append(bench)
        return FOUND

    monkeypatch.setattr("spectr.bench.run.run", run)
    return seen


def test_the_flags_of_a_run(spectr: Spectr, benched: list[Bench], tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    flags = (
        "my-model", "--drafter", "early_exit", "--methods", "plain,race", "--tasks", "code,arithmetic=x.jsonl",
        "--drafts", "1,2", "--lengths", "3", "--temperatures", "0,0.7", "--tokens", "9", "--texts", "4", "--rounds",
        "2", "--ablations", "size", "--noises", "0,1", "--sizes", "ngram", "--vocabularies", "100", "--seed", "5",
        "--endpoint", "http://a", "--endpoint", "http://b#m", "--prefix", "p: ", "--minutes", "2",
        "--device", "cpu", "--dtype", "bfloat16", "--out", str(out),
    )  # fmt: skip
    assert spectr("bench", "run", *flags).code == 0
    (bench,) = benched
    assert bench.grid == Grid(
        ("plain", "race"), ("code", "arithmetic=x.jsonl"), (1, 2), (3,), (0.0, 0.7), 9, 4, 2, ("size",), 5, (0.0, 1.0),
        ("ngram",), (100,),
    )  # fmt: skip
    assert (bench.target, bench.drafter, bench.out) == ("my-model", "early_exit", out)
    assert (bench.endpoints, bench.prefix) == (("http://a", "http://b#m"), "p: ")
    assert (bench.minutes, bench.strict) == (2.0, True)
    assert bench.loading == {"device": "cpu", "dtype": "bfloat16"}


def test_presets_and_none_at_all(spectr: Spectr, benched: list[Bench], tmp_path: Path) -> None:
    where = ("--out", str(tmp_path / "b.json"))
    assert spectr("bench", "run", *where).code == 0
    assert spectr("bench", "run", "--preset", "paper", "--ablations", "", *where).code == 0
    quick, paper = benched
    assert (quick.target, quick.drafter, quick.grid, quick.strict) == ("smollm2-135m", None, PRESETS["quick"], False)
    assert paper.grid == replace(PRESETS["paper"], studies=())


@pytest.mark.usefixtures("benched")
def test_what_a_run_prints(spectr: Spectr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "b.json"
    ran = spectr("bench", "run", "--out", str(out))
    assert ran.out.splitlines()[-1].split()[:5] == ["plain", "decoding,", "LOSSY", "1", "1.00"]
    assert (
        ran.err
        == f"1 cell to measure\ncomplete: {out}; to make a page of it: spectr bench report {out} --out page.html\n"
    )
    assert json.loads(spectr("bench", "run", "--out", str(out), "--json").out) == FOUND
    cut = {**FOUND, "interrupted": True, "cells_missing": 3}
    monkeypatch.setattr("spectr.bench.run.run", lambda *_: cut)
    ran = spectr("bench", "run", "--out", str(out))
    assert ran.code == 130
    assert ran.err == f"{out} lacks 3 cells; run the same command again to measure them\n"


@pytest.mark.parametrize(
    "flags",
    [
        ("--preset", "quik"), ("--methods", "rase"), ("--drafts", "0"), ("--temperatures", "-1"), ("--tokens", "0"),
        ("--ablations", "qality"), ("--noises", "2"), ("--methods", ","), ("--out", "nowhere/b.json"),
    ],
)  # fmt: skip
def test_a_run_refuses_before_it_begins(spectr: Spectr, benched: list[Bench], flags: tuple[str, str]) -> None:
    ran = spectr("bench", "run", *flags)
    assert (ran.code, ran.out, benched) == (2, "", [])
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("finished", [True, False])
def test_reports(spectr: Spectr, tmp_path: Path, finished: bool) -> None:
    path = tmp_path / "b.json"
    hardware = {"cpu": "a cpu", "cores": 2, "threads": 1, "simd": "AVX2", "memory": 1 << 30}
    head = {
        "target": {"name": "t", "weights": 1, "vocabulary": 2}, "dtype": "float32", "hardware": hardware,
        "drafter": {"name": "d", "kind": "k", "rule": "race", "weights": None}, "versions": {"torch": "2"},
        "grid": {"seed": 0},
    }  # fmt: skip
    journal = Journal(path, head)
    journal.add("sitting 0", {"study": "sitting", "command": "spectr bench run", "begun": "today", "load": 0.5})
    journal.add("a", TEXT)
    if finished:
        journal.finish({"left_out": {"kseq": "no laws"}, "cells_missing": 7, "too_long": 1})
    else:
        journal.close()
    page, table = tmp_path / "page.html", tmp_path / "table.md"
    ran = spectr("bench", "report", str(path), "--out", str(page), "--markdown", str(table))
    assert (ran.code, ran.err) == (0, f"wrote {page}\nwrote {table}\n")
    assert "<h1>spectr bench: t</h1>" in page.read_text()
    assert ("Left out K-SEQ (SpecTr): no laws" in page.read_text()) == finished
    assert ("Not measured: 7 cells" in table.read_text()) == finished
    assert spectr("bench", "report", str(path)).out.strip() == table.read_text().strip()


def test_there_is_nothing_to_report(spectr: Spectr, tmp_path: Path) -> None:
    ran = spectr("bench", "report", str(tmp_path / "x.json"))
    assert ran.code == 2
    assert "there is no benchmark in" in ran.err


def test_inflate_has_moved(spectr: Spectr) -> None:
    ran = spectr("bench", "inflate", "--compile", "--only", "rows")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.rstrip().endswith("run: python -m benchmarks.inflate --compile --only rows")
    assert "inflate" not in spectr("bench", "--help").out
