"""One thread for many small tensors: with several test workers, threads that wait for each other are forty times
slower. And a small model with a drafter that is near it, as folders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import tiny
from transformers import PreTrainedModel


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _save(net: PreTrainedModel, folder: Path) -> Path:
    net.save_pretrained(folder)
    tiny.byte_tokenizer(280, ["the tide comes in and the tide goes out"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return folders of a target, and of the same with noise on its weights."""
    special = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    net = tiny.llama(0, 280, dtype=torch.float32, scale=0.25, num_key_value_heads=4, **special)
    with torch.no_grad():
        net.get_output_embeddings().weight[1] -= 2.0  # texts seldom end
    target = _save(net, tmp_path_factory.mktemp("target"))
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights += 0.04 * torch.randn_like(weights)
    return target, _save(net, tmp_path_factory.mktemp("drafter"))
