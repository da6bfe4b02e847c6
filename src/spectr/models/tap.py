"""The hidden states that enter the output layer: looked at, and cut where their logits are not wanted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["last_state", "tap"]


def last_state(states: Tensor) -> Tensor:
    """(B, 1, H) of (B, T, H): of a prompt, more is not needed."""
    return states[:, -1:]


@contextmanager
def tap(head: nn.Module, choose: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Tensor]]:
    """What entered `head` while this is open, (B, T, H) each. `choose` says which states pass: everything a model does
    after its output layer still happens, and where nobody looks no logits are made."""
    entered: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        entered.append(args[0])
        return None if choose is None else (choose(args[0]), *args[1:])

    handle = head.register_forward_pre_hook(look)
    try:
        yield entered
    finally:
        handle.remove()
