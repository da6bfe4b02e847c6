"""Inflates a small model: the result computes the same function at the cost of a large model.

It generates real text without a large checkpoint. The residual stream is padded with zeros, which stay zeros because
nothing writes to them. A norm over the wider stream averages over more numbers, so its weights are scaled by √(h / H)
and its epsilon by h / H. The outputs of added heads and neurons are multiplied by zero columns, and added layers write
zeros. All other new weights are random, so that kernels meet no more zeros than in a trained model.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spectr.errors import ArgumentError, MismatchError
from spectr.models.head import FeatureHead, HeadShape
from spectr.models.int8 import full_weight

__all__ = ["LLAMA_8B", "Size", "inflated", "inflated_head"]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a decoder; the width of a head does not change."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int


LLAMA_8B = Size(4096, 32, 64, 16, 14336)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The change from one size to another."""

    small: Size
    large: Size
    head: int  # width of a head

    @property
    def shrink(self) -> float:
        """The factor of a norm's weights."""
        return math.sqrt(self.small.width / self.large.width)

    def heads(self) -> Tensor:
        """Return the positions of the old query channels among the new ones: the first positions of the same groups."""
        few, many = self.small.heads // self.small.kv_heads, self.large.heads // self.large.kv_heads
        places = [kv * many + q for kv in range(self.small.kv_heads) for q in range(few)]
        return torch.cat([torch.arange(place * self.head, (place + 1) * self.head) for place in places])


def _size(config: Any) -> Size:
    return Size(
        int(config.hidden_size),
        int(config.num_hidden_layers),
        int(config.num_attention_heads),
        int(config.num_key_value_heads),
        int(config.intermediate_size),
    )


