"""A small target and a drafter that is close to it, as folders with a tokenizer."""

from pathlib import Path

import pytest
import torch
from tests import tiny
from transformers import PreTrainedModel

import spectr
from spectr.lm import LM

SIZE = 320


TEXTS = ["the quick brown fox jumps over the lazy dog", "tides rise and fall"]


def llama(seed: int) -> PreTrainedModel:
    """Return a Llama of three layers in float32 that never ends a text."""
    special = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    return tiny.llama(seed, SIZE, 3, dtype=torch.float32, max_position_embeddings=512, **special)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of a target and of a drafter close to it."""
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("near")
    net, words = llama(3), tiny.byte_tokenizer(SIZE, TEXTS)
    for model, folder in ((net, target), (tiny.noisy_copy(net), drafter)):
        model.save_pretrained(folder)
        words.save_pretrained(folder)
    return target, drafter


@pytest.fixture(scope="session")
def lm(folders: tuple[Path, Path]) -> LM:
    """Load the target in float64, in which a text does not depend on the shape of a batch."""
    return spectr.load(folders[0], "none", dtype="float64")
