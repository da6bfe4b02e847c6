"""Folders with small models and their tokenizers, as users have them."""

from pathlib import Path

import pytest
import torch
from tests.saved import save_model, small_llama, tokenizer
from transformers import T5Config, T5ForConditionalGeneration


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(small_llama(0, 320), tmp_path_factory.mktemp("target"), tokenizer())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter whose vocabulary is padded differently."""
    return save_model(small_llama(1, 336), tmp_path_factory.mktemp("drafter"), tokenizer())


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a different vocabulary."""
    other = tokenizer(["entirely different words make entirely different merges"] * 3)
    return save_model(small_llama(2, 320), tmp_path_factory.mktemp("foreign"), other)


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    config = T5Config(
        vocab_size=320, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return save_model(T5ForConditionalGeneration(config), tmp_path_factory.mktemp("t5"), tokenizer(template=None))
