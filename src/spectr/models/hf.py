"""From a name to a model: catalog, hub or folder, through transformers' own loading."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from spectr.errors import ArgumentError
from spectr.models.catalog import CATALOG, FetchError, Progress, pull
from spectr.models.target import Target

__all__ = ["OpenedModel", "open_model"]


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A target with what belongs to it."""

    target: Target
    tokenizer: Any
    stops: frozenset[int]  # tokens that end a text


def _stops(net: PreTrainedModel) -> frozenset[int]:
    ids = getattr(net.generation_config, "eos_token_id", None)
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def open_model(model: str, dtype: str = "float32", progress: Progress = lambda _: None) -> OpenedModel:
    """A catalog name, a hub id or a local folder."""
    if dtype not in ("float32", "bfloat16", "float16", "float64"):
        raise ArgumentError(f"dtype must be float32, bfloat16, float16 or float64, got {dtype!r}")
    folder = str(pull(model, progress)) if model in CATALOG else model
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        net = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        why = (
            "the folder lacks something" if Path(folder).exists() else "no such folder, and no hub has it or is reached"
        )
        raise FetchError(f"{model!r} could not be loaded: {why}. Catalog models: {', '.join(CATALOG)}") from error
    return OpenedModel(Target(net), tokenizer, _stops(net))
