"""Whole runs on small models: the methods, equal texts, counts, and interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spectr.bench.grid import PRESETS, Grid, preset
from spectr.bench.methods import METHODS
from spectr.bench.run import Progress
from spectr.bench.writers import BenchRequest, SpectrWriter, Written
from spectr.errors import ArgumentError, MismatchError, UnknownNameError

Measure = Callable[..., dict[str, Any]]
SPECTR = [name for name in METHODS if not name.startswith("transformers")]
RULED = [name for name, method in METHODS.items() if method.rule]

BASELINE = {
    "plain": (48, 48), "speculative": (48, 21), "block": (48, 25), "recursive": (48, 19), "kseq": (48, 19),
    "optimal": (48, 22), "path_block": (48, 20), "race": (48, 19), "topk": (48, 35), "lookup": (48, 48),
    "default": (48, 16),
}  # fmt: skip
"""Tokens and target calls; with so few, the order of the rules is chance."""


def rows(found: dict[str, Any], study: str = "main") -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in found["results"] if row["study"] == study}


def cells(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def test_all_methods_take_part(measure: Measure, tmp_path: Path) -> None:
    found = measure(temperatures=(0.0, 1.0), tokens=5)
    assert found["left_out"] == {}
    assert found["cells_missing"] == 0
    assert [row["method"] for row in found["results"]] == [*METHODS, *METHODS]
    texts = [cell for cell in cells(tmp_path / "bench.json").values() if cell["study"] == "main"]
    assert len(texts) == 2 * 2 * len(METHODS)
    for row in found["results"]:
        same = row["identical"]
        assert same["of"] == 2
        if row["temperature"] == 0 or row["method"] in ("plain", "race", "lookup", "default"):
            assert same["same"] == 2, row["method"]
        assert row["tokens"] <= 10
        assert row["block_efficiency"] >= 1
        assert sum(row["milliseconds_per_token"].values()) * row["tokens"] == pytest.approx(
            1e3
            * sum(t["seconds"] for t in texts if (t["method"], t["temperature"]) == (row["method"], row["temperature"]))
        )
    assert {task["task"] for task in found["by_task"]} == {"dialogue", "continuation"}


def test_counts_are_a_function_of_the_seeds(measure: Measure, tmp_path: Path) -> None:
    """A regression baseline: tokens and target calls of every rule, with weights from fixed seeds."""
    found = measure(methods=("plain", *RULED, "lookup", "default"), tokens=24, drafts=(3,), lengths=(3,))
    counted = {
        name: (row["tokens"], round(row["tokens"] / row["block_efficiency"])) for name, row in rows(found).items()
    }
    assert counted == BASELINE
    again = measure(methods=("race", "kseq"), tokens=24, drafts=(3,), lengths=(3,), out=tmp_path / "other.json")
    names = ("tokens", "block_efficiency", "acceptance_by_depth", "acceptance_by_rank", "drafted_per_call")
    for name, row in rows(again).items():
        assert [row[n] for n in names] == [rows(found)[name][n] for n in names]


def test_a_grid_has_every_size_once(measure: Measure) -> None:
    found = measure(methods=("plain", "speculative", "kseq", "race", "lookup"), drafts=(1, 2), lengths=(2, 3))
    sizes = [(row["method"], row["drafts"], row["length"]) for row in found["results"]]
    both = [(k, n) for k in (1, 2) for n in (2, 3)]
    assert sizes == [
        ("plain", None, None), ("speculative", 1, 2), ("speculative", 1, 3),
        *(("kseq", *size) for size in both), *(("race", *size) for size in both), ("lookup", None, None),
    ]  # fmt: skip
    by = {(row["method"], row["drafts"], row["length"]): row for row in found["results"]}
    assert by["kseq", 1, 3]["block_efficiency"] == by["speculative", 1, 3]["block_efficiency"]  # one draft is one draft
    assert all(row["drafted_per_call"] <= row["drafts"] * row["length"] for row in by.values() if row["drafts"])


def test_a_drafter_without_laws_leaves_rules_out(measure: Measure) -> None:
    found = measure(drafter="lookup")
    assert set(found["left_out"]) == {*RULED, "transformers_assistant"}
    assert "give --drafter early_exit" in found["left_out"]["kseq"]
    assert set(rows(found)) == {"plain", "lookup", "default", "transformers", "transformers_lookup"}
    with pytest.raises(MismatchError, match="has no laws to draw trees from"):
        measure(drafter="lookup", methods=("plain", "kseq"), strict=True)


def test_the_default_is_what_load_gives(measure: Measure) -> None:
    found = measure(drafter=None, methods=("plain", "default"))
    assert rows(found)["default"]["drafter"] == found["head"]["drafter"]["name"] == "none or lookup"  # no head


@pytest.mark.parametrize(
    "drafter", ["lookup+ngram", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ngram", "early_exit", "random"))]
)
def test_any_drafter_with_laws_serves_every_rule(measure: Measure, drafter: str) -> None:
    found = measure(drafter=drafter, methods=("plain", *RULED), strict=True, tasks=("continuation",))
    assert set(rows(found)) == {"plain", *RULED}
    assert rows(found)["race"]["identical"] == {"same": 1, "of": 1}


def test_what_transformers_refuses_is_left_out(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    from spectr.models.baselines import TransformersBaseline

    def refuse(*_: Any) -> None:
        raise ValueError("different\ntokenizers")

    monkeypatch.setattr(TransformersBaseline, "_generate", refuse)
    found = measure(methods=("plain", "transformers"))
    assert found["left_out"] == {"transformers": "transformers refuses: different tokenizers"}
    with pytest.raises(MismatchError, match="transformers cannot run"):
        measure(methods=("plain", "transformers"), strict=True)


def test_prompts_that_do_not_fit_are_counted(measure: Measure, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("short one\n" + "word " * 400 + "\n")
    found = measure(tasks=(f"continuation={long}",), prompts=2, methods=("plain",))
    assert (found["too_long"], found["results"][0]["texts"]) == (1, 1)
    long.write_text("word " * 400 + "\n")
    with pytest.raises(ArgumentError, match="no prompt and its answer fit"):
        measure(tasks=(f"continuation={long}",), methods=("plain",), out=tmp_path / "other.json")


@pytest.mark.slow
def test_an_encoder_decoder_model_translates(measure: Measure, translator: str) -> None:
    found = measure(
        target=translator, drafter=translator, tasks=("translation", "summarisation"), prefix="translate: ",
        methods=("plain", *RULED, "lookup", "transformers", "transformers_assistant", "transformers_lookup"),
        strict=True, temperatures=(0.0, 1.0), studies=("size", "quality"), noises=(0.0,), tokens=8,
    )  # fmt: skip
    assert set(found["left_out"]) <= {"size"}
    assert all(row["identical"]["same"] == 2 for row in found["results"] if row["temperature"] == 0)
    race = next(row for row in found["results"] if (row["method"], row["temperature"]) == ("race", 1))
    assert race["identical"]["same"] == 2
    assert race["block_efficiency"] > 2  # the drafter is the target
    assert {row["task"] for row in found["by_task"]} == {"translation", "summarisation"}


def test_finished_cells_are_not_measured_again(measure: Measure, tmp_path: Path) -> None:
    first = measure(methods=("plain", "race"))
    before = (tmp_path / "bench.json").read_text()
    expected: list[int] = []
    second = measure(methods=("plain", "race"), progress=Progress(expect=expected.append))
    assert expected == [0]
    assert second["results"] == first["results"]
    assert json.loads((tmp_path / "bench.json").read_text()) == json.loads(before)
    with pytest.raises(ArgumentError, match="holds a run with another grid"):
        measure(methods=("plain", "race"), seed=1)
    with pytest.raises(ArgumentError, match="holds a run with another drafter"):
        measure(methods=("plain", "race"), drafter="ngram")
    assert json.loads((tmp_path / "bench.json").read_text()) == json.loads(before)


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[BenchRequest]:
    """Interrupt spectr's writers after a number of texts."""
    write, seen = SpectrWriter.write, list[BenchRequest]()

    def stop(self: SpectrWriter, asked: BenchRequest) -> Written:
        if len(seen) == count:
            raise error
        seen.append(asked)
        return write(self, asked)

    monkeypatch.setattr(SpectrWriter, "write", stop)
    return seen


