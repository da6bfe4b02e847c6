"""A head several depths deep over whole texts at once: what training sees is what drafting does.

At depth 1 every position reads the true feature of the token before. At depth d it reads what depth d − 1 expected
there, and sees true entries of the text up to the root of its draft, then one expected entry of each depth on the way.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["Recurrent", "expected_features"]


class Recurrent(Protocol):
    """A head that reads features of the target at the root of a draft and its own below."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        ...

    def features(self, tokens: Tensor, features: Tensor, **attention: Any) -> Tensor:
        """What it hands on (B, T, H) at `tokens` (B, T), given the features of the tokens before them."""
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
    """Keys and values of all depths so far, one after the other."""

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
    """(1, 1, T, depth · T) added: at depth d position t sees true entries up to t − d + 1, and of depth j that at
    t − d + j."""
    at = torch.arange(length, device=like.device)
    gap = at[:, None] - at  # t − s
    blocks = [gap >= depth - 1] + [gap == depth - j for j in range(2, depth + 1)]
    seen = torch.cat(blocks, -1)
    zeros = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill_(~seen, torch.finfo(like.dtype).min)[None, None]


def _shifted(features: Tensor) -> Tensor:
    """Of the token before."""
    return torch.nn.functional.pad(features, (0, 0, 1, 0))[:, :-1]


def expected_features(head: Recurrent, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
    """What the head expects (B, T, H) at each of `depths` depths, for texts (B, T) with true features (B, T, H)."""
    cache, found, given = _DepthCache(), list[Tensor](), features
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    dtype = (
        torch.get_autocast_dtype(tokens.device.type) if torch.is_autocast_enabled(tokens.device.type) else head.dtype
    )
    for depth in range(1, depths + 1):
        mask = depth_mask(tokens.shape[1], depth, torch.empty(0, dtype=dtype, device=tokens.device))
        given = head.features(
            tokens,
            _shifted(given),
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        found.append(given)
    return found
