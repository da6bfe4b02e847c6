"""Where a model keeps its decoder layers."""

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import MismatchError

__all__ = ["layer_path", "layers_of"]


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
