"""What a driver is told of one forward, and what every driver does with it. Knows no family."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from spectr.models.cache import SlotCache
from spectr.models.session import Memory
from spectr.rows import constant

__all__ = ["Call", "Driver", "additive", "during", "through_memory"]


@dataclass(frozen=True, slots=True)
class Call:
    """Fresh tokens, where they stand, and what each may look at."""

    tokens: Tensor  # (B, T) int64
    query: Tensor  # (B, T) int64: their positions
    key: Tensor  # (B, M) int64: the positions that the slots in use hold
    seen: Tensor  # (B, T, M) bool
    cache: SlotCache  # told where to write
    memory: Memory | None  # what the encoder made, for models that have one
    given: Tensor | None = None  # (B, T, H) features that go in with the tokens, for a head


class Driver(Protocol):
    """Runs an unmodified model so that positions and masks are ours."""

    def __call__(self, call: Call) -> Tensor:
        """Logits (B, T, V)."""
        ...


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, T, M): 0 where seen. A bool mask is silently wrong in eager attention."""
    return torch.where(
        seen, constant((0.0,), seen.device, dtype), constant((torch.finfo(dtype).min,), seen.device, dtype)
    )[:, None]


@contextmanager
def during(hooks: Sequence[Callable[[], Any]]) -> Iterator[None]:
    """Hooks that exist for one call only: the user's model is as before when it is over, whatever happens."""
    handles: list[Any] = []
    try:
        handles.extend(hook() for hook in hooks)
        yield
    finally:
        for handle in handles:
            handle.remove()


def through_memory(model: nn.Module, call: Call, mask: Tensor) -> Tensor:
    """One call of an encoder-decoder model's decoder, with a self-attention mask (B, 1 or H, T, M)."""
    if call.memory is None:
        raise RuntimeError("sources must be encoded before the decoder is called")
    out = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=call.memory.states),  # type: ignore[arg-type]
        attention_mask=call.memory.mask,
        decoder_input_ids=call.tokens,
        decoder_attention_mask=mask,
        past_key_values=call.memory.cache,
        use_cache=True,
    )
    found: Tensor = out.logits
    return found
