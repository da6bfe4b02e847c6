"""Attention for grouped heads without copies: the query heads that share keys become rows of one query.

transformers repeats keys and values for every query head as soon as there is a mask, and a tree always has one. Here a
group of G query heads over T tokens is G · T queries over the keys as they are. The same numbers, less memory moved.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

__all__ = ["group_heads"]

_NAME = "spectr_grouped"


def _grouped(
    _: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """(B, H, T, d) queries over (B, K, M, d) keys; the mask is (B, 1, T, M), added."""
    batch, heads, count, width = query.shape
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


def _always(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of `sdpa`, but never left out: where it may be left out, `sdpa` is told to be causal by other means."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


def group_heads(model: PreTrainedModel) -> None:
    """Let a model whose attention is plain `sdpa`, and whose heads are grouped, use it."""
    config = model.config.get_text_config(decoder=True)
    kv = getattr(config, "num_key_value_heads", None)
    if config._attn_implementation != "sdpa" or not kv or kv == getattr(config, "num_attention_heads", kv):
        return
    AttentionInterface.register(_NAME, _grouped)
    AttentionMaskInterface.register(_NAME, _always)  # without one of its own, a plain call would see the future
    model.set_attn_implementation(_NAME)
