"""Work during which no garbage is collected: where many objects are made and all of them are kept, such as in imports,
Python would scan the whole heap again and again, and free nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection inside the context."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
