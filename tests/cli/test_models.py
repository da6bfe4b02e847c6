"""`spectr models`, `spectr pull`, `spectr doctor` and `spectr bench step`."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import COMMAND
from tests.heads import random_head
from tests.saved import save_model, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

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
    assert found["model"]["weights, file"] == "92.1 MiB of Q4_1, Q8_0, not unpacked on a CPU"
    assert found["advice"] == []
    assert "comes with spectr" in found["model"]["drafter, auto"]
    shown = spectr("doctor")
    assert "packages torch" in shown.out
    assert "trained drafters" in shown.out


def test_doctor_says_what_is_chosen_and_why(spectr: Spectr, tiny: str) -> None:
    """The reported dtype and drafter are those that loading chooses."""
    import spectr as package

    found = json.loads(spectr("doctor", "--model", tiny, "--json").out)["model"]
    lm = package.load(tiny)
    dtype, _, reason = found["dtype, auto"].partition(": ")
    assert dtype == str(lm.opened.target.model.dtype).removeprefix("torch.")
    assert reason
    assert found["drafter, auto"].startswith(f"{lm.engine.drafter.name}: no trained drafter")
    assert found["source"] == "folder"


def hub_with(folder: str, cache: Path, name: str) -> dict[str, str]:
    """Return the environment of an offline machine whose hub cache contains this model."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, home / "snapshots" / ("0" * 40))
    return {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_doctor_takes_hub_ids(tiny: str, tmp_path: Path) -> None:
    """A model in the hub's cache is examined without a network."""
    arguments = [*COMMAND, "doctor", "--json", "--model", "somebody/tiny"]
    environment = hub_with(tiny, tmp_path, "somebody/tiny")
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(ran.stdout)["model"]
    assert found["source"] == "hub, in the cache"
    assert found["weights, float32"].endswith("MiB")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model of six layers, and a published head for it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    folder = save_model(net, tmp_path_factory.mktemp("deep"), tokenizer())
    return str(folder), str(random_head(net, "eagle3", tmp_path_factory.mktemp("head")))


def test_doctor_examines_a_published_head(spectr: Spectr, deep: tuple[str, str]) -> None:
    model, head = deep
    ran = spectr("doctor", "--model", model, "--drafter", head, "--json")
    assert ran.code == 0
    found = json.loads(ran.out)["drafter"]
    assert found["format"] == "EAGLE-3"
    assert found["reads"].startswith("hidden states 1, 2, 6: ")
    tried = found["acceptance by depth on 64 tokens, hidden states"]
    assert list(tried) == ["1 2 6"]
    assert len(tried["1 2 6"]) == 4
    assert {"tokens per call", "ms", "draft ms", "target ms"} <= set(found["step"])
    assert "drafter format" in spectr("doctor", "--model", model, "--drafter", head).out


def test_doctor_refuses_a_drafter_that_is_no_head(spectr: Spectr, deep: tuple[str, str], tiny: str) -> None:
    _, head = deep
    ran = spectr("doctor", "--model", tiny, "--drafter", tiny)
    assert (ran.code, ran.out) == (2, "")
    assert "doctor examines published heads" in ran.err
    assert "add --model NAME" in spectr("doctor", "--drafter", head).err
    ran = spectr("doctor", "--model", tiny, "--drafter", head)  # of two layers
    assert ran.code == 2
    assert "[6] are not among 1 … 2 of a target with 2 layers" in ran.err


@pytest.mark.slow
def test_heads_come_by_hub_id(deep: tuple[str, str], tmp_path: Path) -> None:
    """A head in the hub's cache is found without a network."""
    model, head = deep
    environment = hub_with(head, tmp_path, "somebody/head")
    arguments = [*COMMAND, "generate", "the quick brown fox", "--model", model, "--drafter", "somebody/head"]
    more = ["--max-new-tokens", "12", "--seed", "3", "--json"]
    ran = subprocess.run([*arguments, *more], capture_output=True, text=True, check=True, env=environment)
    plain = [*COMMAND, "generate", "the quick brown fox", "--model", model, "--drafter", "none", *more]
    meant = subprocess.run(plain, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["tokens"] == json.loads(meant.stdout)["tokens"]
    gone = subprocess.run(
        [*arguments[:-1], "somebody/other", *more], capture_output=True, text=True, check=False, env=environment
    )
    assert gone.returncode == 2
    assert "'somebody/other' could not be loaded" in gone.stderr


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


@pytest.mark.slow
def test_bench_step(spectr: Spectr) -> None:
    ways = "none,lookup,early_exit:3@2"
    ran = spectr("bench", "step", "--tokens", "8", "--repeats", "1", "--texts", "1", "--drafters", ways, "--json")
    results = json.loads(ran.out)["results"]
    assert set(results) == {"transformers", *ways.split(",")}
    assert results["lookup"]["least_speedup"] == min(results["lookup"]["speedup_by_prompt"])
    assert results["none"]["tokens_per_call"] == 1
    assert results["transformers"]["ratio_to_transformers"] == 1
    assert all(row["ms_per_token"] > 0 for row in results.values())
