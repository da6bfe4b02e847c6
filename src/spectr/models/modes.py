"""Runs models in evaluation mode and restores the mode they were in."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluation_mode"]


@contextmanager
def evaluation_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Switch off training mode, such as dropout, in `modules` while the context is open."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
