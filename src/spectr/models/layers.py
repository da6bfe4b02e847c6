"""Where a model keeps its decoder layers, and the norm after them."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import MismatchError

__all__ = ["final_norm", "layer_path", "layers_of"]


def layer_path(model: PreTrainedModel) -> list[str]:
    """The names on the way to the list of decoder layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    if model.config.is_encoder_decoder:
        raise MismatchError(f"{type(model).__name__} has an encoder; only decoder-only models show single layers")
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return str(name).split(".")
    raise MismatchError(f"{type(model).__name__} has no list of its {count} layers; they cannot be told apart")


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder layers, the first first."""
    return list(model.get_submodule(".".join(layer_path(model))).children())


def final_norm(model: PreTrainedModel) -> nn.Module | None:
    """The norm between the last layer and the output layer, if it stands beside the layers."""
    inner: Any = model.get_submodule(".".join(layer_path(model)[:-1]))
    width = model.config.get_text_config(decoder=True).hidden_size
    norms = [one for one in inner.children() if getattr(getattr(one, "weight", None), "shape", None) == (width,)]
    return norms[-1] if norms else None
