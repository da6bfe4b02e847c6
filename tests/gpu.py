"""Helpers for tests on a CUDA device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_host_sync", "set_sync_debug_mode"]


def set_sync_debug_mode(mode: int | str) -> None:
    """Set the mode without torch's warning that it is a prototype, which would be an error here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise where the host would wait for the device inside the context."""
    before = torch.cuda.get_sync_debug_mode()
    set_sync_debug_mode("error")
    try:
        yield
    finally:
        set_sync_debug_mode(before)
