"""The settings of a run: what to measure, and where to write the result."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.order import BaseOrder
from benchmarks.record import Found

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
class Order(BaseOrder):
    """The settings of a run."""

    model: str = "qwen2.5-coder-1.5b"
    nodes: int | None = None  # of the token tree; None: the drafter's default
    data: Path | None = None  # folder of the tasks' files; None: fetch them
    threads: int | None = None  # of the CPU; None: one for each core
    minutes: float = 8.0  # time limit of each part
    trial: Trial = field(default_factory=Trial)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `spectr.load`."""
        nodes = {} if self.nodes is None or self.drafter == "none" else {"nodes": self.nodes}
        return {**self.loading, **nodes, "compile": self.compile, "rows": self.trial.rows}

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways that are timed; without a drafter, spectr's own way is plain decoding."""
        return tuple(way for way in self.trial.ways if way != SPECTR or self.drafter != "none")

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        what = "a real model with its drafter, against plain decoding and transformers: speed, and scores"
        more = {"nodes": self.nodes, "spectr_compiled": self.compile, "threads": self.threads}
        return {**self.described(what), "model": Path(self.model).name, **more}
