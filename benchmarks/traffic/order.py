"""The settings of a run: what to measure, and where to write the result."""

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
    """The requests, and the length of the measurement."""

    in_flight: tuple[int, ...] = (1, 4, 16, 64)
    prompt_tokens: tuple[int, int] = (32, 2048)  # minimum and maximum, log-uniform
    output_tokens: tuple[int, int] = (16, 512)  # likewise
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    delay: float = 0.002  # average seconds from the end of a request to the next
    minutes: float = 0.4  # measured time of each way at each number in flight
    prefills: int = 64  # prompts for the separate prefill
    static_texts: int = 12  # minimum number of texts for the rate of a full batch
    static_tokens: int = 128
    shared: int = 2000  # tokens of shared prefixes; 0: no such part
    repeats: int = 5  # of the part with shared prefixes
    strikes_stops: bool = False  # fix lengths with min_new_tokens instead of ignoring stop tokens
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of a run."""

    out: Path
    prompts: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    size: Size | None = None  # the size to inflate to; None: no inflation
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    only: tuple[str, ...] = ()
    again: bool = False  # measure again the parts that are in the file
    command: str = ""
    load: Load = field(default_factory=Load)

    @property
    def inflation(self) -> InflateOrder:
        """The settings for loading and inflating the model and its drafter."""
        return InflateOrder(
            self.out, self.prompts, self.model, self.drafter, size=self.size or LLAMA_8B, device=self.device,
            dtype=self.dtype, compile=self.compile,
        )  # fmt: skip

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments for loading the model."""
        return self.inflation.loading

    @property
    def place(self) -> torch.device:
        """The device to run on."""
        return self.inflation.place

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        return {
            **self.inflation.about(),
            "what": "requests that come and go: drafting against plain decoding on the same traffic",
            "costs_of": None if self.size is None else {"family": "llama", **asdict(self.size)},
        }
