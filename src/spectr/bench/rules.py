"""Measures the time of a verdict: every rule against one softmax over the same logits, in one run.

The workload is one row of N nodes in K chains, from the target's logits in memory to path and bonus; the policy is a
temperature. Draft laws are inputs, because the drafter computes them when it draws.
"""

import itertools
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.coins import SeededCoins
from spectr.errors import ArgumentError
from spectr.models.graphs import recorded
from spectr.policy import Policy
from spectr.rows import pick_rows
from spectr.trees import Growth, Shape, Topology, grow, topology
from spectr.types import Draft, Siblings, Verdict
from spectr.verify import Rule
from spectr.verify import rule as named_rule

__all__ = ["RULES", "Workload", "capture_call", "run", "workload"]

RULES = ("race", "match", "kseq", "kseq_plus", "optimal", "path_block", "recursive", "block", "traversal")
_POLICY = Policy(temperature=0.8)


@dataclass(frozen=True, slots=True)
class Workload:
    """One draft and the target's logits at its nodes."""

    logits: Tensor  # (1, N, V)
    draft: Draft
    tree: Topology  # computed before the target call, which needs it for the mask
    coins: SeededCoins


def _laws(vocabulary: int, nodes: int, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return target logits and draft laws (1, N, V): Zipf-like in a random order, with a drafter close to the
    target."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(vocabulary, generator=generator)
    base = -1.3 * torch.arange(1, vocabulary + 1).log()[order]
    target = base + 0.5 * torch.randn(1, nodes, vocabulary, generator=generator)
    draft = 0.95 * target + 0.7 * torch.randn(1, nodes, vocabulary, generator=generator)
    return target.to(device), (draft / _POLICY.temperature).softmax(-1).to(device)


def workload(vocabulary: int, children: int, nodes: int, device: str, siblings: Siblings = "iid") -> Workload:
    """Return a workload of `children` chains that fill `nodes` nodes."""
    if not 1 <= children < nodes:
        raise ArgumentError(f"children must lie in [1, nodes), got {children} of {nodes} nodes")
    shape = Shape.chains(children, (nodes - 1) // children)
    logits, laws = _laws(vocabulary, len(shape.parents), device, seed=vocabulary + children)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    coins = SeededCoins(zero + 7, zero + 100)
    draft = grow(zero, lambda _, members: laws[:, members], Growth(shape, siblings), coins)
    return Workload(logits, draft, topology(draft), coins)


def _verdict(rule: Rule, work: Workload) -> Callable[[], Any]:
    def logits(nodes: Tensor | None) -> Tensor:
        return _POLICY(pick_rows(work.logits, nodes))

    if work.draft.tokens.is_cuda:
        return lambda: rule(logits, work.draft, work.coins, tree=work.tree)
    seeds = itertools.count()

    def next_seed() -> Verdict:  # the number of visited nodes depends on the coins
        coins = SeededCoins(work.coins.seed + next(seeds), work.coins.committed)
        return rule(logits, work.draft, coins, tree=work.tree)

    return next_seed


def capture_call(call: Callable[[], Any]) -> Callable[[], None]:
    """Return the call as a CUDA graph, after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with recorded(graph):
        call()
    return graph.replay


def _seconds(call: Callable[[], Any], device: str) -> float:
    """Return the seconds of one call; on a GPU the mean of ten consecutive calls, by events."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    for _ in range(10):
        call()
    end_event.record()
    end_event.synchronize()
    return float(start_event.elapsed_time(end_event)) / 1e4


def _interleaved(calls: dict[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, float]:
    """Return the median seconds of each call; calls take turns, so that noise affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            seconds = _seconds(call, device)
            if turn:  # the first round warms up
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def _measure(vocabulary: int, children: int, rules: Sequence[str], size: tuple[int, str, int]) -> list[dict[str, Any]]:
    nodes, device, repeats = size
    calls: dict[str, Callable[[], Any]] = {}
    work = workload(vocabulary, children, nodes, device)
    calls["softmax"] = lambda: work.logits.softmax(-1)
    for rule in map(named_rule, rules):
        if children == 1 or rule.card.tree:
            kind = "iid" if "iid" in rule.card.siblings else rule.card.siblings[0]
            calls[rule.card.name] = _verdict(rule, workload(vocabulary, children, nodes, device, kind))
    if device != "cpu":
        calls = {name: capture_call(call) for name, call in calls.items()}
    seconds = _interleaved(calls, device, repeats)
    softmax = seconds.pop("softmax")
    return [
        {
            "rule": name,
            "mode": "node by node" if device == "cpu" else "captured",
            "vocabulary": vocabulary,
            "children": children,
            "milliseconds": 1e3 * taken,
            "softmax_milliseconds": 1e3 * softmax,
            "ratio": taken / softmax,
        }
        for name, taken in seconds.items()
    ]


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device != "cpu" else platform.processor() or platform.machine()
    return {"device": device, "name": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def run(
    vocabularies: Sequence[int] = (10_000, 32_000, 49_152, 152_064),
    children: Sequence[int] = (1, 4, 8, 16),
    rules: Sequence[str] = RULES,
    size: tuple[int, str, int] = (64, "cpu", 5),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every rule at every vocabulary and number of chains; `size` is (nodes, device, repeats)."""
    nodes, device, _ = size
    results = []
    for vocabulary in vocabularies:
        for count in children:
            progress(f"{vocabulary} tokens, {count} chains")
            results += _measure(vocabulary, count, rules, size)
    return {
        "benchmark": "rules",
        "nodes": nodes,
        "temperature": _POLICY.temperature,
        **_machine(device),
        "results": results,
    }
