"""A model of the first layers of another, which shares the weights of the whole model."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import ArgumentError
from spectr.models.internals import copy_with_children
from spectr.models.layers import layer_path

__all__ = ["truncated"]


def truncated(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return `model` with only its first `layers` layers before the final norm and the output layer. It shares all
    weights with `model`, which is not changed."""
    config = model.config.get_text_config(decoder=True)
    if not 1 <= layers <= config.num_hidden_layers:
        raise ArgumentError(f"layers must be between 1 and {config.num_hidden_layers}, got {layers}")
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
    """Return a config with `layers` layers. Lists with an entry per layer are cut first, since transformers compares
    their lengths with the number of layers."""
    made = copy.deepcopy(config)
    text = made.get_text_config(decoder=True)
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if getattr(text, name, None):
            setattr(text, name, getattr(text, name)[:layers])
    text.num_hidden_layers = layers
    return made


def _fork(module: Any, config: Any) -> Any:
    """Return a shallow copy of a module with children and a config of its own."""
    made = copy_with_children(module)
    if hasattr(made, "config"):
        made.config = config
    return made