def test_an_interrupted_run_goes_on(measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(methods=("plain", "race", "kseq"), prompts=2, out=tmp_path / "whole.json")
    with monkeypatch.context() as patch:
        interrupted_after(8, patch, KeyboardInterrupt())  # three to warm up, five that count
        found = measure(methods=("plain", "race", "kseq"), prompts=2)
    assert (found["interrupted"], found["cells_missing"]) == (True, 12 - 5)
    kept = cells(tmp_path / "bench.json")
    expected: list[int] = []
    again = measure(methods=("plain", "race", "kseq"), prompts=2, progress=Progress(expect=expected.append))
    assert (again["interrupted"], again["cells_missing"], expected) == (False, 0, [7])
    now = cells(tmp_path / "bench.json")
    assert {name: now[name] for name in kept} == kept
    assert [name for name in now if name.startswith("sitting")] == ["sitting 0", "sitting 1"]
    for mine, theirs in zip(again["results"], whole["results"], strict=True):
        assert mine["block_efficiency"] == theirs["block_efficiency"]
    pairs = [row["speed_up"]["count"] for row in again["results"]]
    assert pairs == [4, 3, 3]  # of the turn that was cut, plain's text was written in another sitting than the others


def test_an_error_loses_nothing(measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(6, patch, RuntimeError("out of memory"))
        with pytest.raises(RuntimeError, match="out of memory"):
            measure(methods=("plain", "race"), prompts=2)
    assert len(cells(tmp_path / "bench.json")) == 1 + 4
    assert measure(methods=("plain", "race"), prompts=2)["cells_missing"] == 0


@pytest.mark.slow
def test_a_killed_run_goes_on(measure: Measure, target: str, near: str, tmp_path: Path) -> None:
    """The process is killed at an arbitrary point."""
    path = tmp_path / "bench.json"
    flags = (
        "--methods", "plain,race,optimal", "--tasks", "dialogue,continuation", "--texts", "3", "--tokens", "24",
        "--ablations", "", "--drafter", near, "--out", str(path),
    )  # fmt: skip
    code = "import torch; torch.set_num_threads(1); from spectr.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bench", "run", target, *flags], env=environment, stderr=subprocess.DEVNULL
    )
    part, deadline = tmp_path / "bench.json.part", time.monotonic() + 60
    while not (part.exists() and part.read_bytes().count(b"\n") >= 6):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    kept = [json.loads(line)["cell"] for line in part.read_text().splitlines()[1:] if line.endswith("}")]
    expected: list[int] = []
    grid = preset(
        "quick",
        methods=("plain", "race", "optimal"),
        tasks=("dialogue", "continuation"),
        prompts=3,
        tokens=24,
        studies=(),
    )
    given = {name: getattr(grid, name) for name in Grid.__slots__}
    found = measure(**given, progress=Progress(expect=expected.append))
    assert expected == [18 - (len(kept) - 1)]
    assert found["cells_missing"] == 0
    assert not part.exists()
    sittings = [cell["sitting"] for cell in cells(path).values() if cell["study"] == "main"]
    assert (sittings.count(0), sittings.count(1)) == (len(kept) - 1, expected[0])


