"""A model that stops after its first layers, made of the very weights of the whole one: nothing is copied."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import ArgumentError
from spectr.models.internals import copy_with_children
from spectr.models.layers import layer_path

__all__ = ["truncated"]


def truncated(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """`model` with only its first `layers` layers before the final norm and the output layer; it shares all weights,
    and `model` itself stays as it is."""
    config = model.config.get_text_config(decoder=True)
    if not 1 <= layers <= config.num_hidden_layers:
        raise ArgumentError(f"layers must be 1 to {config.num_hidden_layers}, got {layers}")
    path = layer_path(model)
    cut = _cut(model.config, layers)
    made: PreTrainedModel = _fork(model, cut)
    inner: Any = made
    for name in path[:-1]:
        setattr(inner, name, _fork(getattr(inner, name), cut))
        inner = getattr(inner, name)
    setattr(inner, path[-1], nn.ModuleList(list(getattr(inner, path[-1]).children())[:layers]))
    return made


def _cut(config: Any, layers: int) -> Any:
    """A config of so many layers. Lists with an entry per layer are cut first, since their lengths are checked."""
    made = copy.deepcopy(config)
    text = made.get_text_config(decoder=True)
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if getattr(text, name, None):
            setattr(text, name, getattr(text, name)[:layers])
    text.num_hidden_layers = layers
    return made


def _fork(module: Any, config: Any) -> Any:
    """The same module, with a dictionary of children of its own and a config of its own."""
    made = copy_with_children(module)
    if hasattr(made, "config"):
        made.config = config
    return made
