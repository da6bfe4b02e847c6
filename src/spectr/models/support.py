"""Finds out what a model needs to be scored on trees, and refuses models that cannot be, with the reason."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedModel

from spectr.errors import MismatchError
from spectr.models.drivers.alibi import Alibi
from spectr.models.drivers.bart import Bart
from spectr.models.drivers.call import Driver
from spectr.models.drivers.causal import Causal
from spectr.models.drivers.t5 import T5
from spectr.models.internals import is_recurrent
from spectr.models.layers import layers_of

__all__ = ["UNBOUNDED", "Family", "Needs", "driver_of", "needs_of"]

Family = Literal["causal", "alibi", "t5", "bart"]
UNBOUNDED = 1 << 30  # positions of a model that has no table of them

_T5_KIN = ("t5", "mt5", "umt5")
_BART_KIN = ("bart", "mbart", "marian", "pegasus", "plbart", "blenderbot", "blenderbot-small")
_ONE_MASK = ("mistral", "ministral3")  # their configs list kinds of layers, but the models take one mask
_KINDS = ("full_attention", "sliding_attention")
_SENSES = ("pixel_values", "input_features", "input_values")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model's forward pass needs."""

    family: Family
    layer_kinds: tuple[str, ...] | None  # kinds of layers with a mask each; None: one mask for all
    window: int | None  # width of the sliding window, in positions
    context: int  # positions of the decoder
    source: int | None  # positions of the encoder, None without an encoder


def _ropes(config: Any) -> set[Any]:
    """Return the kinds of rotary scaling in use; some configs have one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *rope.values()] if isinstance(rope, dict) else []
    return {part.get("rope_type") for part in parts if isinstance(part, dict)}


def _refuse(model: PreTrainedModel, parameters: frozenset[str]) -> None:
    """Raise an error with the reason if a model cannot be scored on trees."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if parameters & set(_SENSES):
        raise MismatchError(f"{name} takes images or sound; targets must take text only, so use a text model")
    if head is None:
        raise MismatchError(
            f"{name} has no output layer over tokens; load it as a causal or sequence-to-sequence model"
        )
    if is_recurrent(model):
        raise MismatchError(
            f"{name} keeps a recurrent state, which cannot be kept along one path of a tree; use attention models"
        )
    if _ropes(config) & {"dynamic", "longrope"}:
        raise MismatchError(
            f"{name} scales its rotary positions by the longest text of the call; use another rope_type"
        )
    if getattr(config, "num_kv_shared_layers", 0) or getattr(config, "index_topk", None):
        raise MismatchError(f"{name} shares or indexes keys between layers, which spectr's cache does not support")


def _family(model: PreTrainedModel, parameters: frozenset[str]) -> Family:
    name, kind = type(model).__name__, model.config.model_type
    if model.config.is_encoder_decoder:
        if kind not in _T5_KIN + _BART_KIN:
            raise MismatchError(
                f"{name} is an encoder-decoder model of a family that is not supported; supported are "
                f"{', '.join(_T5_KIN + _BART_KIN)}"
            )
        return "t5" if kind in _T5_KIN else "bart"
    if kind == "bloom" or (kind == "falcon" and getattr(model.config, "alibi", False)):
        return "alibi"
    if "position_ids" not in parameters or getattr(model.config, "alibi", False):
        raise MismatchError(f"{name} takes no position_ids, so nodes of one depth cannot share a position")
    return "causal"


def _kinds(model: PreTrainedModel, config: Any) -> tuple[str, ...] | None:
    """Return the kinds of layers that take a mask each, None if all take the same."""
    kinds = getattr(config, "layer_types", None)
    if not kinds or config.model_type in _ONE_MASK:
        return None
    if strange := sorted(set(kinds) - set(_KINDS)):
        raise MismatchError(
            f"{type(model).__name__} has layers of kind {', '.join(strange)}; only {' and '.join(_KINDS)} can be "
            "scored on trees"
        )
    return tuple(sorted(set(kinds)))


def needs_of(model: PreTrainedModel) -> Needs:
    """Return what `model` needs; raise `MismatchError` if it cannot be scored on trees."""
    parameters = frozenset(inspect.signature(model.forward).parameters)
    _refuse(model, parameters)
    family, config = _family(model, parameters), model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    context = UNBOUNDED if family == "t5" else int(getattr(config, "max_position_embeddings", None) or UNBOUNDED)
    source = context if model.config.is_encoder_decoder else None
    kinds = _kinds(model, config) if family == "causal" else None
    return Needs(family, kinds, window, context, source)


def _passes_on_arguments(model: PreTrainedModel) -> bool:
    """Return whether a model passes arguments that it does not know on to its attention function."""
    try:
        layer = next(iter(layers_of(model)), model)
    except MismatchError:
        return False
    attention = [module for module in layer.modules() if type(module).__name__.endswith("Attention")]
    chain = (model, model.base_model, layer, *attention)
    return bool(attention) and all(inspect.getfullargspec(inspect.unwrap(m.forward)).varkw for m in chain)


def driver_of(model: PreTrainedModel, needs: Needs) -> Driver:
    """Return the driver that calls a model with these needs."""
    if needs.family == "causal":
        return Causal(model, needs.layer_kinds, needs.window, _passes_on_arguments(model))
    made: dict[str, type[Alibi] | type[T5] | type[Bart]] = {"alibi": Alibi, "t5": T5, "bart": Bart}
    return made[needs.family](model)
