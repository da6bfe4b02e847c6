"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import Found
from spectr.models.loading import Loading

__all__ = ["Order", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """The sizes of the comparisons."""

    tokens: int = 256  # per text
    rounds: int = 5  # rounds of which the median is taken, after one warm-up round
    requests: int = 10_000  # short requests with random settings
    in_flight: int = 64  # of those requests
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of a run."""

    out: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    only: tuple[str, ...] = ()
    again: bool = False  # measure again the parts that are in the file
    minutes: float = 3.0  # time limit of each part
    command: str = ""
    trial: Trial = field(default_factory=Trial)

    @property
    def place(self) -> torch.device:
        """The device to run on."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments for loading the model."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        return {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype, "compile": self.compile}

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        place = self.place
        return {
            "what": "one text with a setting or a drafter against the same without; what many requests leave behind",
            "model": Path(self.model).name,
            "drafter": Path(self.drafter).name,
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
            "dtype": str(self.loading["dtype"]),
            "compiled": self.compile,
        }
