"""What speculation did, counted step by step. Names as people know them; block efficiency is the mean acceptance
length of other engines, bonus token included."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spectr.types import Draft, Verdict

__all__ = ["Stats", "count_step"]


@dataclass(slots=True)
class Stats:
    """Counts of one row."""

    steps: int = 0  # target calls
    drafted: int = 0  # draft tokens scored
    accepted: int = 0
    corrections: int = 0  # steps that ended at a rejected child
    reached: list[int] = field(
        default_factory=list
    )  # by depth: steps that had a draft there after accepting all before
    kept: list[int] = field(default_factory=list)  # by depth: of those, the steps that accepted it
    seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "target": 0.0, "rule": 0.0})

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target call."""
        return (self.accepted + self.steps) / self.steps if self.steps else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Of the steps that came to a depth with a draft there, the share that accepted one."""
        return [kept / reached if reached else 0.0 for kept, reached in zip(self.kept, self.reached, strict=True)]


def count_step(stats: Stats, draft: Draft, verdict: Verdict, place: int, marks: Sequence[float]) -> None:
    """Add what happened to the row at `place`; `marks` are the times before draft, target, rule, and after."""
    length, corrected = int(verdict.length[place]), bool(verdict.corrected[place])
    stats.steps += 1
    stats.drafted += int(draft.alive[place].sum()) - 1
    stats.accepted += length
    stats.corrections += corrected
    deepest = length + corrected
    stats.reached += [0] * (deepest - len(stats.reached))
    stats.kept += [0] * (deepest - len(stats.kept))
    for depth in range(deepest):
        stats.reached[depth] += 1
        stats.kept[depth] += depth < length
    for part, (start, end) in zip(stats.seconds, pairwise(marks), strict=True):
        stats.seconds[part] += end - start
