"""Finds the decoder layers of a model."""

from torch import nn
from transformers import PreTrainedModel

from spectr.errors import MismatchError

__all__ = ["layer_path", "layers_of", "norms_and_rotary"]

_NORMS_AND_ROTARY = ("norm", "text_norm", "final_layernorm", "ln_f", "rotary_emb")


def layer_path(model: PreTrainedModel) -> list[str]:
    """Return the attribute names that lead to the list of decoder layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    if model.config.is_encoder_decoder:
        raise MismatchError(
            f"{type(model).__name__} has an encoder; only the layers of decoder-only models can be used one by one"
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return str(name).split(".")
    raise MismatchError(
        f"{type(model).__name__} has no ModuleList with its {count} layers, so they cannot be used one by one"
    )


def norms_and_rotary(model: PreTrainedModel) -> list[nn.Module]:
    """Return the modules that run once before or after the layers and are worth compiling: rotary positions, the last
    norm, and the norms of what drafts below the root in a light head."""
    trunk = model.get_submodule(".".join(layer_path(model)[:-1]))
    parts = [trunk, *(part for name, part in model.named_children() if name == "below")]
    return [module for part in parts for name, module in part.named_children() if name in _NORMS_AND_ROTARY]


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the decoder layers, in order."""
    return list(model.get_submodule(".".join(layer_path(model))).children())
