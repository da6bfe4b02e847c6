"""One thread for many small tensors: with several test workers, threads that wait for each other are forty times
slower. And a small model with a drafter that is near it, as folders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        ["the tide comes in and the tide goes out"],
        trainers.BpeTrainer(vocab_size=280, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")


def _save(net: LlamaForCausalLM, folder: Path) -> Path:
    net.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return folders of a target, and of the same with noise on its weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=280, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.25)
        net.get_output_embeddings().weight[1] -= 2.0  # texts seldom end
    target = _save(net, tmp_path_factory.mktemp("target"))
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights += 0.04 * torch.randn_like(weights)
    return target, _save(net, tmp_path_factory.mktemp("drafter"))
