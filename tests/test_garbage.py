"""Garbage collection is as it was after work without it."""

import gc

import pytest

from spectr.garbage import without_collection


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collection_is_as_it_was(is_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="during work"), without_collection():
            raise ValueError("during work" if not gc.isenabled() else "")
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()
