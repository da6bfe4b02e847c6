"""Attention for grouped query heads without copies of keys and values.

transformers repeats keys and values for every query head whenever there is a mask, and a tree always has one. Here the
G query heads over T tokens that share a key head become G · T queries over the keys as they are: the results are the
same and less memory is moved. In half precision on a GPU, trees use a kernel of their own, which reads each row up to
its own end (`row_ends`): the rows of a batch differ in length, and a captured step has the length of the longest.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from spectr.kernels import has_kernels
from spectr.models.internals import attention_name, sdpa_attention_forward, sdpa_mask

__all__ = ["group_heads", "has_grouped_heads"]

_NAME = "spectr_grouped"
_HAS_KERNEL = has_kernels()
_FEW = 256  # queries of a head; beyond it, kernels for long texts are faster
_WIDEST = 256  # width of a head
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""Arguments that only transformers' own attention handles, or refuses."""


def _grouped(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend with queries (B, H, T, d) to keys (B, K, M, d); the mask (B, 1, T, M) is added to the scores."""
    batch, heads, count, width = query.shape
    by_head = attention_mask is not None and attention_mask.shape[1] > 1
    if by_head or any(kwargs.get(name) is not None for name in _UNSUPPORTED):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is not None and _is_tree(query, value, attention_mask):
        scale = kwargs.get("scaling") or width**-0.5
        ends = kwargs.get("row_ends")
        return torch.ops.spectr.tree_attention(query, key, value, attention_mask, scale, ends), None
    shared = key.shape[1]
    groups = heads // shared
    grouped = query.reshape(batch, shared, groups * count, width)
    mask = attention_mask
    if mask is not None and groups > 1:
        mask = mask[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, mask.shape[1], groups * count, -1)
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, scale=kwargs.get("scaling")
    )
    return attended.reshape(batch, heads, count, -1).transpose(1, 2).contiguous(), None  # some models take views of it


def _is_tree(query: Tensor, value: Tensor, mask: Tensor) -> bool:
    """Return whether the tree kernel applies: few queries in half precision, no gradients, heads that are not too
    wide."""
    if not (query.is_cuda and query.shape[2] <= _FEW and mask.dtype == query.dtype):
        return False
    if mask.shape[-1] != value.shape[2] or max(query.shape[-1], value.shape[-1]) > _WIDEST:
        return False
    return query.dtype in (torch.bfloat16, torch.float16) and not query.requires_grad and _HAS_KERNEL


def _explicit_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Build the mask of `sdpa` in every case. transformers omits it where it passes `is_causal` instead, which grouped
    attention does not handle."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def has_grouped_heads(model: PreTrainedModel) -> bool:
    """Return whether a model uses grouped attention."""
    return attention_name(model.config.get_text_config(decoder=True)) == _NAME


def group_heads(model: PreTrainedModel) -> None:
    """Switch a model with `sdpa` attention to grouped attention if that helps: its heads are grouped, or the tree
    kernel can run."""
    config = model.config.get_text_config(decoder=True)
    kv = getattr(config, "num_key_value_heads", None)
    grouped = kv is not None and kv != getattr(config, "num_attention_heads", kv)
    if attention_name(config) != "sdpa" or not (grouped or (_HAS_KERNEL and model.device.type == "cuda")):
        return
    if _HAS_KERNEL:
        import spectr.kernels.attention  # noqa: F401  registers the kernel
    AttentionInterface.register(_NAME, _grouped)
    AttentionMaskInterface.register(_NAME, _explicit_mask)  # without a mask function, a plain call would not be causal
    model.set_attn_implementation(_NAME)
