"""Runs the encoder of an encoder-decoder model on sources of different lengths."""

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from spectr.errors import ArgumentError
from spectr.models.cache import SlotCache
from spectr.models.session import Memory

__all__ = ["check_sources", "encode"]


def check_sources(sources: list[list[int]], rows: int, most: int) -> None:
    """Raise unless there is one source for each row, none empty, none longer than the encoder's positions."""
    if len(sources) != rows:
        raise ArgumentError(f"sources must hold one source for each of {rows} rows, got {len(sources)}")
    if not all(sources):
        raise ArgumentError("a source must have at least one token, got an empty one; drop that row")
    if (longest := max(map(len, sources))) > most:
        raise ArgumentError(f"a source must fit into the encoder's {most} positions, got one of {longest}; shorten it")


def encode(model: PreTrainedModel, sources: list[list[int]], cache: SlotCache) -> Memory:
    """Run the encoder once on all sources, padded to the longest. `cache` is where the decoder keeps its own keys and
    values; those of the sources are kept beside it."""
    longest, pad = max(map(len, sources)), model.config.pad_token_id or 0
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sources], device=model.device)
    counts = torch.tensor([len(s) for s in sources], device=model.device)
    mask = (torch.arange(longest, device=model.device) < counts[:, None]).long()
    encoder: Any = model.get_encoder()
    out = encoder(input_ids=ids, attention_mask=mask)
    return Memory(out.last_hidden_state, mask, EncoderDecoderCache(cache, DynamicCache()))
