"""Ablations: acceptance against the drafter's quality, and the time of a verdict against the size of the vocabulary.
Counts are a function of the seeds."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spectr.bench.methods import METHODS, plan_of, planned
from spectr.bench.rules import Workload, workload
from spectr.coins import SeededCoins
from spectr.draft.adaptive import replanned
from spectr.draft.delegating import DelegatingDrafting
from spectr.engine import Engine, Request
from spectr.lm import LM
from spectr.policy import Policy
from spectr.rows import pick_rows
from spectr.transport.laws import law_of, total_variation
from spectr.trees import Growth, Shape, grow
from spectr.types import AppliedPolicy, Coins, Draft, Drafter, Drafting, LogitsAt, Opening, Scene, Verdict
from spectr.verify import Rule
from spectr.verify import rule as named_rule
from spectr.verify.rule import Descent

__all__ = ["Cell", "Quality", "vocabulary"]

Cell = tuple[str, Callable[[], dict[str, Any]]]
"""A cell's name, and the function that measures it."""

_BLURRED = ("speculative", "kseq", "optimal", "race", "topk")  # methods of the quality ablation
_DEEPEST = 100.0  # logits further than this below the best are raised to it
_TEMPERATURE = 0.8  # temperature of the laws of `workload`


def _ruled(methods: Sequence[str]) -> list[str]:
    """Return the methods that have K and L."""
    return [name for name in methods if METHODS[name].rule]


class _NoisyDrafter:
    """A drafter whose logits are mixed with those of other tokens: noise with the drafter's own entropy."""

    capturable = False  # every step must be read before the next, so that ended rows are not measured

    def __init__(self, inner: Any, share: float) -> None:
        self.inner, self.share = inner, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, opening: Opening) -> Drafting:
        """Return the inner drafter's drafting with mixed logits."""
        drafting: Drafting = self.inner.open(opening)
        generator = torch.Generator().manual_seed(opening.vocabulary)
        return _NoisyDrafting(drafting, self.share, torch.randperm(opening.vocabulary, generator=generator))


class _NoisyDrafting(DelegatingDrafting):
    """A drafting on mixed logits; token v is mixed with token `order[v]`."""

    def __init__(self, inner: Drafting, share: float, order: Tensor) -> None:
        super().__init__(inner)
        self.share, self.order = share, order

    def propose(self, scene: Scene) -> Draft:
        """Draft from the mixed laws, which the draft reports as its laws."""
        return self.inner.propose(
            replace(scene, draft_logits=self._blur(scene.draft_logits), ranking_logits=self._blur(scene.ranking_logits))
        )

    def _blur(self, policy: AppliedPolicy) -> AppliedPolicy:
        def blurred(logits: Tensor, paths: Tensor) -> Tensor:
            logits = torch.maximum(logits, logits.amax(-1, keepdim=True) - _DEEPEST)
            return policy(torch.lerp(logits, logits[..., self.order.to(logits.device)], self.share), paths)

        return blurred if self.share else policy


@dataclass(slots=True)
class _MeasuringRule(Rule):
    """A rule that also records the total variation between the two laws at each root."""

    inner: Rule
    found: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.card, self.bias_bound = self.inner.card, self.inner.bias_bound

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Return the inner rule's verdict."""
        assert draft.laws is not None
        root = torch.zeros_like(draft.tokens[:, :1])
        apart = total_variation(law_of(logits(root)), pick_rows(draft.laws, root))
        self.found += apart.flatten().tolist()
        return self.inner.verdict(logits, draft, coins, descent)


@dataclass(frozen=True, slots=True)
class Quality:
    """Measures acceptance at each node against the total variation of the two laws, at temperature 1."""

    lm: LM
    size: tuple[int, int]  # K, L
    requests: Sequence[Request]

    def cells(self, methods: Sequence[str], noises: Sequence[float]) -> Iterator[Cell]:
        """Yield a cell for every share of noise and some of the methods."""
        for share in noises:
            for name in (name for name in methods if name in _BLURRED):
                yield f"quality {name} {share:g}", partial(self.measure, name, share)

    def measure(self, name: str, share: float) -> dict[str, Any]:
        """Measure one cell."""
        method, rule = METHODS[name], _MeasuringRule(named_rule(METHODS[name].rule))
        drafts, length = self.size[0] if method.several else 1, self.size[1]
        plan = plan_of(method, rule.card, drafts, length)
        drafter: Any = _NoisyDrafter(replanned(planned(self.lm.engine.drafter), plan), share)
        row = {"study": "quality", "method": name, "noise": share, "drafts": drafts, "length": length}
        return {**row, **self._count(drafter, rule)}

    def _count(self, drafter: Drafter, rule: _MeasuringRule) -> dict[str, Any]:
        engine = Engine(self.lm.opened.target, drafter, rule, self.lm.opened.stops)
        # with optimality_gap every draft includes its laws
        requests = [replace(request, policy=Policy(), optimality_gap=True) for request in self.requests]
        stats = [result.stats for result in engine.generate(requests)]
        steps, emitted, accepted, nodes = (
            sum(getattr(s, name) for s in stats) for name in ("steps", "emitted", "accepted", "measured")
        )
        share = accepted / max(1, nodes)
        return {
            "total_variation": statistics.fmean(rule.found),
            "acceptance": share,
            "error": math.sqrt(share * (1 - share) / max(1, nodes)),
            "best": sum(s.best for s in stats) / max(1, nodes),
            "block_efficiency": emitted / steps,
            "tokens": emitted,
            "steps": steps,
        }


def _verdicts(work: Workload, shape: Shape, method: str, repeats: int) -> tuple[list[int], list[float]]:
    """Return the tokens and the seconds of each verdict; each has its own draft and coins."""
    rule, zero = named_rule(METHODS[method].rule), torch.zeros(1, dtype=torch.int64)
    siblings, laws = plan_of(METHODS[method], rule.card, 1, 1).siblings, work.draft.laws
    assert laws is not None
    tokens, seconds = [], []
    for seed in range(repeats + 1):
        coins = SeededCoins(zero + seed, zero + 100)
        draft = grow(zero, lambda _, members: laws[:, members], Growth(shape, siblings), coins)
        start = time.perf_counter()
        verdict = rule(lambda nodes: Policy(_TEMPERATURE)(pick_rows(work.logits, nodes)), draft, coins)
        seconds.append(time.perf_counter() - start)
        tokens.append(int(verdict.length) + 1)
    return tokens[1:], seconds[1:]  # the first is a warm-up


def _rule_cost(method: str, size: int, tree: tuple[int, int], repeats: int) -> dict[str, Any]:
    drafts = tree[0] if METHODS[method].several else 1
    work = workload(size, drafts, 1 + drafts * tree[1], "cpu")
    tokens, seconds = _verdicts(work, Shape.chains(drafts, tree[1]), method, repeats)
    return {
        "study": "vocabulary",
        "method": method,
        "vocabulary": size,
        "drafts": drafts,
        "length": tree[1],
        "verdicts": repeats,
        "block_efficiency": statistics.fmean(tokens),
        "error": statistics.stdev(tokens) / math.sqrt(repeats),
        "milliseconds": 1e3 * statistics.median(seconds),
    }


def vocabulary(
    methods: Sequence[str], sizes: Sequence[int], tree: tuple[int, int], repeats: int = 40
) -> Iterator[Cell]:
    """Yield cells of tokens per call and time of a verdict on synthetic laws, with a drafter close to its target."""
    for size in sizes:
        for name in _ruled(methods):
            yield f"vocabulary {name} {size}", partial(_rule_cost, name, size, tree, repeats)
