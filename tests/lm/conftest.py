"""Folders with small models and their tokenizers, as a user would have them."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

TEXTS = [
    "the quick brown fox jumps over the lazy dog", "tides rise and fall with the moon — twice a day",
    "naïve café ☕ 漢字 and emoji 🙂 are text too", "one two three four five six seven eight nine ten",
]  # fmt: skip
TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(texts: list[str] = TEXTS, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<user>", "<assistant>", "<system>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")
    made.chat_template = template
    return made


def _save(net: torch.nn.Module, folder: Path, words: PreTrainedTokenizerFast) -> Path:
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.15)
    net.save_pretrained(folder)  # type: ignore[operator]
    words.save_pretrained(folder)
    return folder


def _llama(seed: int, size: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(_llama(0, 320), tmp_path_factory.mktemp("target"), tokenizer())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter whose vocabulary is padded differently."""
    return _save(_llama(1, 336), tmp_path_factory.mktemp("drafter"), tokenizer())


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other tokens."""
    other = tokenizer(["entirely different words make entirely different merges"] * 3)
    return _save(_llama(2, 320), tmp_path_factory.mktemp("foreign"), other)


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    config = T5Config(
        vocab_size=320, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return _save(T5ForConditionalGeneration(config), tmp_path_factory.mktemp("t5"), tokenizer(template=None))
