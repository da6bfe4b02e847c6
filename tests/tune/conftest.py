"""A small target and a drafter that is close to it, as folders with a tokenizer."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import spectr
from spectr.lm import LM

SIZE = 320


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=["<pad>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(["the quick brown fox jumps over the lazy dog", "tides rise and fall"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")


def llama(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    net = LlamaForCausalLM(config)
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2)
    return net.eval()


def nearby(net: PreTrainedModel, copy: PreTrainedModel, noise: float = 0.02) -> PreTrainedModel:
    """Return the same weights with a little noise, as a useful drafter."""
    copy.load_state_dict(net.state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in copy.parameters():
            weights += noise * torch.randn(weights.shape, generator=generator)
    return copy


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of a target and of a drafter close to it."""
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("near")
    net, words = llama(3), tokenizer()
    for model, folder in ((net, target), (nearby(net, llama(3)), drafter)):
        model.save_pretrained(folder)
        words.save_pretrained(folder)
    return target, drafter


@pytest.fixture(scope="session")
def lm(folders: tuple[Path, Path]) -> LM:
    """Load the target in float64, in which a text does not depend on the shape of a batch."""
    return spectr.load(folders[0], "none", dtype="float64")
