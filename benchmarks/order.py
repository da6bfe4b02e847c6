"""What the settings of all benchmarks have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import Found
from spectr.models.loading import Loading

__all__ = ["HELD_OUT", "BaseOrder"]

HELD_OUT = Path("benchmarks/heldout.json")
"""Prompts on which no drafter was trained."""


@dataclass(frozen=True, slots=True)
class BaseOrder:
    """Which model to measure, on which device, and where to write the result."""

    out: Path
    model: str = "smollm2-135m"
    drafter: str = "auto"
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    only: tuple[str, ...] = ()  # the parts to measure; empty: all
    again: bool = False  # measure again the parts that are in the file
    command: str = ""

    @property
    def place(self) -> torch.device:
        """The device to run on."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """The device and the dtype as arguments of `spectr.load`."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        return {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype}

    def described(self, what: str) -> Found:
        """Describe what is measured, and on which device."""
        place = self.place
        return {
            "what": what,
            "drafter": Path(self.drafter).name,
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
            "dtype": str(self.loading["dtype"]),
        }
