"""Small random models for tests.

They are float64 unless a test needs another dtype. Tests compare texts token for token between calls of different
widths (alone or in a batch, with or without drafts), which sum in different orders: in float32 logits then differ by
1e-6 and occasionally a token with them, depending on the CPU; in float64 they differ by 1e-14.
"""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["byte_tokenizer", "llama", "widen"]


def widen(net: PreTrainedModel, scale: float = 0.2) -> PreTrainedModel:
    """Scale weights such that distributions are neither flat nor point masses."""
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
