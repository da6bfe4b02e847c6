"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.order import BaseOrder
from benchmarks.record import Found

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
class Order(BaseOrder):
    """The settings of a run."""

    minutes: float = 3.0  # time limit of each part
    trial: Trial = field(default_factory=Trial)

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        what = "one text with a setting or a drafter against the same without; what many requests leave behind"
        return {**self.described(what), "model": Path(self.model).name, "compiled": self.compile}
