"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.inflate.model import LLAMA_8B, Size
from benchmarks.inflate.order import Order as InflateOrder
from benchmarks.order import HELD_OUT, BaseOrder
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
    ways: tuple[str, ...] = ("plain", "default")


@dataclass(frozen=True, slots=True)
class Order(BaseOrder):
    """The settings of a run."""

    prompts: Path = HELD_OUT
    size: Size | None = None  # the size to inflate to; None: no inflation
    load: Load = field(default_factory=Load)

    @property
    def inflation(self) -> InflateOrder:
        """The settings for loading and inflating the model and its drafter."""
        return InflateOrder(
            self.out, self.model, self.drafter, self.device, self.dtype, self.compile, prompts=self.prompts,
            size=self.size or LLAMA_8B,
        )  # fmt: skip

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        return {
            **self.inflation.about(),
            "what": "requests that come and go: drafting against plain decoding on the same traffic",
            "costs_of": None if self.size is None else {"family": "llama", **asdict(self.size)},
        }
