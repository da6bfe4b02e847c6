"""A function that is run once, captured at its second time, and replayed from then on: one graph for every shape.

A step launches a thousand kernels and more, and a host needs longer for that than a GPU for the work; a graph is one
launch.
"""

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Captured"]

_MOST = 64  # graphs kept
T = TypeVar("T")


@dataclass(slots=True)
class _Graph:
    """What goes in, what comes out, and what happens in between."""

    given: Tensor
    made: Any
    graph: torch.cuda.CUDAGraph


def _is_refused_capture(error: RuntimeError) -> bool:
    """Whether CUDA refused to record, or had no memory for a graph's own pool; other errors are the function's own."""
    return isinstance(error, torch.OutOfMemoryError) or "captur" in str(error).lower()


@dataclass(slots=True)
class Captured:
    """Calls functions of one tensor, on a CPU plainly. A key stands for one function."""

    stream: Any = None
    pool: Any = None
    seen: set[Hashable] = field(default_factory=set)
    graphs: dict[Hashable, _Graph] = field(default_factory=dict)
    plain: set[Hashable] = field(default_factory=set)  # what could not be captured

    def __call__(self, key: Hashable, make: Callable[[Tensor], T], given: Tensor) -> T:
        """What `make` gives; it may change weights on the way, as an optimizer's step does."""
        if given.device.type != "cuda":
            return make(given)
        key = (key, tuple(given.shape))
        if key not in self.graphs:
            if key not in self.seen or key in self.plain:
                self.seen.add(key)
                return self._aside(make, given)
            try:
                self._add(key, self._capture(make, given))
            except RuntimeError as error:  # nothing was computed
                if not _is_refused_capture(error):
                    raise
                self.plain.add(key)
                reason = str(error).splitlines()[0]
                warnings.warn(f"this step cannot be captured as a graph and runs uncaptured: {reason}", stacklevel=2)
                return self._aside(make, given)
        graph = self.graphs[key] = self.graphs.pop(key)  # used last
        graph.given.copy_(given)
        graph.graph.replay()
        made: T = graph.made
        return made

    def _add(self, key: Hashable, graph: _Graph) -> None:
        """The one used longest ago goes where there are many."""
        if len(self.graphs) >= _MOST:
            oldest = next(iter(self.graphs))
            del self.graphs[oldest]
            self.seen.discard(oldest)
        self.graphs[key] = graph

    def _aside(self, make: Callable[[Tensor], T], given: Tensor) -> T:
        """Run it on a stream of its own, as a first run before a capture must."""
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            made = make(given)
        torch.cuda.current_stream().wait_stream(self.stream)
        return made

    def _capture(self, make: Callable[[Tensor], Any], given: Tensor) -> _Graph:
        """Record it; nothing is computed yet."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        held, graph = given.clone(), torch.cuda.CUDAGraph()
        # other threads may use the device meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            made = make(held)
        return _Graph(held, made, graph)
