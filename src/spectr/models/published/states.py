"""Determines which hidden states of the target a head reads. Configs number them in two ways without saying which."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spectr.models.published.checkpoint import Checkpoint
from spectr.types import Layers

__all__ = ["Conventions", "block_states", "eagle3_states", "feature_layers_of"]

_EAGLE, _BLOCK = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class Conventions:
    """Hidden states, numbered as in transformers' `hidden_states[i]`: 0 is the embedding, i is the output of layer i −
    1. `chosen` is how the config is read, `why` the reason, and `other` the other way to read it."""

    chosen: tuple[int, ...]
    why: str
    other: tuple[int, ...] | None = None
    is_last_normed: bool = False  # the last hidden state is taken after the final norm, not as it leaves the last layer


def feature_layers_of(states: Conventions, layers: int) -> Layers:
    """Return the layers, counted from 0, whose outputs these hidden states are."""
    return tuple(sorted({at - 1 for at in states.chosen if not (states.is_last_normed and at == layers)}))


def _usual(layers: int) -> tuple[int, ...]:
    """Return the default: an early, a middle and a late hidden state."""
    return 2, layers // 2, layers - 3


def _later(states: tuple[int, ...], layers: int) -> tuple[int, ...] | None:
    """Return each number plus one, None if there is no such hidden state."""
    return tuple(at + 1 for at in states) if max(states) < layers else None


def eagle3_states(config: Mapping[str, Any], layers: int) -> Conventions:
    """Return the hidden states of an EAGLE-3 head for a target with `layers` layers. speculators counts hidden states,
    at the top level of the config; SpecForge and others count layers, in `eagle_config`."""
    if top := config.get(_EAGLE):
        states = tuple(int(at) for at in top)
        return Conventions(states, f"{_EAGLE} at the top of its config counts hidden states", _later(states, layers))
    if inner := (config.get("eagle_config") or {}).get(_EAGLE):
        states = tuple(int(at) for at in inner)
        if max(states) >= layers:
            return Conventions(states, f"{_EAGLE} in eagle_config reaches {max(states)}, so it counts hidden states")
        later = tuple(at + 1 for at in states)
        return Conventions(later, f"{_EAGLE} in eagle_config counts the layers that they leave", states)
    return Conventions(
        _usual(layers), "its config names none, so the default three are used", _later(_usual(layers), layers)
    )


def block_states(checkpoint: Checkpoint, named: list[int] | None, layers: int) -> Conventions:
    """Return the hidden states of a DFlash or DSpark head. speculators counts hidden states; the authors' own format
    counts layers, given as `named`."""
    if checkpoint.is_speculators:
        states = tuple(int(at) for at in checkpoint.config.get(_BLOCK) or _usual(layers))
        return Conventions(states, f"{_BLOCK} counts hidden states", _later(states, layers))
    ids = tuple(int(at) for at in named or _evenly(checkpoint.layers, layers))
    later = tuple(at + 1 for at in ids)
    return Conventions(later, "target_layer_ids counts the layers that they leave", ids, is_last_normed=True)


def _evenly(count: int, layers: int) -> list[int]:
    """Return the default layers of a DFlash head: evenly spaced from the second to the third from the end, one for each
    layer of the head."""
    return [layers // 2] if count == 1 else [round(1 + at * (layers - 4) / (count - 1)) for at in range(count)]
