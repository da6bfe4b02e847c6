"""`spectr tune` and the uses of its profile, with a small model; timings are not checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import byte_tokenizer, llama

from spectr.tune.halving import ROUNDS, rungs
from spectr.tune.tuner import Workload

Spectr = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, special = tmp_path_factory.mktemp("model"), {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    llama(3, 280, dtype=torch.float32, **special).save_pretrained(path)
    byte_tokenizer(280, ["the quick brown fox"]).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("the quick\nbrown fox\n\nthe quick\nfox\n")
    return str(path)


def test_a_profile_and_what_takes_it(spectr: Spectr, folder: str, prompts: str, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    quick = ("--prompts", prompts, "--tokens", "8", "--out", str(profile))
    ran = spectr("tune", folder, "--drafters", "early_exit,lookup", *quick)
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 2 + 8 + 1  # heading and line, a row for each plan, and the choice
    assert ran.out.splitlines()[-1].startswith("1 row at a time: ")
    assert f"everything is measured; the profile is {profile}" in ran.err.replace("\n", "")
    data = json.loads(profile.read_text())
    assert len(data["plans"]) == 8
    assert data["run"]["finished"]
    assert len(data["run"]["measurements"]) == sum(ROUNDS * (1 + left) for left in rungs(8))
    ask = ("generate", "the quick", "--model", folder, "--raw", "--max-new-tokens", "12", "--temperature", "0")
    plans = (
        ("--drafter", "none"), ("--plan", str(profile)), ("--plan", "auto"),
        ("--plan", "auto", "--profile", str(profile)),
    )  # fmt: skip
    outputs = [json.loads(spectr(*ask, "--json", *more).out) for more in plans]
    assert len({tuple(one["tokens"]) for one in outputs}) == 1


def test_an_interrupted_run_goes_on(
    spectr: Spectr, folder: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C in the second round the measurements are kept, and the same command measures only the rest."""
    profile, measured = tmp_path / "profile.json", list[int]()
    command = ("tune", folder, "--drafter", "lookup", "--prompts", prompts, "--tokens", "8", "--out", str(profile))
    generate = Workload.generate

    def interrupted(self: Workload, lm: Any, rows: int, number: int, tokens: int | None = None) -> tuple[int, float]:
        if tokens is None:  # not a warm-up
            measured.append(number)
        if len(measured) == most:
            raise KeyboardInterrupt
        return generate(self, lm, rows, number, tokens)

    monkeypatch.setattr(Workload, "generate", interrupted)
    most = 5
    ran = spectr(*command)
    assert ran.code == 130
    assert "interrupted: 4 measurements made, at most 11 left" in ran.err
    assert "run the same command again to continue" in ran.err
    assert "too little was measured to choose another plan" in ran.out
    kept = json.loads(profile.read_text())["run"]
    assert (len(kept["measurements"]), kept["finished"]) == (4, False)
    most = 99
    ran = spectr(*command)
    assert ran.code == 0, ran.err
    assert len(measured) == 5 + 11
    data = json.loads(profile.read_text())["run"]
    assert data["finished"]
    assert data["measurements"][:4] == kept["measurements"]
    again = spectr(*command)
    assert (again.code, again.out) == (0, ran.out)  # nothing left to measure
    other = spectr(*command, "--temperature", "0.5")
    assert (other.code, other.out) == (2, "")
    assert "holds a run with another settings" in other.err.replace("\n", " ")


FIGURES = {
    (2.0, 1.0): "1 row at a time: lookup: 2.00 times plain decoding (2.00 to 2.00)",
    (0.9, 0.8): "1 row at a time: drafting does not pay here; plain decoding is chosen",
    (1.5, 0.8): "no plan is significantly faster, so plain decoding is chosen; the best was lookup: 1.50 times plain",
}


def test_what_the_figures_say(spectr: Spectr, folder: str, prompts: str, tmp_path: Path) -> None:
    """The measurements in the file are given. In the third case lookup is half as fast in two of six rounds."""
    out = tmp_path / "profile.json"
    command = ("tune", folder, "--drafter", "lookup", "--prompts", prompts, "--tokens", "8", "--out", str(out))
    assert spectr(*command).code == 0

    def seconds(ratios: tuple[float, float], plan: int, number: int) -> float:
        is_slow = ratios[0] == 1.5 and plan == 1 and number in (1, 4)
        return (2.0 if is_slow else 1.0) / (1.0, *ratios)[plan]

    data, cells = json.loads(out.read_text()), [(n, plan) for plan in (0, 1) for n in range(2 * ROUNDS)]
    cells += [(n, 2) for n in range(ROUNDS)]  # then it is dropped
    for ratios, sentence in FIGURES.items():
        data["run"]["measurements"] = [[1, n, plan, 8, seconds(ratios, plan, n)] for n, plan in cells]
        out.write_text(json.dumps(data))
        ran = spectr(*command)
        assert ran.code == 0, ran.err
        assert sentence in ran.out.replace("\n", " ")
        assert len(json.loads(out.read_text())["run"]["measurements"]) == len(cells)  # nothing was left to measure


def test_several_rows_as_json(spectr: Spectr, folder: str, prompts: str) -> None:
    quick = ("--prompts", prompts, "--tokens", "8", "--rows", "1,2", "--rules", "race,optimal", "--json")
    ran = spectr("tune", folder, "--drafters", "lookup", *quick)
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert [plan["drafter"] for plan in data["plans"]] == ["none", "lookup", "lookup"]
    assert [choice["rows"] for choice in data["choices"]] == [1, 2]
    assert "left out lookup with rule optimal" in ran.err.replace("\n", " ")
    assert "nothing was written; give --out FILE" in ran.err
    one = data["run"]["results"][0]
    assert (one["plan"], one["ratio"], one["interval"]) == (0, 1.0, [1.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rules", "lenience"), "rules must be lossless"),
        (("--rules", "rase"), "did you mean race"),
        (("--drafter", "none"), "plain decoding is always measured"),
        (("--drafter", "lookup", "--rules", "kseq"), "fits a drafter of lookup"),
        (("--rows", "0"), "--rows takes integers of at least 1"),
        (("--prompts", "nowhere.txt"), "--prompts must be"),
        (("--out", "nowhere/profile.json"), "there is no folder nowhere"),
    ],
)
def test_bad_arguments_are_refused(spectr: Spectr, folder: str, arguments: tuple[str, ...], sentence: str) -> None:
    ran = spectr("tune", folder, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err


def test_a_file_that_is_no_profile(spectr: Spectr, folder: str, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    out.write_text("{}")
    ran = spectr("tune", folder, "--out", str(out))
    assert (ran.code, ran.out) == (2, "")
    assert "--out must be a new file" in ran.err
    assert out.read_text() == "{}"
    assert "it is a folder" in spectr("tune", folder, "--out", str(tmp_path)).err


def test_doctor_runs(spectr: Spectr, folder: str, prompts: str) -> None:
    ran = spectr("doctor", "--model", folder, "--run", "--prompts", prompts)
    assert ran.code == 0, ran.err
    assert "run block efficiency" in ran.out
    assert "few drafts are accepted" in ran.err  # random weights
    assert f"spectr audit {folder}" in ran.err.replace("\n", "")
    found = json.loads(spectr("doctor", "--model", folder, "--run", "--prompts", prompts, "--json").out)
    assert [sign["name"] for sign in found["run"]["signs"]] == [
        "block efficiency",
        "correction share",
        "latency by nodes",
    ]
    assert all(("advice" in sign) == sign["bad"] for sign in found["run"]["signs"])
    assert "run" not in json.loads(spectr("doctor", "--model", folder, "--json").out)
