"""Bloom, and Falcon with ALiBi: their biases grow with the slot of a key, so each block is handed ours instead."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.drivers.call import Call, additive, during
from spectr.models.internals import bloom_alibi, falcon_alibi

__all__ = ["Alibi"]


def _slopes(model: PreTrainedModel, heads: int, device: torch.device) -> Tensor:
    """(H,) what the model itself adds per position: its bias at position 1."""
    build = falcon_alibi if model.config.model_type == "falcon" else bloom_alibi
    pair = torch.ones(1, 2, dtype=torch.int64, device=device)
    found: Tensor = build(pair, heads, torch.float32)[:, 0, 1]
    return found


@dataclass(frozen=True, slots=True)
class Alibi:
    """Pre-hooks on the blocks, for the time of a call."""

    model: PreTrainedModel

    def __call__(self, call: Call) -> Tensor:
        """Logits (B, T, V)."""
        blocks: nn.ModuleList = self.model.base_model.h  # type: ignore[assignment]
        bias = self._bias(call)  # (B, H, 1, M)
        given = {"alibi": bias.flatten(0, 1), "attention_mask": self._mask(call, bias)}
        swap = partial(_swap, given=given)
        call.cache.past = call.cache.attended - call.tokens.shape[1]  # Falcon builds a bias of that length before ours
        try:
            with during([partial(block.register_forward_pre_hook, swap, with_kwargs=True) for block in blocks]):
                out: Any = self.model(input_ids=call.tokens, past_key_values=call.cache, use_cache=True)
        finally:
            call.cache.past = 0
        found: Tensor = out.logits
        return found

    def _bias(self, call: Call) -> Tensor:
        """(B, H, 1, M) slope times the position of the key, rounded as the model rounds (Falcon: to bfloat16)."""
        config = self.model.config
        slopes = _slopes(self.model, config.num_attention_heads, call.key.device)
        if config.model_type == "falcon":
            slopes = slopes.bfloat16()
        return (slopes[:, None, None] * call.key[:, None, None, :]).to(self.model.dtype)

    def _mask(self, call: Call, bias: Tensor) -> Tensor:
        """Falcon wants its bias in the mask (eager attention adds it a second time, and so it must stay)."""
        mask = additive(call.seen, self.model.dtype)
        if self.model.config.model_type != "falcon":
            return mask
        scale = (self.model.config.hidden_size // self.model.config.num_attention_heads) ** 0.5
        return torch.where(mask < 0, mask, bias / scale)


def _swap(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Tensor]) -> Any:
    """What the model prepared for a block goes, ours comes."""
    device = next(block.parameters()).device
    return args, {**kwargs, **{name: value.to(device) for name, value in given.items()}}
