"""The hidden states that enter the output layer: looked at, and cut where their logits are not wanted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["capture_hidden_states", "last_state"]


def last_state(states: Tensor) -> Tensor:
    """(B, 1, H) of (B, T, H): of a prompt, more is not needed."""
    return states[:, -1:]


def _states(output: Any) -> Tensor:
    """What a decoder layer gives on; some families give more beside it."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


@contextmanager
def capture_hidden_states(
    head: nn.Module, select: Callable[[Tensor], Tensor] | None = None, layers: Sequence[nn.Module] = ()
) -> Iterator[list[Tensor]]:
    """What entered `head` while this is open, (B, T, H) each, and after it along H what left these `layers`. `select`
    says which states pass: everything a model does after its output layer still happens, and where nobody looks no
    logits are made."""
    entered: list[Tensor] = []
    beside: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        entered.append(torch.cat([args[0], *beside], -1) if beside else args[0])
        beside.clear()
        return None if select is None else (select(args[0]), *args[1:])

    with ExitStack() as hooks:
        hooks.callback(head.register_forward_pre_hook(look).remove)
        for layer in layers:
            hooks.callback(layer.register_forward_hook(lambda _, __, output: beside.append(_states(output))).remove)
        yield entered
