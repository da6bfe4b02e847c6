"""Where a model keeps its decoder layers."""

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import MismatchError

__all__ = ["beside_layers", "layer_path", "layers_of"]

_BESIDE = ("norm", "final_layernorm", "ln_f", "rotary_emb")


def layer_path(model: PreTrainedModel) -> list[str]:
    """The names on the way to the list of decoder layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    if model.config.is_encoder_decoder:
        raise MismatchError(f"{type(model).__name__} has an encoder; only decoder-only models show single layers")
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return str(name).split(".")
    raise MismatchError(f"{type(model).__name__} has no list of its {count} layers; they cannot be told apart")


def beside_layers(model: PreTrainedModel) -> list[nn.Module]:
    """What a model does once before or after its layers and is worth compiling: positions, and the last norm."""
    trunk = model.get_submodule(".".join(layer_path(model)[:-1]))
    return [module for name, module in trunk.named_children() if name in _BESIDE]


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder layers, the first first."""
    return list(model.get_submodule(".".join(layer_path(model))).children())
