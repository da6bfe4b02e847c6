"""The inputs of one forward pass, and helpers for all drivers; does not depend on any family."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from spectr.models.cache import SlotCache
from spectr.models.session import EncodedSources
from spectr.rows import constant

__all__ = ["Call", "Driver", "additive", "during", "through_encoder"]


@dataclass(frozen=True, slots=True)
class Call:
    """Fresh tokens, their positions, and the slots that each attends to."""

    tokens: Tensor  # (B, T) int64
    query: Tensor  # (B, T) int64: positions of the tokens
    key: Tensor  # (B, M) int64: positions of the slots in use
    seen: Tensor  # (B, T, M) bool
    row_ends: Tensor  # (B,) int64: no token of a row attends to its slots from here on
    cache: SlotCache  # its `slots` are set
    sources: EncodedSources | None  # output of the encoder, if there is one
    features: Tensor | None = None  # (B, T, H) input of a head beside the tokens


class Driver(Protocol):
    """Runs an unmodified model with the positions and masks of a call."""

    def __call__(self, call: Call) -> Tensor:
        """Return the logits (B, T, V)."""
        ...


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (B, 1, T, M), 0 where `seen`. Eager attention gives wrong results with a bool mask."""
    return torch.where(
        seen, constant((0.0,), seen.device, dtype), constant((torch.finfo(dtype).min,), seen.device, dtype)
    )[:, None]


@contextmanager
def during(hooks: Sequence[Callable[[], Any]]) -> Iterator[None]:
    """Register hooks and remove them when the context closes, so that the user's model is not changed."""
    handles: list[Any] = []
    try:
        handles.extend(hook() for hook in hooks)
        yield
    finally:
        for handle in handles:
            handle.remove()


def through_encoder(model: nn.Module, call: Call, mask: Tensor) -> Tensor:
    """Call the decoder of an encoder-decoder model with a self-attention mask (B, 1 or H, T, M); return the logits."""
    if call.sources is None:
        raise RuntimeError("sources must be encoded before the decoder is called")
    out = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=call.sources.states),
        attention_mask=call.sources.mask,
        decoder_input_ids=call.tokens,
        decoder_attention_mask=mask,
        past_key_values=call.sources.cache,
        use_cache=True,
    )
    found: Tensor = out.logits
    return found
