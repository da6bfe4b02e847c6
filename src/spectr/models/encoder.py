"""The encoder's side: ragged sources in, one padded memory out."""

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from spectr.errors import ArgumentError
from spectr.models.cache import SlotCache
from spectr.models.session import Memory

__all__ = ["check_sources", "encode"]


def check_sources(sources: list[list[int]], rows: int, most: int) -> None:
    """One source for each row, none empty, none longer than the encoder's positions."""
    if len(sources) != rows:
        raise ArgumentError(f"each of {rows} rows needs one source, got {len(sources)}")
    if not all(sources):
        raise ArgumentError("a source needs at least one token, got an empty one; drop that row")
    if (longest := max(map(len, sources))) > most:
        raise ArgumentError(f"a source must fit into the encoder's {most} positions, got one of {longest}; shorten it")


def encode(model: PreTrainedModel, sources: list[list[int]], cache: SlotCache) -> Memory:
    """Run the encoder once; `cache` will hold the decoder's own keys and values beside those of the sources."""
    longest, pad = max(map(len, sources)), model.config.pad_token_id or 0
    ids = torch.tensor([s + [pad] * (longest - len(s)) for s in sources], device=model.device)
    counts = torch.tensor([len(s) for s in sources], device=model.device)
    mask = (torch.arange(longest, device=model.device) < counts[:, None]).long()
    encoder: Any = model.get_encoder()
    out = encoder(input_ids=ids, attention_mask=mask)
    return Memory(out.last_hidden_state, mask, EncoderDecoderCache(cache, DynamicCache()))
