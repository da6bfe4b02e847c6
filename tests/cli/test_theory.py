"""`spectr theory`: one line or JSON, and measurements as tables and JSON."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.conftest import target

__all__ = ["target"]

Spectr = Callable[..., Any]


def test_a_prediction_is_one_line(spectr: Spectr) -> None:
    ran = spectr("theory", "predict", "--alpha", "0.8", "--cost", "0.05")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "draft 8 tokens at a time (gamma = 8): 3.09 times as fast as plain decoding, 4.33 tokens per target call "
        "(acceptance 0.8, a draft costs 0.05 of a target call)\n"
    )


def test_a_prediction_as_json(spectr: Spectr) -> None:
    found = json.loads(spectr("theory", "predict", "--alpha", "0.8", "--cost", "0.05", "--json").out)
    assert found == {"gamma": 8, "speedup": pytest.approx(3.0920795), "expected_tokens": pytest.approx(4.3289114)}
    more = json.loads(
        spectr("theory", "predict", "--alpha", "0.8", "--cost", "0.05", "--operation-cost", "0.05", "--json").out
    )
    assert more == {**found, "operations": pytest.approx(2.1714466)}


def test_the_answer_may_be_not_to_speculate(spectr: Spectr) -> None:
    ran = spectr("theory", "predict", "--alpha", "0.1", "--cost", "0.2")
    assert ran.out == "do not speculate: acceptance 0.1 does not pay for drafts that cost 0.2 of a target call\n"
    found = json.loads(spectr("theory", "predict", "--alpha", "0.1", "--cost", "0.2", "--json").out)
    assert found == {"gamma": 0, "speedup": 1.0, "expected_tokens": 1.0}


def test_acceptance_by_depth_and_the_longest_draft(spectr: Spectr) -> None:
    found = json.loads(spectr("theory", "predict", "--by-depth", "0.8,0.8,0.1", "--cost", "0.1", "--json").out)
    assert (found["gamma"], found["expected_tokens"]) == (2, pytest.approx(2.44))
    assert (
        "(gamma = 7, the longest considered)"
        in spectr("theory", "predict", "--alpha", "1", "--cost", "0.1", "--longest", "7").out
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--alpha", "2", "--cost", "0.1"), "alpha must be a probability in [0, 1], got 2.0"),
        (("--alpha", "nan", "--cost", "0.1"), "alpha must be a probability in [0, 1], got nan"),
        (("--alpha", "0.5", "--cost", "-1"), "cost must be a finite number of at least 0"),
        (("--cost", "0.1"), "give --alpha"),
        (("--alpha", "0.5", "--by-depth", "0.5", "--cost", "0.1"), "give --alpha"),
        (("--by-depth", "a", "--cost", "0.1"), "--by-depth takes numbers"),
        (("--by-depth", "0.5", "--cost", "0.1", "--operation-cost", "1"), "--operation-cost goes with --alpha"),
    ],
)
def test_what_cannot_be_predicted(spectr: Spectr, flags: tuple[str, ...], sentence: str) -> None:
    ran = spectr("theory", "predict", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err


@pytest.mark.parametrize("flags", [(), ("--out", "my figures"), ("--help",)])
def test_figures_have_moved(spectr: Spectr, flags: tuple[str, ...]) -> None:
    ran = spectr("theory", "figures", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.rstrip().endswith(f"run: {shlex.join(['python', '-m', 'benchmarks.figures', *flags])}")
    assert ran.err.count("\n") == 1
    assert "figures" not in spectr("theory", "--help").out


def test_measure(spectr: Spectr, target: str, tmp_path: Path) -> None:
    """A small model with the n-gram drafter: two prompts, a few tokens, no pruned trees."""
    prompts, out = tmp_path / "prompts.json", tmp_path / "found.json"
    entries = [{"kind": "song", "text": "la la la la la"}, {"kind": "count", "text": "one two one two one two"}]
    prompts.write_text(json.dumps({"prompts": entries}))
    flags = ("--prompts", str(prompts), "--tokens", "4", "--length", "2", "--nodes", "", "--epsilons", "0.1")
    ran = spectr("theory", "measure", target, "--drafter", "ngram", *flags, "--out", str(out))
    assert ran.code == 0, ran.err
    for word in ("TV by depth", "song", "count", "all", "kseq_plus", "predicted", "Decoding-UNO", "one standard error"):
        assert word in ran.out
    found = json.loads(out.read_text())
    assert list(found["domains"]) == ["song", "count", "all"]
    assert found["prompts"] == {"source": "prompts.json", "count": 2}
    assert "one draft: laws along the text" in ran.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--drafter", "lookup"), "drafter 'lookup' proposes tokens without one"),
        (("--temperature", "0"), "temperature must be above 0"),
        (("--prompts", "nowhere.json"), "--prompts must be a text file"),
        (("--nodes", "x"), "--nodes takes integers"),
        (("--out", "nowhere/found.json"), "there is no folder"),
    ],
)
def test_what_cannot_be_measured(spectr: Spectr, flags: tuple[str, ...], sentence: str) -> None:
    ran = spectr("theory", "measure", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
