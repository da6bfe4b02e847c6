"""Attention for grouped heads without copies: the query heads that share keys become rows of one query.

transformers repeats keys and values for every query head as soon as there is a mask, and a tree always has one. Here a
group of G query heads over T tokens is G · T queries over the keys as they are. The same numbers, less memory moved.
In half precision on a GPU a tree goes to a kernel of its own.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from spectr.kernels import present
from spectr.models.internals import attention_name, sdpa_attention_forward, sdpa_mask

__all__ = ["group_heads"]

_NAME = "spectr_grouped"
_HAS_KERNEL = present()
_FEW = 256  # queries of a head; for more, kernels that are made for long texts are faster
_WIDEST = 256  # numbers of a head
_BESIDE = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""What else attention may be told, and only transformers' own does, or refuses."""


def _grouped(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """(B, H, T, d) queries over (B, K, M, d) keys; the mask is (B, 1, T, M), added."""
    batch, heads, count, width = query.shape
    by_head = attention_mask is not None and attention_mask.shape[1] > 1
    if by_head or any(kwargs.get(name) is not None for name in _BESIDE):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is not None and _is_tree(query, value, attention_mask):
        scale = kwargs.get("scaling") or width**-0.5
        return torch.ops.spectr.tree_attention(query, key, value, attention_mask, scale), None
    shared = key.shape[1]
    groups = heads // shared
    grouped = query.reshape(batch, shared, groups * count, width)
    mask = attention_mask
    if mask is not None and groups > 1:
        mask = mask[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, mask.shape[1], groups * count, -1)
    found = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling")
    )
    return found.reshape(batch, heads, count, -1).transpose(1, 2), None


def _is_tree(query: Tensor, value: Tensor, mask: Tensor) -> bool:
    """Few queries, and nothing that the kernel cannot do: gradients, wider heads, dtypes with more bits."""
    if not (query.is_cuda and query.shape[2] <= _FEW and mask.dtype == query.dtype):
        return False
    if mask.shape[-1] != value.shape[2] or max(query.shape[-1], value.shape[-1]) > _WIDEST:
        return False
    return query.dtype in (torch.bfloat16, torch.float16) and not query.requires_grad and _HAS_KERNEL


def _always(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of `sdpa`, but never left out: where it may be left out, `sdpa` is told to be causal by other means."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def group_heads(model: PreTrainedModel) -> None:
    """Let a model whose attention is plain `sdpa` use it, where that saves something: its heads are grouped, or the
    kernel for trees can run."""
    config = model.config.get_text_config(decoder=True)
    kv = getattr(config, "num_key_value_heads", None)
    grouped = kv is not None and kv != getattr(config, "num_attention_heads", kv)
    if attention_name(config) != "sdpa" or not (grouped or (_HAS_KERNEL and model.device.type == "cuda")):
        return
    if _HAS_KERNEL:
        import spectr.kernels.attention  # noqa: F401  registers it
    AttentionInterface.register(_NAME, _grouped)
    AttentionMaskInterface.register(_NAME, _always)  # without one of its own, a plain call would see the future
    model.set_attn_implementation(_NAME)
