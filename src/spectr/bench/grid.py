"""The grid of settings that a benchmark measures, and its presets."""

from dataclasses import dataclass, fields, replace
from typing import Any

from spectr.bench.methods import METHODS, check_methods
from spectr.errors import ArgumentError, UnknownNameError
from spectr.registry import nearest

__all__ = ["PRESETS", "STUDIES", "Grid", "preset"]

STUDIES = ("quality", "size", "vocabulary")
_TASKS = ("continuation", "code", "summarisation", "translation", "arithmetic", "dialogue")


@dataclass(frozen=True, slots=True)
class Grid:
    """Methods × tasks × K × L × temperatures, with the number of prompts per task and of rounds."""

    methods: tuple[str, ...] = tuple(METHODS)
    tasks: tuple[str, ...] = _TASKS
    drafts: tuple[int, ...] = (4,)  # K
    lengths: tuple[int, ...] = (4,)  # L
    temperatures: tuple[float, ...] = (1.0,)
    tokens: int = 64  # maximum number of tokens of a text
    prompts: int = 2  # prompts of a task
    rounds: int = 1  # repetitions, each with its own seeds
    studies: tuple[str, ...] = ()
    seed: int = 0
    noises: tuple[float, ...] = (0.0, 0.1, 0.25, 0.4, 0.6)  # quality: the share of noise in the drafter's logits
    sizes: tuple[str, ...] = ()  # size: drafters; empty: a tenth, a quarter and a half of the target's layers
    vocabularies: tuple[int, ...] = (10_000, 32_000, 50_000, 100_000, 152_064)

    def __post_init__(self) -> None:
        check_methods(self.methods)
        for name in self.studies:
            if name not in STUDIES:
                raise UnknownNameError(f"no ablation is called {name!r}; {nearest(name, list(STUDIES))}")
        if not self.methods or not self.tasks:
            raise ArgumentError("a grid must have at least one method and one task")
        if not all(0 <= share <= 1 for share in self.noises):
            raise ArgumentError(f"shares of noise must lie in [0, 1], got {self.noises}")


PRESETS = {
    "quick": Grid(
        lengths=(3,), tokens=24, studies=STUDIES, noises=(0.0, 0.25, 0.5), vocabularies=(10_000, 50_000, 152_064)
    ),
    "paper": Grid(
        drafts=(1, 2, 4, 8),
        lengths=(2, 4, 8),
        temperatures=(0.0, 0.3, 0.7, 1.0),
        tokens=128,
        prompts=6,
        studies=STUDIES,
    ),
}


def preset(name: str, **changes: Any) -> Grid:
    """Return a preset with some fields changed; None leaves a field unchanged.

    >>> preset("quick", temperatures=(0.0, 1.0)).temperatures
    (0.0, 1.0)
    """
    if name not in PRESETS:
        raise UnknownNameError(f"no preset is called {name!r}; {nearest(name, list(PRESETS))}")
    known = [field.name for field in fields(Grid)]
    assert all(key in known for key in changes)
    return replace(PRESETS[name], **{key: value for key, value in changes.items() if value is not None})