def test_time_can_be_limited(measure: Measure) -> None:
    found = measure(methods=("plain", "lookup"), prompts=3, minutes=1e-6)
    assert (found["interrupted"], found["cells_missing"]) == (False, 12)
    assert found["results"] == []
    assert measure(methods=("plain", "lookup"), prompts=3, minutes=5)["cells_missing"] == 0


def test_every_method_comes_first_in_turn(measure: Measure, tmp_path: Path) -> None:
    measure(methods=("plain", "race", "lookup"), prompts=3)
    names = [cell["method"] for cell in cells(tmp_path / "bench.json").values() if cell["study"] == "main"]
    assert names[::3] == ["plain", "race", "lookup"] * 2


def test_presets() -> None:
    paper = PRESETS["paper"]
    assert (paper.drafts, paper.lengths, paper.temperatures) == ((1, 2, 4, 8), (2, 4, 8), (0.0, 0.3, 0.7, 1.0))
    assert preset("paper", tokens=7, drafts=None) == Grid(
        **{name: getattr(paper, name) for name in Grid.__slots__ if name != "tokens"}, tokens=7
    )
    with pytest.raises(UnknownNameError, match="did you mean quick"):
        preset("quik")
    with pytest.raises(UnknownNameError, match="did you mean kseq"):
        preset("quick", methods=("ksec",))
    with pytest.raises(UnknownNameError, match="did you mean quality"):
        preset("quick", studies=("qualty",))
    with pytest.raises(ArgumentError, match="shares of noise"):
        preset("quick", noises=(1.5,))
