"""How long work is told of while it goes on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

__all__ = ["Progress"]


@contextmanager
def _no_bar(_title: str, _total: int) -> Iterator[Callable[[], None]]:
    yield lambda: None


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Sentences, and bars: a title and how much there is to do → what moves it on. By default silence."""

    say: Callable[[str], None] = _silent
    bar: Callable[[str, int], AbstractContextManager[Callable[[], None]]] = _no_bar
