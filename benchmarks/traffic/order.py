"""What is to be measured, and where it is written down."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.inflate.model import LLAMA_8B, Size
from benchmarks.inflate.order import Order as InflateOrder
from benchmarks.record import Found

__all__ = ["Load", "Order"]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests, and for how long they come."""

    in_flight: tuple[int, ...] = (1, 4, 16, 64)
    prompt_tokens: tuple[int, int] = (32, 2048)  # from … to, evenly on a logarithmic scale
    output_tokens: tuple[int, int] = (16, 512)  # likewise
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    delay: float = 0.002  # seconds from the end of a request to the next, on average
    minutes: float = 0.4  # that are counted, of each way at each number in flight
    prefills: int = 64  # prompts that are read alone
    static_texts: int = 12  # of the static rate, at least
    static_tokens: int = 128
    shared: int = 2000  # tokens that prompts share; 0: leave this part out
    repeats: int = 5  # of what is done with shared prompts
    strikes_stops: bool = False  # min_new_tokens keeps texts from ending; else stop tokens end nothing
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A run."""

    out: Path
    prompts: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    size: Size | None = None  # what the pair is inflated to; None: as it is
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    only: tuple[str, ...] = ()
    again: bool = False  # measure what is there already once more
    command: str = ""
    load: Load = field(default_factory=Load)

    @property
    def inflation(self) -> InflateOrder:
        """How the pair is loaded and made larger."""
        return InflateOrder(
            self.out, self.prompts, self.model, self.drafter, size=self.size or LLAMA_8B, device=self.device,
            dtype=self.dtype, compile=self.compile,
        )  # fmt: skip

    @property
    def loading(self) -> dict[str, Any]:
        """How the model is loaded."""
        return self.inflation.loading

    @property
    def place(self) -> torch.device:
        """The device meant."""
        return self.inflation.place

    def about(self) -> Found:
        """What all parts of a file must share."""
        return {
            **self.inflation.about(),
            "what": "requests that come and go: drafting against plain decoding on the same traffic",
            "costs_of": None if self.size is None else {"family": "llama", **asdict(self.size)},
        }
