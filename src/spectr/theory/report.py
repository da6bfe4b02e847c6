"""Computes estimates with standard errors from the observed nodes of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spectr.theory.estimate import Array, Estimate, Mask, jackknife
from spectr.theory.excess import CURVES
from spectr.theory.leviathan import expected_tokens, expected_tokens_by_depth
from spectr.theory.race import best_static_tokens, entropy, entropy_bound, rank_bound, worth_of_a_nat
from spectr.theory.watch import Nodes

__all__ = ["Counts", "Findings", "OverAccepting", "observed_tokens", "predicted_tokens"]

_RANKS = 16


@dataclass(frozen=True, slots=True)
class Counts:
    """The tokens and calls of every text."""

    emitted: Array
    calls: Array


def _share(sums: Array) -> float:
    """Return the first sum over the second, 0 if the second is 0."""
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def _ratio(above: Array, below: Array) -> dict[str, Any]:
    return jackknife(np.stack([above, below], -1), _share).as_data()


def _depths(nodes: Nodes) -> int:
    """Return the number of depths at which drafts were tested."""
    return int(nodes["depth"][nodes.judged].max()) + 1 if nodes.judged.any() else 0


def _at(nodes: Nodes, depth: int) -> Mask:
    here: Mask = nodes.judged & (nodes["depth"] == depth)
    return here


def predicted_tokens(nodes: Nodes) -> Estimate:
    """Return 1 + Σ Π a_j, from the closed-form acceptance at the reached nodes.

    A kept draft that ended the text has no successor, which counts as nothing accepted."""
    depths = range(_depths(nodes))
    reached = [nodes.calls, *(nodes.by_text(nodes["kept"], _at(nodes, depth)) for depth in depths[:-1])]
    accept = [nodes.by_text(nodes["accept"], _at(nodes, depth)) for depth in depths]

    def tokens(sums: Array) -> float:
        pairs = np.split(sums, 2)
        return expected_tokens_by_depth([min(1.0, a / r) if r > 0 else 0.0 for a, r in zip(*pairs, strict=True)])

    return jackknife(np.stack([*accept, *reached], -1), tokens)


def observed_tokens(nodes: Nodes) -> Estimate:
    """Return 1 + the kept drafts per call."""
    kept = nodes.by_text(nodes["kept"], nodes.judged)
    return jackknife(np.stack([kept, nodes.calls], -1), lambda sums: 1 + _share(sums))


def _efficiency(laws: Nodes, counts: Nodes) -> dict[str, Any]:
    """Return tokens per call predicted from some texts, observed on others, and as the engine counts them, with the end
    of the text cut."""
    predicted, observed = predicted_tokens(laws), observed_tokens(counts)
    return {
        "predicted": predicted.as_data(),
        "observed": observed.as_data(),
        "deviation": _finite(observed.off(predicted.value, predicted.error)),
        "cut": _ratio(counts.emitted, counts.calls),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rejections(laws: Nodes) -> dict[str, Any]:
    """Return expected and counted rejections of one run.

    Given the text before, each rejection has probability TV, so the difference is a martingale with variance
    Σ TV (1 − TV)."""
    gap = laws["gap"][laws.judged]
    expected, counted = float(gap.sum()), float((1 - laws["kept"][laws.judged]).sum())
    error = math.sqrt(float((gap * (1 - gap)).sum()))
    return {
        "expected": expected,
        "counted": counted,
        "error": error,
        "deviation": _finite(Estimate(counted, error).off(expected)),
    }


def _curves(laws: Nodes) -> dict[str, Any]:
    """Return acceptance by K over the sampled contexts."""
    table = laws["curves"]
    some = ~np.isnan(table[:, 0])
    count = laws.by_text(some)
    columns = [_ratio(laws.by_text(np.nan_to_num(column), some), count) for column in table.T]
    most = len(columns) // len(CURVES)
    split = {name: columns[at * most : (at + 1) * most] for at, name in enumerate(CURVES)}
    return {"contexts": int(some.sum()), **split}


def _one_draft(laws: Nodes, counts: Nodes) -> dict[str, Any]:
    by_depth = [
        _ratio(laws.by_text(laws["gap"], _at(laws, d)), laws.by_text(_at(laws, d))) for d in range(_depths(laws))
    ]
    accept = _ratio(laws.by_text(laws["accept"], laws.judged), laws.by_text(laws.judged))
    return {
        "total_variation_by_depth": by_depth,
        "acceptance": accept,
        "acceptance_by_drafts": _curves(laws),
        "rejections": _rejections(laws),
        "tokens_per_call": _efficiency(laws, counts),
        "capped_geometric": expected_tokens(min(1.0, accept["value"]), _depths(laws)),
    }


def _miller_madow(ranks: Array) -> float:
    """Return the entropy of counts in nats, with the Miller–Madow correction of its bias."""
    counts = np.bincount(ranks.astype(int)).astype(np.float64)
    hidden = (np.count_nonzero(counts) - 1) / (2 * float(counts.sum()))
    return entropy(torch.from_numpy(counts / counts.sum())) + hidden


def _race(ranks: Nodes, counts: Nodes, trees: Mapping[int, Counts], vocabulary: int) -> dict[str, Any]:
    where, reached = ranks.judged, ranks.by_text(ranks.judged)
    places = ranks["rank"][where]
    children = [_ratio(ranks.by_text(ranks["rank"] < k, where), reached) for k in range(1, _RANKS + 1)]
    law = torch.from_numpy(np.bincount(places.astype(int)) / max(1, len(places)))
    bounds = [_tree(law, nodes, found, vocabulary) for nodes, found in trees.items()]
    return {
        "one_child": _ratio(ranks.by_text(ranks["accept"], where), reached),
        "acceptance_by_children": children,
        "rank_entropy": _miller_madow(places) if len(places) else 0.0,
        "worth_of_a_nat": _finite(worth_of_a_nat(law)),
        "tokens_per_call": _efficiency(ranks, counts),
        "trees": bounds,
    }


def _tree(law: torch.Tensor, nodes: int, found: Counts, vocabulary: int) -> dict[str, Any]:
    """Return the tokens per call of `nodes` nodes, root included, and the bounds for independent ranks with this
    law."""
    return {
        "nodes": nodes,
        "observed": _ratio(found.emitted, found.calls),
        "best_static": best_static_tokens(law, nodes - 1),
        "rank_bound": rank_bound(law, nodes - 1),
        "entropy_bound": entropy_bound(law, nodes - 1, vocabulary),
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """The observations of all runs: one draft and the race, each on two sets of texts, and trees."""

    domains: Sequence[str]
    domain: Array  # (texts,) the index of each text's domain
    one_draft: tuple[Nodes, Nodes]  # with laws, and counts only
    race: tuple[Nodes, Nodes]
    trees: Mapping[int, Counts]

    def as_data(self, vocabulary: int) -> dict[str, Any]:
        """Return JSON data for every domain, and for all of them together."""
        found = {name: self._of(self.domain == at, vocabulary) for at, name in enumerate(self.domains)}
        return found if list(found) == ["all"] else {**found, "all": self._of(self.domain >= 0, vocabulary)}

    def _of(self, texts: Mask, vocabulary: int) -> dict[str, Any]:
        laws, counts = (nodes.of(texts) for nodes in self.one_draft)
        ranks, raced = (nodes.of(texts) for nodes in self.race)
        trees = {nodes: Counts(found.emitted[texts], found.calls[texts]) for nodes, found in self.trees.items()}
        return {
            "texts": int(texts.sum()),
            "judged": int(laws.judged.sum()),
            "one_draft": _one_draft(laws, counts),
            "race": _race(ranks, raced, trees, vocabulary),
        }


@dataclass(frozen=True, slots=True)
class OverAccepting:
    """A run with a relaxed test."""

    epsilon: float
    after: str
    nodes: Nodes

    def as_data(self) -> dict[str, Any]:
        """Return rejections and bias per tested token, and score per emitted token, as JSON data."""
        nodes = self.nodes
        judged, everywhere = nodes.by_text(nodes.judged), nodes.by_text(np.ones_like(nodes.judged))
        return {
            "epsilon": self.epsilon,
            "after": self.after,
            "rejected": _ratio(judged - nodes.by_text(nodes["kept"], nodes.judged), judged),
            "expected": _ratio(nodes.by_text(nodes["rejected"], nodes.judged), judged),
            "bias": _ratio(nodes.by_text(nodes["bias"], nodes.judged), judged),
            "score": _ratio(nodes.by_text(nodes["score"]), everywhere),
            "tokens_per_call": observed_tokens(nodes).as_data(),
        }
