"""Runs a head at several draft depths over whole texts at once, so that training matches drafting.

At depth 1 every position reads the target's feature of the token before. At depth d it reads what depth d − 1 predicted
there. It attends to true entries of the text up to the root of its draft, then to one predicted entry of each depth in
between.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["Recurrent", "expected_features"]


class Recurrent(Protocol):
    """A head that reads features of the target at the root of a draft and its own predictions below."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        ...

    def features(self, tokens: Tensor, features: Tensor, **attention: Any) -> Tensor:
        """Predict the features (B, T, H) at `tokens` (B, T) from the features of the tokens before them."""
        ...


@dataclass(slots=True)
class _Entries:
    keys: Tensor | None = None
    values: Tensor | None = None
    is_sliding: bool = False
    is_compileable: bool = False


def _join(before: Tensor | None, fresh: Tensor) -> Tensor:
    return fresh if before is None else torch.cat([before, fresh], 2)


@dataclass(slots=True)
class _DepthCache(Cache):
    """A cache that appends the keys and values of each depth to those of the depths before."""

    layers: list[_Entries] = field(default_factory=list)  # type: ignore[assignment]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(_Entries())
        layer = self.layers[layer_idx]
        layer.keys, layer.values = _join(layer.keys, key_states), _join(layer.values, value_states)
        return layer.keys, layer.values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.layers)


def depth_mask(length: int, depth: int, like: Tensor) -> Tensor:
    """Return the additive mask (1, 1, T, depth · T): at depth d, position t attends to true entries up to t − d + 1 and
    to the entry of each depth j at t − d + j."""
    at = torch.arange(length, device=like.device)
    gap = at[:, None] - at  # t − s
    blocks = [gap >= depth - 1] + [gap == depth - j for j in range(2, depth + 1)]
    seen = torch.cat(blocks, -1)
    zeros = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill_(~seen, torch.finfo(like.dtype).min)[None, None]


def _shifted(features: Tensor) -> Tensor:
    """Return features (B, T, H) moved by one, so that each position has those of the token before."""
    return torch.nn.functional.pad(features, (0, 0, 1, 0))[:, :-1]


def expected_features(head: Recurrent, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
    """Return the features (B, T, H) that the head predicts at each of `depths` depths, for texts (B, T) with the
    target's features (B, T, H)."""
    cache, predicted, inputs = _DepthCache(), list[Tensor](), features
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    dtype = (
        torch.get_autocast_dtype(tokens.device.type) if torch.is_autocast_enabled(tokens.device.type) else head.dtype
    )
    for depth in range(1, depths + 1):
        mask = depth_mask(tokens.shape[1], depth, torch.empty(0, dtype=dtype, device=tokens.device))
        inputs = head.features(
            tokens,
            _shifted(inputs),
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        predicted.append(inputs)
    return predicted
