"""`spectr tune`, and what takes its profile: a small model, once through everything; figures are not judged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Spectr = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=280, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        ["the quick brown fox"],
        trainers.BpeTrainer(vocab_size=280, special_tokens=["<pad>"], initial_alphabet=alphabet),
    )
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>").save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("the quick\nbrown fox\n\nthe quick\nfox\n")
    return str(path)


def test_a_profile_and_what_takes_it(spectr: Spectr, folder: str, prompts: str, tmp_path: Path) -> None:
    profile = str(tmp_path / "profile.json")
    quick = ("--prompts", prompts, "--tokens", "8", "--repeats", "1")
    ran = spectr("tune", folder, "--drafter", "early_exit,lookup", "--rules", "race,optimal", *quick, "--out", profile)
    assert ran.code == 0, ran.err
    assert "plain decoding" in ran.out.splitlines()[2]
    assert ran.out.splitlines()[-1].endswith("times plain decoding")
    assert f"wrote {profile}" in ran.err.replace("\n", "")
    data = json.loads(Path(profile).read_text())
    assert (data["texts"], data["tokens"]) == (3, 8)
    assert len(data["measured"]) <= 6
    ask = (
        "generate",
        "the quick",
        "--model",
        folder,
        "--raw",
        "--max-new-tokens",
        "12",
        "--temperature",
        "0",
        "--json",
    )
    plans = (("--drafter", "none"), ("--plan", profile), ("--plan", "auto"), ("--plan", "auto", "--profile", profile))
    told = [json.loads(spectr(*ask, *more).out) for more in plans]
    assert len({tuple(one["tokens"]) for one in told}) == 1


def test_the_grid_and_auto(spectr: Spectr, folder: str, prompts: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.json"
    arguments = (
        "tune",
        folder,
        "--drafter",
        "lookup",
        "--rules",
        "race",
        "--prompts",
        prompts,
        "--texts",
        "2",
        "--tokens",
        "8",
        "--repeats",
        "1",
    )
    for _ in range(2):  # the second takes the place of the first
        ran = spectr(*arguments, "--grid", str(grid), "--auto", "--json")
        assert ran.code == 0, ran.err
    data, (pair,) = json.loads(ran.out), json.loads(grid.read_text())["pairs"]
    assert pair["pair"] == f"{Path(folder).name} with lookup"
    assert pair["grid"]["plans"] == 20  # plain, as it is, and three times six
    assert 0 < pair["grid"]["ratio_to_best"] <= 1
    assert data["auto"][0]["case"] == "usual texts"
    grid.write_text("{}")
    ran = spectr(*arguments, "--grid", str(grid))
    assert (ran.code, ran.out) == (2, "")
    assert "--grid must be a new file" in ran.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rules", "lenience"), "rules must be lossless"),
        (("--rules", "rase"), "did you mean race"),
        (("--drafter", "none"), "name a drafter"),
        (("--drafter", "lookup", "--rules", "kseq"), "no rule fits"),
        (("--rows", "0"), "--rows takes integers of at least 1"),
        (("--prompts", "nowhere.txt"), "--prompts must be"),
        (("--out", "nowhere/profile.json"), "there is no folder nowhere"),
    ],
)
def test_what_is_refused(spectr: Spectr, folder: str, arguments: tuple[str, ...], sentence: str) -> None:
    ran = spectr("tune", folder, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err


def test_doctor_runs(spectr: Spectr, folder: str, prompts: str) -> None:
    ran = spectr("doctor", "--model", folder, "--run", "--prompts", prompts)
    assert ran.code == 0, ran.err
    assert "run block efficiency" in ran.out
    assert "drafts are hardly accepted" in ran.err  # random weights
    assert f"spectr audit {folder}" in ran.err.replace("\n", "")
    told = json.loads(spectr("doctor", "--model", folder, "--run", "--prompts", prompts, "--json").out)
    assert [sign["name"] for sign in told["run"]["signs"]] == [
        "block efficiency",
        "correction share",
        "latency by nodes",
    ]
    assert all(("advice" in sign) == sign["bad"] for sign in told["run"]["signs"])
    assert "run" not in json.loads(spectr("doctor", "--model", folder, "--json").out)
