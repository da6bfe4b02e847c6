"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.inflate.model import LLAMA_8B, Size
from benchmarks.order import HELD_OUT, BaseOrder
from benchmarks.record import Found

__all__ = ["Grid", "Order"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes that the parts measure."""

    nodes: tuple[int, ...] = (1, 16, 32, 64, 128, 256)  # per call
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 7935)  # committed tokens before the call
    tree: int = 64  # nodes of the step that is measured in pieces, and of the trees compared with the race
    depth: int = 8  # depth of that step's tree
    race: tuple[int, ...] = (16, 32, 64, 128)  # nodes of the race
    depths: tuple[int, ...] = ()  # depths of the trees; empty: chosen by their nodes
    chains: tuple[int, ...] = (2, 3, 4, 6)  # tokens of a single draft
    texts: int = 8
    tokens: int = 128  # per text
    temperature: float = 1.0
    rows: tuple[int, ...] = (1, 4, 16, 64)  # batch sizes
    row_nodes: tuple[int, ...] = (2, 4, 8, 16, 64)
    peer_tokens: int = 48
    repeats: int = 20  # timings of which the median is taken


@dataclass(frozen=True, slots=True)
class Order(BaseOrder):
    """The settings of a run."""

    prompts: Path = HELD_OUT
    assistant: str | None = None  # for transformers; None: the small model
    size: Size = LLAMA_8B
    minutes: float = 8.0  # time limit of each part
    grid: Grid = field(default_factory=Grid)

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        what = "texts of a small model at the costs of a large one: the small model and its drafter, inflated"
        costs = {"family": "llama", **asdict(self.size)}
        return {**self.described(what), "texts_of": Path(self.model).name, "costs_of": costs, "compiled": self.compile}
