"""CUDA graphs of functions: the first call runs, the second is captured, later ones are replayed. Each shape has a
graph.

A step launches more than a thousand kernels, which takes the host longer than the work takes the GPU. Replaying a graph
is one launch.
"""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from spectr.garbage import without_collection
from spectr.models.internals import free_workspaces

__all__ = ["Captured", "recorded"]

_MOST = 64  # graphs kept
_CAPTURING = threading.RLock()
"""Held while a graph is captured. A capture begins by waiting for the whole device, which fails while another thread,
such as that of a second engine, is capturing."""
T = TypeVar("T")


@contextmanager
def recorded(graph: torch.cuda.CUDAGraph, pool: Any = None, stream: Any = None) -> Iterator[None]:
    """Record into a graph what the context launches on the GPU; nothing is computed. Other threads may use the device
    meanwhile. No garbage is collected, because it may contain a graph, and CUDA ends a capture with an error if its
    thread destroys one."""
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    with _CAPTURING, without_collection(), _own_workspace(), capture:
        yield


@contextmanager
def _own_workspace() -> Iterator[None]:
    """Let products that are captured allocate their workspace in the memory of the graph.

    torch keeps a workspace of cuBLAS for each thread and stream. A graph that was captured with it would go on using it
    after torch has freed it, which it does where another graph of the same stream is destroyed, and where functions are
    compiled with graphs of their own (pytorch#193402). The memory might belong to another tensor by then. torch can
    free all workspaces of the process only, so that graphs which a program captures itself have to do the same."""
    torch.cuda.current_blas_handle()  # a thread without one could not make it during a capture
    free_workspaces()
    try:
        yield
    finally:
        free_workspaces()


@dataclass(slots=True)
class _Graph:
    """A captured graph with its static input and output."""

    input: Tensor
    output: Any
    graph: torch.cuda.CUDAGraph


def _is_refused_capture(error: RuntimeError) -> bool:
    """Return whether CUDA refused the capture or had no memory for the graph's pool; other errors are the
    function's."""
    return isinstance(error, torch.OutOfMemoryError) or "captur" in str(error).lower()


class _CaptureRefused(Exception):  # noqa: N818 - the step runs uncaptured, so that nothing went wrong
    """A step could not be captured, and nothing was computed. The message is that of the first error: CUDA ends a
    capture that has failed with another one, which says nothing."""

    def __init__(self, cause: RuntimeError) -> None:
        super().__init__(next(iter(str(cause).splitlines()), type(cause).__name__))


@dataclass(slots=True)
class Captured:
    """Calls functions of one tensor through graphs; on a CPU it calls them directly. A key identifies a function."""

    stream: Any = None
    pool: Any = None
    seen: set[Hashable] = field(default_factory=set)
    graphs: dict[Hashable, _Graph] = field(default_factory=dict)
    plain: set[Hashable] = field(default_factory=set)  # keys that could not be captured

    def __call__(self, key: Hashable, make: Callable[[Tensor], T], given: Tensor) -> T:
        """Return `make(given)`. The function may change tensors in place, as an optimizer's step does."""
        if given.device.type != "cuda":
            return make(given)
        key = (key, tuple(given.shape))
        if key not in self.graphs:
            if key not in self.seen or key in self.plain:
                self.seen.add(key)
                return self._run_on_side_stream(make, given)
            try:
                self._add(key, self._capture(make, given))
            except _CaptureRefused as reason:
                self.plain.add(key)
                warnings.warn(f"this step cannot be captured as a graph and runs uncaptured: {reason}", stacklevel=2)
                return self._run_on_side_stream(make, given)
        graph = self.graphs[key] = self.graphs.pop(key)  # the most recently used is last
        graph.input.copy_(given)
        graph.graph.replay()
        output: T = graph.output
        return output

    def _add(self, key: Hashable, graph: _Graph) -> None:
        """Keep a graph; with more than `_MOST` graphs the least recently used one is dropped."""
        if len(self.graphs) >= _MOST:
            oldest = next(iter(self.graphs))
            del self.graphs[oldest]
            self.seen.discard(oldest)
        self.graphs[key] = graph

    def _run_on_side_stream(self, make: Callable[[Tensor], T], given: Tensor) -> T:
        """Run the function on a side stream, as CUDA requires of the run before a capture."""
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            made = make(given)
        torch.cuda.current_stream().wait_stream(self.stream)
        return made

    def _capture(self, make: Callable[[Tensor], Any], given: Tensor) -> _Graph:
        """Record the function; nothing is computed yet."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        static, graph, first = given.clone(), torch.cuda.CUDAGraph(), None
        try:
            with recorded(graph, self.pool, self.stream):
                try:
                    output = make(static)
                except RuntimeError as error:
                    first = error
                    raise
        except RuntimeError as last:
            if not _is_refused_capture(last):
                raise
            raise _CaptureRefused(first or last) from last
        return _Graph(static, output, graph)
