"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import Found
from spectr.models.loading import Loading

__all__ = ["PLAIN", "SPECTR", "STATIC", "TRANSFORMERS", "WAYS", "Order", "Trial"]

SPECTR, PLAIN, TRANSFORMERS, STATIC = "spectr", "plain", "transformers", "transformers_static"
WAYS = (SPECTR, PLAIN, TRANSFORMERS, STATIC)
"""spectr with the drafter, spectr without one, `generate` of transformers, and that with a static cache, for which
transformers compiles the model on a GPU."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is measured, and how much of it."""

    tasks: tuple[str, ...] = ("humaneval", "gsm_symbolic", "chat")
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    ways: tuple[str, ...] = WAYS
    texts: int = 8  # timed texts for each task and temperature
    tokens: int = 256  # maximum tokens of a timed text
    score_temperatures: tuple[float, ...] = (0.0, 0.7)  # empty: no scores
    problems: int | None = None  # problems of each score; None: all of them
    rows: int = 32  # texts that run at once for scores
    score_tokens: int = 512  # maximum tokens of an answer
    run_code: bool = False  # run the programs that the model writes
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of a run."""

    out: Path
    model: str = "qwen2.5-coder-1.5b"
    drafter: str = "auto"
    nodes: int | None = None  # of the token tree; None: the drafter's default
    data: Path | None = None  # folder of the tasks' files; None: fetch them
    device: str = "auto"
    dtype: str = "auto"  # bfloat16 on a GPU, float32 on a CPU
    compile: bool = False
    threads: int | None = None  # of the CPU; None: one for each core
    only: tuple[str, ...] = ()
    again: bool = False  # measure again the parts that are in the file
    minutes: float = 8.0  # time limit of each part
    command: str = ""
    trial: Trial = field(default_factory=Trial)

    @property
    def place(self) -> torch.device:
        """The device to run on."""
        return Loading(device=self.device).place

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `spectr.load`."""
        usual = "bfloat16" if self.place.type == "cuda" else "float32"
        found = {"device": self.place, "dtype": usual if self.dtype == "auto" else self.dtype}
        nodes = {} if self.nodes is None or self.drafter == "none" else {"nodes": self.nodes}
        return {**found, **nodes, "compile": self.compile, "rows": self.trial.rows}

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways that are timed; without a drafter, spectr's own way is plain decoding."""
        return tuple(way for way in self.trial.ways if way != SPECTR or self.drafter != "none")

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        place = self.place
        return {
            "what": "a real model with its drafter, against plain decoding and transformers: speed, and scores",
            "model": Path(self.model).name,
            "drafter": Path(self.drafter).name,
            "nodes": self.nodes,
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
            "dtype": str(self.loading["dtype"]),
            "spectr_compiled": self.compile,
            "threads": self.threads,
        }
