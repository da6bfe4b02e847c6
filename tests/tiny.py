"""Small random models for tests.

They are float64 by default. Tests compare texts token for token between calls of different widths (alone or in a batch,
with or without drafts), whose sums are rounded in different orders. In float32 logits then differ by 1e-6, which
sometimes changes a token, depending on the CPU; in float64 they differ by 1e-14.
"""

import copy
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["byte_tokenizer", "llama", "noisy_copy", "widen", "word_tokenizer"]


def widen(net: PreTrainedModel, scale: float = 0.2) -> PreTrainedModel:
    """Draw wide weights, so that distributions are neither flat nor a point mass."""
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, scale)
    return net.eval()


def llama(
    seed: int, size: int = 12, layers: int = 2, *, dtype: torch.dtype = torch.float64, scale: float = 0.2,
    **config: object,
) -> PreTrainedModel:  # fmt: skip
    """Return a Llama with a vocabulary of `size` tokens; few, so that texts repeat."""
    torch.manual_seed(seed)
    shape = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }  # fmt: skip
    made = LlamaForCausalLM(LlamaConfig(vocab_size=size, num_hidden_layers=layers, **{**shape, **config}))
    return widen(made, scale).to(dtype)  # type: ignore[arg-type]


def byte_tokenizer(
    size: int, texts: Sequence[str], special: Sequence[str] = ("<pad>", "</s>")
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of `size` tokens, trained on a few texts; `<pad>` and `</s>` are special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet)
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")


def noisy_copy(net: PreTrainedModel, noise: float = 0.02) -> PreTrainedModel:
    """A model with the weights of another and a little noise, which drafts well for it."""
    near, generator = copy.deepcopy(net), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in near.parameters():
            weights += noise * torch.randn(weights.shape, generator=generator)
    return near


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the words w0 to w(size - 1)."""
    core = Tokenizer(WordLevel({f"w{number}": number for number in range(size)}, "w0"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core)
