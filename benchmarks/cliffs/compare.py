"""One text in several ways, in turns: the rate of each, against that of another."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.inflate.clock import joined, paced
from benchmarks.inflate.speed import graphs_of, settled
from benchmarks.record import Found
from spectr.engine import Engine, Request

__all__ = ["Case", "compared"]


@dataclass(slots=True)
class Case:
    """A way to write a text, the way it is compared with, and what it came to in each round."""

    name: str
    engine: Engine
    request: Callable[[int], Request]  # of a round; round 0 does not count
    against: str | None = None
    rounds: list[Found] = field(default_factory=list)
    new_graphs: int = 0  # rounds in which some step was run or captured for the first time

    def warm_up(self) -> None:
        """Write a text until all its graphs are there."""
        settled(self.engine, [self.request(0)])

    def write(self, number: int) -> None:
        """The text of a round."""
        before = graphs_of(self.engine)
        self.rounds.append(joined([paced(self.engine, [self.request(number)])]))
        self.new_graphs += graphs_of(self.engine) != before

    def row(self, reference: "Case | None") -> Found:
        """Medians, and the ratio of the rates round by round."""
        names = ("tokens_per_second", "tokens_per_call", "steady_ms_per_step")
        whole = [found for found in self.rounds if found["tokens"]]
        medians = {name: statistics.median(found[name] for found in whole) if whole else None for name in names}
        graphs = [count for _, _, count in graphs_of(self.engine)]
        row = {"case": self.name, "against": self.against, "rounds": len(self.rounds), **medians}
        ratios = {} if reference is None else {"ratio": self._ratio(reference, names[0])}
        steps = {} if reference is None else {"step_ratio": self._ratio(reference, names[2])}
        return {**row, **ratios, **steps, "new_graphs": self.new_graphs, "graphs": graphs}

    def _ratio(self, reference: "Case", name: str) -> float | None:
        pairs = zip(self.rounds, reference.rounds, strict=True)
        found = [mine[name] / other[name] for mine, other in pairs if mine["tokens"] and other["tokens"]]
        return statistics.median(found) if found else None


def compared(cases: Sequence[Case], rounds: int) -> Iterator[Found]:
    """All cases in every round, another one first each time."""
    named = {case.name: case for case in cases}
    for case in cases:
        case.warm_up()
    for number in range(1, rounds + 1):
        first = number % len(cases)
        for case in [*cases[first:], *cases[:first]]:
            case.write(number)
        rows = [case.row(None if case.against is None else named[case.against]) for case in cases]
        yield {"rows": rows, "left": rounds - number}
