"""transformers' own generation, looked at from outside: the time inside a model, and warnings held back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers.utils import logging

__all__ = ["Clock", "quiet"]


@dataclass(slots=True)
class Clock:
    """Calls of a model, and the seconds inside."""

    calls: int = 0
    seconds: float = 0.0
    _since: float = field(default=0.0, repr=False)

    @contextmanager
    def watching(self, net: torch.nn.Module) -> Iterator[None]:
        """While the context is open."""
        before = net.register_forward_pre_hook(lambda *_: setattr(self, "_since", time.perf_counter()))
        after = net.register_forward_hook(lambda *_: self._stop())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _stop(self) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - self._since


@contextmanager
def quiet() -> Iterator[None]:
    """Without the advice that transformers gives once a call."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
