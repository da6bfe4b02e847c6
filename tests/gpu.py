"""Helpers for tests on a CUDA device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_host_sync", "set_sync_debug_mode"]


def set_sync_debug_mode(mode: int | str) -> None:
    """Set the mode without torch's prototype warning, which would be an error in tests."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise an error if the host waits for the device while the context is open."""
    before = torch.cuda.get_sync_debug_mode()
    set_sync_debug_mode("error")
    try:
        yield
    finally:
        set_sync_debug_mode(before)
