"""T5 and related models. They have a bias by distance, which they measure in slots; the true bias is put into the
mask."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.drivers.call import Call, additive, during, through_encoder

__all__ = ["T5", "bucket"]


def bucket(distance: Tensor, buckets: int, most: int) -> Tensor:
    """Return the bucket of a distance ≥ 0: exact for the first half of the buckets, logarithmic up to `most`."""
    exact = buckets // 2
    ratio = torch.log(distance.float() / exact) / math.log(most / exact) * (buckets - exact)
    large = (exact + ratio.clamp_min(0).long()).clamp_max(buckets - 1)
    return torch.where(distance < exact, distance, large)


@dataclass(frozen=True, slots=True)
class T5:
    """Sets the model's own bias to zero during a call and adds the true bias to the mask of each block."""

    model: PreTrainedModel

    def __call__(self, call: Call) -> Tensor:
        """Return the logits (B, T, V)."""
        mask = additive(call.seen, self.model.dtype)  # (B, 1, T, M)
        config = self.model.config
        distance = (call.query[:, :, None] - call.key[:, None, :]).clamp_min(0)
        where = bucket(distance, config.relative_attention_num_buckets, config.relative_attention_max_distance)
        hooks = []
        blocks: Any = self.model.get_decoder().block  # type: ignore[no-untyped-call]
        for block, table in zip(blocks, self._tables(blocks), strict=True):
            biased = partial(_biased, table=table.weight, where=where)
            hooks.append(partial(block.layer[0].register_forward_pre_hook, biased, with_kwargs=True))
        hooks.extend(partial(table.register_forward_hook, _silence) for table in set(self._tables(blocks)))
        with during(hooks):
            return through_encoder(self.model, call, mask)

    def _tables(self, blocks: Any) -> list[nn.Embedding]:
        """Return the bias table of each block: its own (UMT5), or that of the first block."""
        attentions = [block.layer[0].SelfAttention for block in blocks]
        owners = [a if a.has_relative_attention_bias else attentions[0] for a in attentions]
        return [owner.relative_attention_bias for owner in owners]


def _biased(_: nn.Module, args: Any, kwargs: dict[str, Any], table: Tensor, where: Tensor) -> Any:
    """Add the bias (B, H, T, M) of each pair to a block's mask; masked pairs stay masked."""
    mask = kwargs["attention_mask"]
    bias = table[where.to(table.device)].permute(0, 3, 1, 2).to(mask.device)
    return args, {**kwargs, "attention_mask": torch.where(mask < 0, mask, bias.to(mask.dtype))}


def _silence(_: nn.Module, __: Any, bias: Tensor) -> Tensor:
    return torch.zeros_like(bias)
