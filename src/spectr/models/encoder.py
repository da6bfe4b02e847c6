"""Runs the encoder of an encoder-decoder model."""

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from spectr.models.cache import SlotCache
from spectr.models.session import EncodedSources

__all__ = ["encode"]


def encode(model: PreTrainedModel, source: list[int], cache: SlotCache) -> EncodedSources:
    """Run the encoder on one source. `cache` is where the decoder keeps its own keys and values; those of the source
    are kept beside it."""
    ids = torch.tensor([source], device=model.device)
    mask = torch.ones_like(ids)
    encoder: Any = model.get_encoder()
    out = encoder(input_ids=ids, attention_mask=mask)
    return EncodedSources(out.last_hidden_state, mask, EncoderDecoderCache(cache, DynamicCache()))
