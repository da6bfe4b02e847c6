"""`spectr bench rules`: flags in, table or JSON out; what is measured is not looked at here."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spectr.bench import rules as bench_rules
from spectr.cli import bench as cli_bench

Spectr = Callable[..., Any]

ROW = {"rule": "kseq", "vocabulary": 32000, "children": 4, "mode": "captured"}
RESULTS = {"results": [{**ROW, "milliseconds": 1.25, "softmax_milliseconds": 0.5, "ratio": 2.5}]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the benchmark was asked for; it measures nothing and says one word."""
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
    assert ran.err == "spectr: --device cuda:1 needs a CUDA device, and torch finds none here; use --device cpu\n"


def test_the_default_rules_are_those_of_the_benchmark() -> None:
    assert tuple(cli_bench._RULES.split(",")) == bench_rules.RULES


def test_the_benchmark_itself_runs(spectr: Spectr) -> None:
    """Small enough to be quick; the figures are not looked at."""
    small = ("--vocabulary", "16", "--children", "2", "--rules", "race,kseq", "--nodes", "5", "--repeats", "1")
    rows = json.loads(spectr("bench", "rules", *small, "--json").out)["results"]
    assert {row["rule"] for row in rows} == {"race", "kseq"}
    assert all(row["milliseconds"] > 0 and row["ratio"] > 0 for row in rows)
