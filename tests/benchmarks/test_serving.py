"""`benchmarks.serving` on a small model: both ways run the same requests, and the part that lasts counts errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flags import ends
from benchmarks.serving.__main__ import serving
from benchmarks.serving.alone import run_alone
from benchmarks.serving.run import _CLIENT, _row, _serving, run
from benchmarks.traffic.order import Load, Order
from spectr.errors import ArgumentError
from spectr.lm import load


def test_a_request_that_fails_ends_the_run(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a text that cannot be decoded")

    monkeypatch.setattr("benchmarks.serving.alone._TimedReader.feed", fail)
    lm, body = load(target, "none", device="cpu"), {"prompt": [5, 6], "max_tokens": 4, "seed": 0, "temperature": 1.0}
    with pytest.raises(RuntimeError, match="cannot be decoded"):
        run_alone(lm, 1, [body], "it")


def test_a_server_that_has_ended_holds_no_rows(target: str) -> None:
    lm = load(target, "none", device="cpu")
    with _serving(lm, 1):
        lm.generate([5, 6], 4)
        assert lm.engine.load.slots > 0
    assert lm.engine.load.slots == 0


def test_the_client_imports_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """Importing torch would take longer than a run."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(_CLIENT), "http://127.0.0.1:9", "1"], input="[]", capture_output=True,
        text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(ran.stdout) == []


def test_runs_from_before_an_interruption_are_kept(
    target: str, head: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def row(found: list[Any]) -> Any:
        counts.append(len(found))
        if len(counts) == 3:
            raise RuntimeError("out of memory")
        return _row(found)

    monkeypatch.setattr(sys.modules["benchmarks.serving.run"], "_row", row)  # the package has a function of that name
    load = Load((2,), (10, 40), (4, 12), repeats=2)
    order = Order(tmp_path / "found.json", target, head, device="cpu", command="it", prompts=prompts, load=load)
    failed = run(order, 1, (1, 0.0), lambda _: None)["parts"]["clients_2"]
    assert (failed["left"], failed["error"]) == (1, "RuntimeError: out of memory")
    part = run(order, 1, (1, 0.0), lambda _: None)["parts"]["clients_2"]
    assert (part["left"], len(counts), "error" in part) == (0, 5, False)
    assert {way: runs[0] for way, runs in part["runs"].items()} == {way: r[0] for way, r in failed["runs"].items()}


@pytest.mark.slow
def test_the_command_compares_clients_with_the_engine(
    command: Callable[..., Any], target: str, head: str, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    flags = ["--prompts", str(prompts), "--model", target, "--drafter", head, "--device", "cpu", "--out", str(out)]
    sizes = ["--prompt-tokens", "10,40", "--output-tokens", "4,12", "--clients", "1,3", "--requests", "2"]
    ran = command(serving, *flags, *sizes, "--repeats", "2", "--soak-clients", "2", "--soak-minutes", "0.02")
    assert ran.code == 0, ran.err
    assert "× engine" in ran.out
    parts = json.loads(out.read_text())["parts"]
    assert set(parts) == {"clients_1", "clients_3", "soak_2"}
    for part in (parts["clients_1"], parts["clients_3"]):
        assert [len(runs) for runs in part["runs"].values()] == [2, 2]
        for alone, http in zip(*part["runs"].values(), strict=True):
            assert alone["tokens"] == http["tokens"]
            assert alone["errors"] == http["errors"] == 0
    assert parts["soak_2"]["errors"] == 0
    assert parts["soak_2"]["requests"] > 0


def test_a_range_is_given_from_its_minimum() -> None:
    """A range in the wrong order is refused: lengths are drawn between the two, and would be wrong without an error."""
    assert ends("--prompt-tokens", "32") == (32, 32)
    for wrong in ("512,32", "1,2,3"):
        with pytest.raises(ArgumentError, match="must be a minimum and a maximum"):
            ends("--prompt-tokens", wrong)
