"""What a run does, in order: turns, in which everybody writes the same text, and cells that only count.

A turn is one prompt at one temperature, written by all methods one after the other, each time another one first, so
that whatever else the machine does hits all alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spectr.bench.ask import Asked
from spectr.bench.grid import Grid
from spectr.bench.methods import Contender, planned, sized
from spectr.bench.studies import Cell, Quality, vocabulary
from spectr.errors import SpectrError
from spectr.lm import LM

__all__ = ["Plan", "Turn", "plan"]

_COUNTED = 24  # most tokens of a text that is only counted
_ABLATED = 3  # tasks whose first prompts serve the ablations
_STEP = 1_000_003  # between the seeds of rounds


@dataclass(frozen=True, slots=True)
class Turn:
    """One text for everybody."""

    study: str
    asked: Asked
    round: int
    contenders: tuple[Contender, ...]

    def name(self, contender: Contender) -> str:
        """The name of the cell that a contender's text goes to."""
        asked = self.asked
        words = (self.study, asked.task.name, asked.number, f"T={asked.temperature:g}", f"round {self.round}")
        return " ".join(map(str, (*words, contender.key)))

    def order(self, number: int) -> tuple[Contender, ...]:
        """The contenders, another one first in each turn."""
        first = number % len(self.contenders)
        return (*self.contenders[first:], *self.contenders[:first])


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will be done, in order."""

    turns: list[Turn]
    cells: list[Cell]  # of the ablations that only count
    left_out: dict[str, str]  # ablations that cannot be, and why

    def names(self) -> list[str]:
        """The names of all cells."""
        return [turn.name(c) for turn in self.turns for c in turn.contenders] + [name for name, _ in self.cells]


def _main_turns(grid: Grid, asked: list[Asked], who: tuple[Contender, ...]) -> Iterator[Turn]:
    """First prompts first, so that a run that is cut short has something of everything."""
    for number in range(grid.rounds):
        for at in range(max(one.number for one in asked) + 1):
            for place, one in enumerate(asked):
                if one.number == at:
                    seed = grid.seed + number * _STEP + place
                    for temperature in grid.temperatures:
                        yield Turn("main", one.at(temperature, seed), number, who)


def _firsts(asked: list[Asked]) -> list[Asked]:
    """The first prompts of some tasks."""
    return [one for one in asked if one.number == 0][:_ABLATED]


def _tree(grid: Grid) -> tuple[int, int]:
    """The K and L of ablations: of the grid's, the largest that are no larger than four."""
    return tuple(max([n for n in given if n <= 4] or [min(given)]) for given in (grid.drafts, grid.lengths))  # type: ignore[return-value]


def _size_turns(grid: Grid, lm: LM, asked: list[Asked]) -> Iterator[Turn]:
    """The race with drafters of several sizes, at the hottest temperature."""
    net = lm.opened.target.model
    layers = net.config.get_text_config(decoder=True).num_hidden_layers
    wanted = dict.fromkeys(max(1, round(layers * share)) for share in (0.1, 0.25, 0.5))
    names = grid.sizes or tuple(f"early_exit:{count}" for count in wanted)
    who = sized(lm, names, *_tree(grid))
    for place, one in enumerate(_firsts(asked)):
        yield Turn("size", one.at(max(grid.temperatures), grid.seed + place), 0, who)


def _quality_cells(grid: Grid, lm: LM, asked: list[Asked]) -> Iterator[Cell]:
    short = [one.at(1.0, grid.seed + place).shorter(_COUNTED) for place, one in enumerate(_firsts(asked))]
    return Quality(lm, _tree(grid), [one.request for one in short]).cells(grid.methods, grid.noises)


def plan(grid: Grid, lm: LM, asked: list[Asked], who: tuple[Contender, ...]) -> Plan:
    """Plan the run of a grid. An ablation that this target or drafter does not allow is left out, with the reason."""
    turns, cells, left = list(_main_turns(grid, asked, who)), list[Cell](), dict[str, str]()
    try:
        turns += _size_turns(grid, lm, asked) if "size" in grid.studies else ()
    except SpectrError as error:
        if grid.sizes:
            raise
        left["size"] = str(error)
    if "quality" in grid.studies and planned(lm.engine.drafter) is None:
        left["quality"] = f"drafter {lm.engine.drafter.name!r} has no laws that noise could be mixed into"
    elif "quality" in grid.studies:
        cells += _quality_cells(grid, lm, asked)
    if "vocabulary" in grid.studies:
        cells += vocabulary(grid.methods, grid.vocabularies, _tree(grid))
    return Plan(turns, cells, left)
