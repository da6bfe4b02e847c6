"""What speculation did, counted step by step. Names as people know them; block efficiency is the mean acceptance
length of other engines, bonus token included. What a rule decided beyond the end of a text does not count."""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from spectr.rows import pick_rows
from spectr.transport.bounds import optimal_acceptance
from spectr.transport.laws import law_of
from spectr.trees.shape import Topology
from spectr.types import Draft, LogitsAt, Verdict

__all__ = ["PARTS", "Counted", "Stats", "best_possible", "child_ranks", "count_step"]

PARTS = ("draft", "target", "rule")


@dataclass(slots=True)
class Stats:
    """Counts of one row."""

    steps: int = 0  # target calls
    drafted: int = 0  # draft tokens scored
    emitted: int = 0  # tokens of the text
    accepted: int = 0  # of them, draft tokens
    corrections: int = 0  # steps that ended at a node with children, none of them right
    bonuses: int = 0  # steps that accepted a path to its end, so that the target's token came on top
    reached: list[int] = field(
        default_factory=list
    )  # by depth: steps that had a draft there after accepting all before
    kept: list[int] = field(default_factory=list)  # by depth: of those, the steps that accepted it
    ranks: list[int] = field(default_factory=list)  # by rank among its siblings: draft tokens accepted
    best: float = 0.0  # draft tokens that the best coupling would be expected to accept at the nodes reached, if asked
    measured: int = 0  # nodes it was computed for
    accepted_prediction_tokens: int = 0  # tokens of the prediction that came where they were predicted
    rejected_prediction_tokens: int = 0  # the other tokens of the prediction, those still to come included
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target call."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Of the steps that came to a depth with a draft there, the share that accepted one."""
        return [kept / reached if reached else 0.0 for kept, reached in zip(self.kept, self.reached, strict=True)]

    @property
    def acceptance_by_rank(self) -> list[float]:
        """Of the nodes with children that were reached, the share that went on to the first child, the second, …"""
        reached = sum(self.reached)
        return [kept / reached for kept in self.ranks] if reached else []

    @property
    def optimality_gap(self) -> float | None:
        """What the best coupling accepts per node reached, less what was accepted; None unless it was asked for.

        The first is an expectation and the second a count, so one text can come out below 0 by chance. On average it is
        not negative for independent and for fixed drafts; siblings of the race, drawn off fixed ones or without
        replacement, are compared with independent ones and can do better."""
        return (self.best - self.accepted) / self.measured if self.measured else None


@dataclass(frozen=True, slots=True)
class Counted:
    """One step of one row, as numbers."""

    drafted: int
    emitted: int
    corrected: bool
    ranks: list[int]  # of the accepted nodes
    best: list[float] | None  # chance to go on under the best coupling, at each node that a token came from
    predicted: int = 0  # tokens from the first on that the row's reference predicted

    def cut(self, count: int) -> "Counted":
        """The step if only its first `count` tokens belong to the text. The cut looks at no token after it, so that
        what is left of `best` is still what the nodes looked at should accept on average."""
        if count == self.emitted:
            return self
        best = None if self.best is None else self.best[:count]
        corrected = self.corrected and count == self.emitted
        return Counted(self.drafted, count, corrected, self.ranks[:count], best, min(self.predicted, count))


def _add_at(counts: list[int], place: int, amount: int) -> None:
    counts += [0] * (place + 1 - len(counts))
    counts[place] += amount


def count_step(stats: Stats, step: Counted, marks: list[float]) -> None:
    """Add one step; `marks` are the times before draft, target and rule, and after."""
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
    """The rank of each accepted node (B, D) among its siblings, copies pooled."""
    above = torch.nn.functional.pad(verdict.path, (1, 0))[:, :-1].clamp_min(0)
    siblings = pick_rows(tree.children, tree.canonical_node.gather(1, above))  # (B, D, W)
    same = tree.canonical_node.gather(1, siblings.clamp_min(0).flatten(1)).view_as(siblings) == verdict.path[..., None]
    return (same & (siblings >= 0)).to(torch.int8).argmax(-1)


def best_possible(logits: LogitsAt, draft: Draft, tree: Topology, verdict: Verdict) -> Tensor:
    """The chance (B, D + 1) that the best coupling goes on at each node of the verdict's path, the root first.

    For fixed children that is the target's mass on them. For drawn ones it is the optimum of as many iid draws of the
    draft law, so siblings drawn with the noise or off fixed ones may exceed it.
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
        leaf = counts[..., None] == 0  # has no law of its own
        chance = optimal_acceptance(
            target, torch.where(leaf, target, pick_rows(draft.laws, homes)), counts.clamp_min(1)
        )
    return torch.where((nodes >= 0) & (counts > 0), chance, 0.0)
