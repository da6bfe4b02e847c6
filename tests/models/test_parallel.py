"""The parts of tensor parallelism that need no second process: refusals, messages and hashes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parallel.cases import save_tiny
from transformers import AutoConfig, T5Config

import spectr
from spectr.errors import ArgumentError, MismatchError
from spectr.models.parallel.digest import hash_bits, hash_rows
from spectr.models.parallel.message import Message
from spectr.models.parallel.sharding import check_shards
from spectr.models.parallel.target import SessionName


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("sharded"), 3, 1)


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_several_processes_must_have_been_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tensor_parallel` is refused without torchrun, and if it differs from the number of processes."""
    with pytest.raises(ArgumentError, match="torchrun --nproc-per-node 2"):
        spectr.load(folder, "none", tensor_parallel=2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ArgumentError, match="number of processes, which is 3, got 2"):
        spectr.load(folder, "none", tensor_parallel=2)


def test_one_process_needs_nothing(folder: Path) -> None:
    """With `tensor_parallel=1` the model is loaded as usual."""
    lm = spectr.load(folder, "none", tensor_parallel=1)
    assert not lm.opened.target.is_sharded
    assert lm.opened.target.model_for_drafters is lm.opened.target.model


@pytest.mark.parametrize("option", [{"device_map": "auto"}, {"weights": "int8"}])
def test_options_that_do_not_go_together_are_refused(folder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="tensor_parallel shards unquantised weights"):
        spectr.load(folder, "none", tensor_parallel=2, **option)
    with pytest.raises(ArgumentError, match="tensor_parallel must be at least 1, got 0"):
        spectr.load(folder, "none", tensor_parallel=0)


def test_heads_must_be_dealt_out_evenly(folder: Path) -> None:
    """The number of processes must divide the heads and the key-value heads, and the family must have a plan."""
    config = AutoConfig.from_pretrained(folder)
    check_shards("m", config, 2)
    with pytest.raises(
        MismatchError, match="divide the 4 heads and the 2 key-value heads of 'm', got 4; choose one of 2"
    ):
        check_shards("m", config, 4)
    config.num_key_value_heads = 1
    with pytest.raises(MismatchError, match="choose 1"):
        check_shards("m", config, 2)
    with pytest.raises(MismatchError, match="no tensor-parallel plan"):
        check_shards("m", T5Config(), 2)


def test_a_tree_of_64_nodes_is_a_message_of_about_a_kilobyte() -> None:
    """The message of a tree is small, and decoding it gives the same tensors."""
    tokens, depth = torch.randint(0, 50_000, (1, 64)), torch.randint(0, 5, (1, 64))
    ancestors = torch.rand(1, 64, 64) < 0.1
    sent = Message(
        "score", {"model": 0, "session": [3, (0, 1, 70), 0, True]}, (tokens, ancestors, depth, None)
    ).encoded()
    assert len(sent) < 1800
    found = Message.decoded(sent)
    assert found.arguments["session"] == [3, [0, 1, 70], 0, True]
    for one, other in zip(found.tensors, (tokens, ancestors, depth, None), strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


def test_every_single_change_shows_in_a_hash() -> None:
    """A change of one token or one bit of the mask changes the hash of its row, and only that."""
    tokens = torch.arange(12).view(2, 6)
    mask = torch.rand(2, 6, 9) < 0.5
    usual = hash_rows(tokens, mask)
    for at in range(6):
        other = tokens.clone()
        other[1, at] += 1
        assert (hash_rows(other, mask) == usual).tolist() == [True, False]
    for at in range(54):
        other = mask.clone()
        other[0].view(-1)[at] ^= True
        assert (hash_rows(tokens, other) == usual).tolist() == [False, True]
    assert not torch.equal(hash_rows(tokens[:, :5], mask), usual)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_last_bit_of_a_logit_shows(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 4, 50).to(dtype)
    other = logits.clone()
    other[1, 2, 49] = torch.nextafter(other[1, 2, 49], torch.tensor(9.0, dtype=dtype))
    assert (hash_bits(logits) == hash_bits(other)).tolist() == [True, False, True]


def test_a_window_is_announced_as_new_once() -> None:
    """Only the first announcement of a window says that it is new."""
    name = SessionName(4, (0, 2, 30), 0, True)
    assert name.announced() == [4, (0, 2, 30), 0, True]
    assert name.announced() == [4, (0, 2, 30), 0, False]
