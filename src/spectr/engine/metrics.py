"""Statistics of speculative decoding, counted step by step.

Block efficiency is what other engines call the mean acceptance length, bonus token included. Tokens that a rule
accepted beyond the end of a text do not count."""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from spectr.rows import pick_rows
from spectr.transport.bounds import optimal_acceptance
from spectr.transport.laws import law_of
from spectr.trees.shape import Topology
from spectr.types import Draft, LogitsAt, Verdict

__all__ = ["PARTS", "Stats", "StepCounts", "best_possible", "child_ranks", "count_step"]

PARTS = ("draft", "target", "rule")


@dataclass(slots=True)
class Stats:
    """The counts of one text."""

    steps: int = 0  # target calls
    drafted: int = 0  # draft tokens scored
    emitted: int = 0  # tokens of the text
    accepted: int = 0  # draft tokens among those
    corrections: int = 0  # steps that rejected all children of the last accepted node
    bonuses: int = 0  # steps that accepted a path up to a leaf, so that the target's token came on top
    # By depth, the steps that accepted a draft at every smaller depth and had a draft at this one:
    reached: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)  # by depth, the steps among those that accepted one
    ranks: list[int] = field(default_factory=list)  # by rank among siblings, the draft tokens accepted
    best: float = 0.0  # expected number of draft tokens that the best coupling accepts at the nodes reached
    measured: int = 0  # nodes that `best` was computed for
    accepted_prediction_tokens: int = 0  # tokens of the prediction that appeared where predicted
    rejected_prediction_tokens: int = 0  # the other tokens of the prediction, including those still to come
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target call."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """By depth, the share of the steps that reached a draft there and accepted one."""
        return [kept / reached if reached else 0.0 for kept, reached in zip(self.kept, self.reached, strict=True)]

    @property
    def acceptance_by_rank(self) -> list[float]:
        """By rank, the share of the nodes reached that have children whose first, second, … child was accepted."""
        reached = sum(self.reached)
        return [kept / reached for kept in self.ranks] if reached else []

    @property
    def optimality_gap(self) -> float | None:
        """What the best coupling accepts per node reached, minus what was accepted; None unless it was asked for.

        The first is an expectation and the second a count, so one text can come out below 0 by chance. On average it is
        not negative for independent and for fixed drafts. Siblings drawn with the race's noise or without replacement
        are compared with independent ones and can do better."""
        return (self.best - self.accepted) / self.measured if self.measured else None


@dataclass(frozen=True, slots=True)
class StepCounts:
    """The counts of one step of one row."""

    drafted: int
    emitted: int
    corrected: bool
    ranks: list[int]  # of the accepted nodes
    best: list[float] | None  # acceptance probability of the best coupling at each node that a token was sampled from
    predicted: int = 0  # leading tokens that are those of the row's prediction

    def cut(self, count: int) -> "StepCounts":
        """Return the counts if only the first `count` tokens belong to the text. Where the text is cut does not depend
        on later tokens, so the remaining `best` is still the expected acceptance at the remaining nodes."""
        if count == self.emitted:
            return self
        best = None if self.best is None else self.best[:count]
        corrected = self.corrected and count == self.emitted
        return StepCounts(self.drafted, count, corrected, self.ranks[:count], best, min(self.predicted, count))


def _add_at(counts: list[int], place: int, amount: int) -> None:
    counts += [0] * (place + 1 - len(counts))
    counts[place] += amount


def count_step(stats: Stats, step: StepCounts, marks: list[float]) -> None:
    """Add one step to the statistics; `marks` are the times before draft, target and rule, and after."""
    length = len(step.ranks)
    stats.steps += 1
    stats.drafted += step.drafted
    stats.emitted += step.emitted
    stats.accepted += length
    stats.corrections += step.corrected
    stats.bonuses += step.emitted > length and not step.corrected
    for depth in range(length + step.corrected):
        _add_at(stats.reached, depth, 1)
        _add_at(stats.kept, depth, depth < length)
    for rank in step.ranks:
        _add_at(stats.ranks, rank, 1)
    predicted = min(step.predicted, stats.rejected_prediction_tokens)  # a text that repeats it counts it once
    stats.accepted_prediction_tokens += predicted
    stats.rejected_prediction_tokens -= predicted
    if step.best is not None:
        stats.best += sum(step.best)
        stats.measured += length + step.corrected
    for part, (start, end) in zip(PARTS, pairwise(marks), strict=True):
        stats.seconds[part] += end - start


def child_ranks(tree: Topology, verdict: Verdict) -> Tensor:
    """Return the rank (B, D) of each accepted node among its siblings, where siblings of the same token count as
    one."""
    above = torch.nn.functional.pad(verdict.path, (1, 0))[:, :-1].clamp_min(0)
    siblings = pick_rows(tree.children, tree.canonical_node.gather(1, above))  # (B, D, W)
    same = tree.canonical_node.gather(1, siblings.clamp_min(0).flatten(1)).view_as(siblings) == verdict.path[..., None]
    return (same & (siblings >= 0)).to(torch.int8).argmax(-1)


def best_possible(logits: LogitsAt, draft: Draft, tree: Topology, verdict: Verdict) -> Tensor:
    """Return the probability (B, D + 1) that the best coupling accepts a child at each node of the verdict's path, the
    root first.

    For fixed children that is the target's mass on them. For drawn children it is the optimum for as many independent
    draws from the draft distribution; siblings drawn with the race's noise or without replacement may exceed it.
    """
    nodes = torch.nn.functional.pad(verdict.path, (1, 0))  # (B, D + 1), the root first
    homes = tree.canonical_node.gather(1, nodes.clamp_min(0))
    children = pick_rows(tree.children, homes)
    counts = (children >= 0).sum(-1)
    target = law_of(logits(homes))
    if draft.laws is None or draft.siblings == "fixed":
        tokens = draft.tokens.gather(1, children.clamp_min(0).flatten(1)).view_as(children)
        chance = torch.where(children >= 0, target.gather(-1, tokens), 0.0).sum(-1)
    else:
        leaf = counts[..., None] == 0  # has no draft distribution
        chance = optimal_acceptance(
            target, torch.where(leaf, target, pick_rows(draft.laws, homes)), counts.clamp_min(1)
        )
    return torch.where((nodes >= 0) & (counts > 0), chance, 0.0)
