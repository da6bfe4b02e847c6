"""Captures features: the input of the output layer and the outputs of some layers. Computes only the logits needed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["capture_features", "last_state"]


def last_state(states: Tensor) -> Tensor:
    """Return the last of the states (B, T, H) as (B, 1, H): a prompt needs no other logits."""
    return states[:, -1:]


def _states(output: Any) -> Tensor:
    """Return the hidden states in a decoder layer's output, which is a tuple in some families."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


@contextmanager
def capture_features(
    output_layer: nn.Module, select: Callable[[Tensor], Tensor] | None = None, layers: Sequence[nn.Module] = ()
) -> Iterator[list[Tensor]]:
    """Collect what enters the output layer while the context is open, (B, T, H) for each call, followed along H by what
    left the `layers`. `select` picks the states that go through the output layer, so that no logits are computed for
    the others; what a model does after its output layer is unchanged."""
    entered: list[Tensor] = []
    outputs: list[Tensor] = []

    def capture(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        entered.append(torch.cat([args[0], *outputs], -1) if outputs else args[0])
        outputs.clear()
        return None if select is None else (select(args[0]), *args[1:])

    with ExitStack() as hooks:
        hooks.callback(output_layer.register_forward_pre_hook(capture).remove)
        for layer in layers:
            hooks.callback(layer.register_forward_hook(lambda _, __, output: outputs.append(_states(output))).remove)
        yield entered
