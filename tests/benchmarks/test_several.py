"""`benchmarks.several`: benchmarks share one process and one inflated model, and one that fails ends no other."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.inflate import pair
from benchmarks.inflate.model import Size
from benchmarks.inflate.order import Order
from benchmarks.several import Line, lines, run
from spectr.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[2]


def test_comments_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "plan.txt"
    file.write_text("# a comment\n\nbenchmarks.traffic --only 'in_flight_1' # another\n")
    assert lines(file) == [Line("benchmarks.traffic", ("--only", "in_flight_1"))]
    file.write_text("rm -r /\n")
    with pytest.raises(ArgumentError, match="must begin with a module of benchmarks"):
        lines(file)
    with pytest.raises(ArgumentError, match="must be a text file"):
        lines(tmp_path / "missing.txt")


def test_results_go_to_another_folder(tmp_path: Path) -> None:
    line = Line("benchmarks.cliffs", ("--tokens", "6", "--out", "build/gpu/cliffs.json", "--only", "many"))
    moved = ("--tokens", "6", "--out", str(tmp_path / "cliffs.json"), "--only", "many")
    assert line.into(tmp_path) == Line("benchmarks.cliffs", moved)
    bare = Line("benchmarks.cliffs", ("--only", "many"))
    assert bare.into(tmp_path) == bare


def test_every_line_for_a_gpu_has_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for line in lines(ROOT / "benchmarks" / "gpu.txt"):
        flags = [word for word in line.arguments if word.startswith("--")]
        assert Line(line.module, ("--help",)).run() == 0
        text = capsys.readouterr().out
        assert [flag for flag in flags if flag not in text] == []


def test_a_failure_ends_no_other_benchmark(target: str, head: str, tmp_path: Path) -> None:
    out, said = tmp_path / "a new folder" / "cliffs.json", list[str]()
    small = ("--tokens", "6", "--rounds", "1", "--only", "lookup", "--device", "cpu", "--out", str(out))
    every = [
        Line("benchmarks.traffic", ("--in-flight", "none")),
        Line("benchmarks.cliffs", ("--model", target, "--drafter", head, *small)),
    ]
    assert run(every, 60.0, said.append) == every[:1]
    found = json.loads(out.read_text())["parts"]["lookup"]
    assert found["left"] == 0
    assert found["command"].startswith(f"python -m benchmarks.cliffs --model {target}")
    assert len(said) == 2


def test_a_benchmark_that_was_imported_before_runs_too(capsys: pytest.CaptureFixture[str]) -> None:
    imported = importlib.import_module("benchmarks.cliffs.__main__")
    assert Line("benchmarks.cliffs", ("--help",)).run() == 0
    assert "--rounds" in capsys.readouterr().out
    assert sys.modules["benchmarks.cliffs.__main__"] is imported


def test_no_benchmark_begins_when_the_time_is_over() -> None:
    said = list[str]()
    assert run([Line("benchmarks.traffic", ("--nonsense",))], -1.0, said.append) == []
    assert said == ["no time is left for benchmarks.traffic --nonsense"]


def test_benchmarks_with_the_same_settings_share_an_inflated_model(
    target: str, head: str, prompts: Path, tmp_path: Path
) -> None:
    order = Order(tmp_path / "a.json", target, head, device="cpu", prompts=prompts, size=Size(64, 5, 8, 4, 80))
    first = pair.build(order, lambda _: None)
    assert pair.build(order, lambda _: None).large.target is first.large.target
