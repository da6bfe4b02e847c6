"""`spectr models`, `spectr pull`, `spectr doctor` and `spectr bench step`."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import COMMAND

Spectr = Callable[..., Any]


def test_models_and_pull(spectr: Spectr) -> None:
    file = spectr("pull").out.strip()
    assert file.endswith(".gguf")
    listed = json.loads(spectr("models", "--json").out)
    assert listed["models"]["smollm2-135m"]["file"] == file
    assert "smollm2-135m" in spectr("models").out


def test_doctor(spectr: Spectr) -> None:
    ran = spectr("doctor", "--model", "smollm2-135m", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["packages"]["torch"]
    assert found["model"]["weights, float32"] == "513.1 MiB"
    assert found["model"]["weights, file"] == "92.1 MiB of Q4_1, Q8_0, run as they are on a CPU"
    assert found["advice"] == []
    assert "comes with spectr" in found["model"]["drafter, auto"]
    shown = spectr("doctor")
    assert "packages torch" in shown.out
    assert "trained drafters" in shown.out


def test_doctor_says_what_is_chosen_and_why(spectr: Spectr, tiny: str) -> None:
    """The same dtype and drafter that loading chooses."""
    import spectr as package

    found = json.loads(spectr("doctor", "--model", tiny, "--json").out)["model"]
    lm = package.load(tiny)
    dtype, _, reason = found["dtype, auto"].partition(": ")
    assert dtype == str(lm.opened.target.model.dtype).removeprefix("torch.")
    assert reason
    assert found["drafter, auto"].startswith(f"{lm.engine.drafter.name}: no trained drafter")
    assert found["source"] == "folder"


def hub_with(folder: str, cache: Path, name: str) -> dict[str, str]:
    """The environment of a machine whose hub cache holds this model, and that is offline."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, home / "snapshots" / ("0" * 40))
    return {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


def test_doctor_takes_hub_ids(tiny: str, tmp_path: Path) -> None:
    """A model in the hub's cache is examined without a network."""
    arguments = [*COMMAND, "doctor", "--json", "--model", "somebody/tiny"]
    environment = hub_with(tiny, tmp_path, "somebody/tiny")
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(ran.stdout)["model"]
    assert found["source"] == "hub, in the cache"
    assert found["weights, float32"].endswith("MiB")


def test_doctor_refuses_a_model_that_cannot_be_fetched(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = spectr("doctor", "--model", "somebody/other")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("spectr: 'somebody/other' is not known")
    assert "HF_HUB_OFFLINE" in ran.err
    assert ran.err.count("\n") == 1


def test_doctor_refuses_what_is_no_model(spectr: Spectr, tmp_path: Path) -> None:
    ran = spectr("doctor", "--model", str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("spectr: ")
    assert "it has no config.json" in ran.err
    (tmp_path / "config.json").write_text("{}")
    assert spectr("doctor", "--model", str(tmp_path)).code == 2


def test_doctor_says_what_is_missing(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectr.models.doctor.installed", lambda name: "5.1.0" if name == "transformers" else None)
    ran = spectr("doctor")
    assert ran.code == 1
    assert "transformers must be at least 5.17, found 5.1.0" in ran.err
    assert "torch must be at least 2.11, found None" in ran.err


def test_bench_step(spectr: Spectr) -> None:
    ways = "none,lookup,early_exit:3@2"
    ran = spectr("bench", "step", "--tokens", "8", "--repeats", "1", "--texts", "1", "--drafters", ways, "--json")
    results = json.loads(ran.out)["results"]
    assert set(results) == {"transformers", *ways.split(",")}
    assert results["lookup"]["least_speedup"] == min(results["lookup"]["speedup_by_prompt"])
    assert results["none"]["tokens_per_call"] == 1
    assert results["transformers"]["ratio_to_transformers"] == 1
    assert all(row["ms_per_token"] > 0 for row in results.values())