def _checked(config: Any, large: Size) -> _Stretch:
    if config.model_type != "llama" or getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        raise MismatchError(f"only Llama models without biases can be inflated, got {config.model_type!r}")
    small = _size(config)
    head = int(getattr(config, "head_dim", None) or small.width // small.heads)
    if large.width != large.heads * head:
        raise ArgumentError(f"the width must be heads × {head}, the width of a head, got {large}")
    smaller = [name for name, value in asdict(small).items() if value > getattr(large, name)]
    groups = small.heads // small.kv_heads <= large.heads // large.kv_heads and large.heads % large.kv_heads == 0
    if smaller or not groups:
        raise ArgumentError(
            f"a model can only grow, in every number and in query heads per kv head: it has {small}, got {large}"
        )
    return _Stretch(small, large, head)


@torch.no_grad()
def _empty(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Allocate a model's weights on the device, and fill them with random values of a typical magnitude."""
    model.to(dtype).to_empty(device=device)  # in this order, so that nothing is allocated in the wrong dtype
    for weights in model.parameters():
        weights.normal_(1.0 if weights.dim() == 1 else 0.0, 0.02)


def _put(weights: Tensor, small: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> None:
    """Write `small` into the first rows and columns, or into the given ones."""
    rows = torch.arange(small.shape[0]) if rows is None else rows
    columns = torch.arange(small.shape[1]) if columns is None else columns
    weights[rows.to(weights.device)[:, None], columns.to(weights.device)] = small.to(weights.device, weights.dtype)


def _norm(large: Any, small: Any, stretch: _Stretch) -> None:
    kept = small.weight.shape[0]
    large.weight[:kept] = (small.weight.float() * stretch.shrink).to(large.weight.device, large.weight.dtype)
    large.variance_epsilon = small.variance_epsilon * stretch.shrink**2


def _layer(large: Any, small: Any | None, stretch: _Stretch) -> None:
    """Fill one decoder layer; without a small layer it adds zero to the residual stream."""
    large.self_attn.o_proj.weight.zero_()
    large.mlp.down_proj.weight.zero_()
    if small is None:
        return
    heads = stretch.heads()
    _put(large.self_attn.q_proj.weight, full_weight(small.self_attn.q_proj), rows=heads)
    for name in ("k_proj", "v_proj"):
        _put(getattr(large.self_attn, name).weight, full_weight(getattr(small.self_attn, name)))
    _put(large.self_attn.o_proj.weight, full_weight(small.self_attn.o_proj), columns=heads)
    for name in ("gate_proj", "up_proj", "down_proj"):
        _put(getattr(large.mlp, name).weight, full_weight(getattr(small.mlp, name)))
    for name in ("input_layernorm", "post_attention_layernorm"):
        _norm(getattr(large, name), getattr(small, name), stretch)


def _trunk(large: Any, small: Any, stretch: _Stretch) -> None:
    """Fill all layers and the final norm; added layers come last."""
    for at, layer in enumerate(large.layers):
        _layer(layer, small.layers[at] if at < len(small.layers) else None, stretch)
    _norm(large.norm, small.norm, stretch)


def _config(config: LlamaConfig, stretch: _Stretch) -> LlamaConfig:
    data = {**config.to_dict(), "tie_word_embeddings": False, "head_dim": stretch.head}
    large = stretch.large
    return LlamaConfig(
        **{
            **data,
            "hidden_size": large.width,
            "num_hidden_layers": large.layers,
            "num_attention_heads": large.heads,
            "num_key_value_heads": large.kv_heads,
            "intermediate_size": large.inner,
        }
    )


@torch.no_grad()
def inflated(
    model: PreTrainedModel, size: Size = LLAMA_8B, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Return a Llama of the given size that computes the logits of `model`."""
    small: Any = model
    stretch = _checked(small.config, size)
    with torch.device("meta"):
        large: Any = LlamaForCausalLM(_config(small.config, stretch))
    _empty(large, device or model.device, dtype or model.dtype)
    _renew(large.model, small.model)
    _trunk(large.model, small.model, stretch)
    large.model.embed_tokens.weight.zero_()
    _put(large.model.embed_tokens.weight, small.model.embed_tokens.weight)
    _put(large.lm_head.weight, small.lm_head.weight)
    large.generation_config = small.generation_config
    made: PreTrainedModel = large.eval().requires_grad_(False)
    return made


def _renew(large: Any, small: Any) -> None:
    """Set the rotary frequencies, which are not weights; they are the small model's, as the head width is the same."""
    kind: Callable[..., Any] = type(small.rotary_emb)
    device = large.norm.weight.device
    large.rotary_emb = kind(config=large.config).to(device)


def _join(large: Any, small: Any, stretch: _Stretch) -> None:
    """Fill a layer that joins the feature, the outputs of layers and the embedding."""
    wide, narrow = stretch.large.width, stretch.small.width
    large.weight.zero_()
    parts = full_weight(small).split(narrow, 1)
    for at, part in enumerate(parts):
        scale = stretch.shrink if 0 < at < len(parts) - 1 else 1.0  # those go through a norm without weights
        columns = torch.arange(at * wide, at * wide + narrow)
        _put(large.weight, part.float() * scale, columns=columns)


@torch.no_grad()
def inflated_head(head: FeatureHead, target: PreTrainedModel) -> FeatureHead:
    """Return a head of the inflated target's width that drafts what `head` drafts for the small target."""
    old: Any = head
    large = _size(target.config)
    grown = replace(large, layers=old.config.num_hidden_layers)
    stretch = _checked(old.config, grown)
    shape = HeadShape(**{**asdict(old.shape), "width": large.width, "heads": large.heads, "kv_heads": large.kv_heads,
                         "inner": large.inner})  # fmt: skip
    with torch.device("meta"):
        made: Any = FeatureHead(shape)
    _empty(made, target.device, target.dtype)
    _renew(made.trunk, old.trunk)
    _trunk(made.trunk, old.trunk, stretch)
    _join(made.join, old.join, stretch)
    if made.below is not None:
        _join(made.below.join, old.below.join, stretch)
        _norm(made.below.text_norm, old.below.text_norm, stretch)
        _norm(made.below.norm, old.below.norm, stretch)
    made.borrow(target)
    found: FeatureHead = made.eval().requires_grad_(False)
    return found
