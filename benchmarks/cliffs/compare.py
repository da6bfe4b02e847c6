"""Generates one text in several ways, in turns, and compares their rates."""

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
    """A way to generate a text, the case it is compared with, and the measurements of each round."""

    name: str
    engine: Engine
    request: Callable[[int], Request]  # the request of a round; round 0 is the warm-up
    against: str | None = None
    rounds: list[Found] = field(default_factory=list)
    new_graphs: int = 0  # rounds in which a step of a new shape was run or captured

    def warm_up(self) -> None:
        """Generate a text until all of its CUDA graphs have been captured."""
        settled(self.engine, [self.request(0)])

    def write(self, number: int) -> None:
        """Generate the text of a round."""
        before = graphs_of(self.engine)
        self.rounds.append(joined([paced(self.engine, [self.request(number)])]))
        self.new_graphs += graphs_of(self.engine) != before

    def row(self, reference: "Case | None") -> Found:
        """Return the medians over the rounds, and the medians of the per-round ratios to the reference."""
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
    """Run all cases in every round, beginning with a different one each time."""
    named = {case.name: case for case in cases}
    for case in cases:
        case.warm_up()
    for number in range(1, rounds + 1):
        first = number % len(cases)
        for case in [*cases[first:], *cases[:first]]:
            case.write(number)
        rows = [case.row(None if case.against is None else named[case.against]) for case in cases]
        yield {"rows": rows, "left": rounds - number}
