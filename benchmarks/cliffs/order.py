"""What is to be measured, and where it is written down."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import Found
from spectr.models.loading import Loading

__all__ = ["Order", "Trial"]


@dataclass(frozen=True, slots=True)
class Trial:
    """The texts."""

    tokens: int = 256  # of a text
    rounds: int = 5  # of which the median is taken, after one that does not count
    requests: int = 10_000  # short ones, with random settings
    in_flight: int = 64  # of them, at once
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A run."""

    out: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    only: tuple[str, ...] = ()
    again: bool = False  # measure what is there already once more
    minutes: float = 3.0  # for each part
    command: str = ""
    trial: Trial = field(default_factory=Trial)

    @property
    def place(self) -> torch.device:
        """The device meant."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """How the model is loaded."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        return {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype, "compile": self.compile}

    def about(self) -> Found:
        """What all parts of a file must share."""
        place = self.place
        return {
            "what": "one text with a setting or a drafter against the same without; what many requests leave behind",
            "model": Path(self.model).name,
            "drafter": Path(self.drafter).name,
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
            "dtype": str(self.loading["dtype"]),
            "compiled": self.compile,
        }
