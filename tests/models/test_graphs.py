"""CUDA graphs of functions: what may happen on the host while one is captured."""

import gc
import threading

import pytest
import torch
from torch import Tensor

from spectr.models.graphs import Captured
from spectr.models.internals import free_workspaces


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


def _product(inner: int = 1 << 16) -> tuple[Tensor, Tensor]:
    """Return factors whose product has few results and long sums, which cuBLAS splits with the help of a workspace."""
    return torch.randn(16, inner, device="cuda"), torch.randn(inner, 16, device="cuda")


@pytest.mark.gpu
def test_a_step_that_ran_in_one_thread_is_captured_in_another() -> None:
    """An engine's thread ends when there is nothing to do, and another one may capture what the first one ran. Here the
    earlier threads still live and keep their handles of cuBLAS, so that the one that captures needs a new one."""
    left, right = _product(256)
    captured, found, is_over = Captured(), list[Tensor](), threading.Event()

    def run(has_run: threading.Event) -> None:
        found.append(captured("product", lambda x: x @ right, left))
        has_run.set()
        is_over.wait()

    for count in range(1, 4):
        has_run = threading.Event()
        threading.Thread(target=run, args=(has_run,), daemon=True).start()
        assert has_run.wait(60)
        assert len(found) == count
    is_over.set()
    assert not captured.plain
    assert len(captured.graphs) == 1
    for one in found:
        torch.testing.assert_close(one, left @ right)


@pytest.mark.gpu
def test_graphs_keep_their_workspaces() -> None:
    """torch frees the workspaces of a stream where another graph of it is destroyed. What replays then must neither
    fail nor write into memory that belongs to another tensor by now."""
    left, right = _product()
    captured = Captured()
    for _ in range(3):
        meant = captured("product", lambda x: x @ right, left).clone()
    other = Captured(stream=captured.stream)
    for _ in range(3):
        other("sum", lambda x: x @ right + 1, left)
    del other
    gc.collect()
    free_workspaces()
    others = [torch.full((1 << 18,), 7.0, device="cuda") for _ in range(256)]  # take what was freed
    torch.testing.assert_close(captured("product", lambda x: x @ right, left), meant)
    assert all(bool((one == 7.0).all()) for one in others)
    others.clear()
    torch.cuda.empty_cache()
    torch.testing.assert_close(captured("product", lambda x: x @ right, left), meant)


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_runs_uncaptured_and_says_why() -> None:
    """A function that waits for the device cannot be captured. Its results stay right, and it is warned of once."""
    captured, given = Captured(), torch.arange(4.0, device="cuda")

    def scale(x: Tensor) -> Tensor:
        try:
            raise NotImplementedError  # an error that was handled is not the reason
        except NotImplementedError:
            return x * x.sum().item()

    assert captured("scale", scale, given).tolist() == [0.0, 6.0, 12.0, 18.0]
    with pytest.warns(UserWarning, match=r"runs uncaptured: .*(captur|permitted)"):
        found = captured("scale", scale, given)
    assert found.tolist() == [0.0, 6.0, 12.0, 18.0]
    assert captured("scale", scale, given + 1).tolist() == [10.0, 20.0, 30.0, 40.0]
    assert not captured.graphs
    for _ in range(3):
        assert captured("double", lambda x: 2 * x, given).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert len(captured.graphs) == 1
