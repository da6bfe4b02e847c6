"""Work during which no garbage is collected: where many objects are made and all of them are kept, such as in imports,
Python would scan the whole heap again and again, and free nothing; and what a collection frees can disturb a GPU."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["without_collection"]

_lock = Lock()
_inside: list[bool] = []  # one for each time that the context was entered: whether the collection was enabled then


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection inside the context, in all threads, until the last one has left it."""
    with _lock:
        _inside.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_enabled = _inside.pop()  # the first of them is popped last
            if not _inside and was_enabled:
                gc.enable()
