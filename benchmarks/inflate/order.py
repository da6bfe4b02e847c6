"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.inflate.model import LLAMA_8B, Size
from benchmarks.record import Found
from spectr.models.loading import Loading

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
class Order:
    """The settings of a run."""

    out: Path
    prompts: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    assistant: str | None = None  # for transformers; None: the small model
    size: Size = LLAMA_8B
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    only: tuple[str, ...] = ()
    again: bool = False  # measure again the parts that are in the file
    compile: bool = False
    minutes: float = 8.0  # time limit of each part
    command: str = ""
    grid: Grid = field(default_factory=Grid)

    @property
    def place(self) -> torch.device:
        """The device to run on."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments for loading the small model; the large one gets the same device and dtype."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        return {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype}

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        place = self.place
        return {
            "what": "texts of a small model at the costs of a large one: the small model and its drafter, inflated",
            "texts_of": Path(self.model).name,
            "costs_of": {"family": "llama", **asdict(self.size)},
            "drafter": Path(self.drafter).name,
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
            "dtype": self.loading["dtype"],
            "compiled": self.compile,
        }
