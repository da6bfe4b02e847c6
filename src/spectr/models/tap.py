"""The hidden states that enter the output layer: looked at, and cut where their logits are not wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["tap"]


@contextmanager
def tap(head: nn.Module, last_only: bool) -> Iterator[list[Tensor]]:
    """What entered `head` while this is open, (B, T, H) each. `last_only` lets just the last state pass: everything a
    model does after its output layer still happens, and a long prompt needs no logits of all its tokens."""
    entered: list[Tensor] = []

    def look(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        entered.append(args[0])
        return (args[0][:, -1:], *args[1:]) if last_only else None

    handle = head.register_forward_pre_hook(look)
    try:
        yield entered
    finally:
        handle.remove()
