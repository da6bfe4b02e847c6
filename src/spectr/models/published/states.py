"""Which hidden states of the target a head reads. Configs count them in two ways, and do not say in which."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spectr.models.published.checkpoint import Checkpoint
from spectr.types import Layers

__all__ = ["Conventions", "block_states", "eagle3_states", "taps_of"]

_EAGLE, _BLOCK = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class Conventions:
    """Hidden states as numbers i of transformers' `hidden_states[i]`: 0 is the embedding, i what leaves layer i − 1.
    What the file is taken to mean, and what its numbers mean to others."""

    chosen: tuple[int, ...]
    why: str
    other: tuple[int, ...] | None = None
    is_last_normed: bool = False  # the last one of all is what enters the output layer, not what leaves the last layer


def taps_of(states: Conventions, layers: int) -> Layers:
    """The layers, counted from 0, that leave these hidden states, each once."""
    return tuple(sorted({at - 1 for at in states.chosen if not (states.is_last_normed and at == layers)}))


def _usual(layers: int) -> tuple[int, ...]:
    """Early, in the middle, late: what is read where nothing is said."""
    return 2, layers // 2, layers - 3


def _later(states: tuple[int, ...], layers: int) -> tuple[int, ...] | None:
    """One further each, if there are such."""
    return tuple(at + 1 for at in states) if max(states) < layers else None


def eagle3_states(config: Mapping[str, Any], layers: int) -> Conventions:
    """Of an EAGLE-3 head for a target with so many layers: speculators counts hidden states at the top of a config,
    SpecForge and those who follow it count layers, in a part of its own."""
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
        _usual(layers), "its config names none, so the usual three are taken", _later(_usual(layers), layers)
    )


def block_states(checkpoint: Checkpoint, named: list[int] | None, layers: int) -> Conventions:
    """Of a DFlash or DSpark head: speculators counts hidden states, the inventors count layers, which are `named`."""
    if checkpoint.is_speculators:
        states = tuple(int(at) for at in checkpoint.config.get(_BLOCK) or _usual(layers))
        return Conventions(states, f"{_BLOCK} counts hidden states", _later(states, layers))
    ids = tuple(int(at) for at in named or _evenly(checkpoint.layers, layers))
    later = tuple(at + 1 for at in ids)
    return Conventions(later, "target_layer_ids counts the layers that they leave", ids, is_last_normed=True)


def _evenly(count: int, layers: int) -> list[int]:
    """The layers of a DFlash head that names none: from the second to the third from the end, one for each of its
    own."""
    return [layers // 2] if count == 1 else [round(1 + at * (layers - 4) / (count - 1)) for at in range(count)]
