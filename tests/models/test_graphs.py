"""CUDA graphs of functions: what may happen on the host while one is captured."""

import gc

import pytest
import torch
from torch import Tensor

from spectr.models.graphs import Captured


def _one_graph() -> Captured:
    """Return a graph that was captured and replayed."""
    made, given = Captured(), torch.ones(4, device="cuda")
    for _ in range(3):
        assert made("double", lambda x: 2 * x, given).tolist() == [2.0] * 4
    assert len(made.graphs) == 1
    return made


@pytest.mark.gpu
def test_graphs_among_the_garbage_are_not_destroyed_while_another_is_captured() -> None:
    """Many objects are made during the capture, so that Python would collect garbage, and with it a graph. CUDA ends a
    capture with an error if its thread destroys a graph."""
    old, given, collected = [_one_graph()], torch.ones(4, device="cuda"), []

    def add_one(x: Tensor) -> Tensor:
        before = gc.get_stats()[0]["collections"]
        if torch.cuda.is_current_stream_capturing():
            cycle = [old.pop()]
            cycle.append(cycle)  # type: ignore[arg-type]
            del cycle
        many = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        collected.append(gc.get_stats()[0]["collections"] - before)
        return x + len(many[0]) + 1

    captured = Captured()
    for _ in range(3):
        assert captured("add", add_one, given).tolist() == [2.0] * 4
    assert not old
    assert not captured.plain
    assert collected[0] > 0  # the objects do start collections elsewhere
    assert collected[1] == 0
