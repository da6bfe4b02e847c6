"""Bloom, and Falcon with ALiBi. They compute position biases from slots, so each block is given a bias from
positions."""

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
    """Return the slope (H,) of the bias of each head: the model's own bias at position 1."""
    build = falcon_alibi if model.config.model_type == "falcon" else bloom_alibi
    pair = torch.ones(1, 2, dtype=torch.int64, device=device)
    found: Tensor = build(pair, heads, torch.float32)[:, 0, 1]
    return found


@dataclass(frozen=True, slots=True)
class Alibi:
    """Replaces bias and mask of every block by pre-hooks during a call."""

    model: PreTrainedModel

    def __call__(self, call: Call) -> Tensor:
        """Return the logits (B, T, V)."""
        blocks: nn.ModuleList = self.model.base_model.h  # type: ignore[assignment]
        bias = self._bias(call)  # (B, H, 1, M)
        given = {"alibi": bias.flatten(0, 1), "attention_mask": self._mask(call, bias)}
        swap = partial(_swap, given=given)
        call.cache.past = call.cache.attended - call.tokens.shape[1]  # length of the bias Falcon builds
        try:
            with during([partial(block.register_forward_pre_hook, swap, with_kwargs=True) for block in blocks]):
                out: Any = self.model(input_ids=call.tokens, past_key_values=call.cache, use_cache=True)
        finally:
            call.cache.past = 0
        found: Tensor = out.logits
        return found

    def _bias(self, call: Call) -> Tensor:
        """Return the bias (B, H, 1, M): slope times position of the key, rounded as the model does (Falcon:
        bfloat16)."""
        config = self.model.config
        slopes = _slopes(self.model, config.num_attention_heads, call.key.device)
        if config.model_type == "falcon":
            slopes = slopes.bfloat16()
        return (slopes[:, None, None] * call.key[:, None, None, :]).to(self.model.dtype)

    def _mask(self, call: Call, bias: Tensor) -> Tensor:
        """Return the mask. Falcon's contains the bias, which its eager attention adds a second time; that is kept."""
        mask = additive(call.seen, self.model.dtype)
        if self.model.config.model_type != "falcon":
            return mask
        scale = (self.model.config.hidden_size // self.model.config.num_attention_heads) ** 0.5
        return torch.where(mask < 0, mask, bias / scale)


def _swap(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Tensor]) -> Any:
    """Replace keyword arguments of a block by those of the call."""
    device = next(block.parameters()).device
    return args, {**kwargs, **{name: value.to(device) for name, value in given.items()}}
