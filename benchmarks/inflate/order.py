"""What is to be measured, and where it is written down."""

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
    """The sizes that the parts go through."""

    nodes: tuple[int, ...] = (1, 16, 32, 64, 128, 256)  # of a call
    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 7935)  # tokens committed before it
    tree: int = 64  # nodes of the step that is taken apart, and of the trees that the race is compared with
    depth: int = 8  # of that step
    race: tuple[int, ...] = (16, 32, 64, 128)  # nodes
    depths: tuple[int, ...] = ()  # of the race's trees; none: what goes with their nodes
    chains: tuple[int, ...] = (2, 3, 4, 6)  # tokens of one draft
    texts: int = 8
    tokens: int = 128  # of a text
    temperature: float = 1.0
    rows: tuple[int, ...] = (1, 4, 16, 64)  # of a batch
    row_nodes: tuple[int, ...] = (2, 4, 8, 16, 64)
    peer_tokens: int = 48
    repeats: int = 20  # timings of which the median is taken


@dataclass(frozen=True, slots=True)
class Order:
    """A run."""

    out: Path
    prompts: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    assistant: str | None = None  # for transformers; None: the small model
    size: Size = LLAMA_8B
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    only: tuple[str, ...] = ()
    again: bool = False  # measure what is there already once more
    compile: bool = False
    minutes: float = 8.0  # for each part
    command: str = ""
    grid: Grid = field(default_factory=Grid)

    @property
    def place(self) -> torch.device:
        """The device meant."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """How the small model is loaded; the large one is made alike."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        return {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype}

    def about(self) -> Found:
        """What all parts of a file must share."""
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
