"""Small random models for tests.

They are float64 by default. Tests compare texts token for token between calls of different widths (alone or in a batch,
with or without drafts), whose sums are rounded in different orders. In float32 logits then differ by 1e-6, which
sometimes changes a token, depending on the CPU; in float64 they differ by 1e-14.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

__all__ = ["llama", "widen"]


def widen(net: PreTrainedModel, scale: float = 0.2) -> PreTrainedModel:
    """Draws wide weights, so that distributions are neither flat nor a point mass."""
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, scale)
    return net.eval()


def llama(
    seed: int, size: int = 12, layers: int = 2, *, dtype: torch.dtype = torch.float64, **config: object
) -> PreTrainedModel:
    """A Llama model with a vocabulary of `size` tokens, so few that texts repeat."""
    torch.manual_seed(seed)
    shape = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }  # fmt: skip
    made = LlamaForCausalLM(LlamaConfig(vocab_size=size, num_hidden_layers=layers, **{**shape, **config}))
    return widen(made).to(dtype)  # type: ignore[arg-type]
