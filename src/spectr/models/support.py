"""Which models can be driven, and what each of them needs: read off the model once, refused with a reason."""

import inspect
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from spectr.errors import MismatchError

__all__ = ["Needs", "needs_of"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one model's forward wants to be told."""

    layer_kinds: tuple[str, ...] | None  # a mask for each kind of layer, or None for one mask
    window: int | None  # of the sliding layers
    accepts_rows: bool  # logits of chosen positions only


def _is_recurrent(model: PreTrainedModel) -> bool:
    """Recurrent state cannot be rolled back to a path of a tree."""
    layers = DynamicCache(config=model.config).layers
    return bool(getattr(model, "_is_stateful", False)) or any("Linear" in type(layer).__name__ for layer in layers)


def _refuse(model: PreTrainedModel, parameters: frozenset[str]) -> None:
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise MismatchError(f"{name} has an encoder; a target here is a decoder-only causal model")
    if _is_recurrent(model):
        raise MismatchError(
            f"{name} keeps a recurrent state, which cannot be kept along one path of a tree; use attention models"
        )
    if "position_ids" not in parameters:
        raise MismatchError(f"{name} takes no position_ids, so nodes of one depth cannot share a position (ALiBi)")
    if getattr(config, "alibi", False):
        raise MismatchError(f"{name} derives ALiBi biases from slot order, which a tree does not have; set alibi off")
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in ("dynamic", "longrope"):
        raise MismatchError(
            f"{name} scales its rotary positions by the longest text of the call; use another rope_type"
        )


def _kinds(config: Any, model_type: str) -> tuple[str, ...] | None:
    """Kinds of layers that take their own mask. Mistral's config lists kinds, but its model takes one mask."""
    kinds = getattr(config, "layer_types", None)
    return tuple(sorted(set(kinds))) if kinds and model_type not in ("mistral", "ministral3") else None


def needs_of(model: PreTrainedModel) -> Needs:
    """What `model` needs, or a `MismatchError` that says why it cannot be driven."""
    parameters = frozenset(inspect.signature(model.forward).parameters)
    _refuse(model, parameters)
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    return Needs(_kinds(config, config.model_type), window, "logits_to_keep" in parameters)
