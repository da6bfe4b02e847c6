"""One captured step taken apart: what the target's call takes of it, and what all the rest.

The pieces are those of `Engine.score`, in its order, each captured alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.inflate.clock import WARM, timed
from benchmarks.inflate.order import Found, Order
from benchmarks.inflate.pair import Pair, Side
from benchmarks.inflate.ways import race
from spectr.draft import Plan
from spectr.engine import Batch, Engine, Job, Request
from spectr.policy import Policy
from spectr.reading import Scored, numbers_of
from spectr.rows import pick_rows
from spectr.standing import advance, for_those_going
from spectr.trees import Topology, topology
from spectr.types import Draft
from spectr.verify import rule as named_rule

__all__ = ["steps"]

_NATIVE = (
    "the small head's drafting for the small target, captured alone, put in place of the large head's: it expands as "
    "many nodes over as many tokens, at the width that it was trained with"
)


@dataclass(slots=True)
class _Bench:
    """A batch that has made its first step, so that all shapes are those of the steps to come."""

    engine: Engine
    job: Job
    batch: Batch
    looked: int  # committed tokens that a call looks at, as in a captured step
    repeats: int

    def whole(self) -> float:
        """A step, and what the host is told of it."""

        def step(_: Tensor) -> Tensor:
            self._assume()
            return numbers_of(self.engine.score(self.batch, self.job, []))

        return self._timed(step)

    def drafting(self) -> float:
        """The draft alone."""
        return self._timed(lambda _: self._propose().tokens)

    def pieces(self) -> dict[str, float]:
        """All of a step, piece by piece."""
        engine, made, coins = self.engine, self._until_verdict(), self.engine._scene(self.batch, self.job).coins
        found = {
            "draft": self.drafting(),
            "topology": self._timed(lambda _: topology(made.draft).ancestors),
            "target": self._timed(lambda _: self._score(made.draft, made.tree)),
            "policy_and_rule": self._timed(lambda _: engine.rule(made.law, made.draft, coins, tree=made.tree).path),
        }
        self._propose()  # what is kept are tensors of its own again, no longer a graph's
        return {**found, "keep": self._timed(lambda _: self._keep(made))}  # last, since the text grows

    def _until_verdict(self) -> Scored:
        """A step of which nothing is kept."""
        draft = self._propose()
        tree, coins = topology(draft), self.engine._scene(self.batch, self.job).coins
        logits = self._score(draft, tree)

        def law(nodes: Tensor | None) -> Tensor:
            return self.job.policy(pick_rows(logits, nodes), None)

        verdict = for_those_going(self.engine.rule(law, draft, coins, tree=tree), self.batch.standing)
        return Scored(draft, tree, logits, law, verdict, torch.zeros_like(self.batch.standing.going))

    def _score(self, draft: Draft, tree: Topology) -> Tensor:
        self._assume()
        self.batch.session.pending = 0
        return self.engine.target.score(self.batch.session, draft.tokens, tree.ancestors, tree.depth)

    def _keep(self, made: Scored) -> Tensor:
        batch, path = self.batch, made.verdict.path
        root = torch.where(batch.standing.going, 0, -1)[:, None]
        self.engine.target.keep(batch.session, torch.cat([root, path], 1))
        batch.drafting.keep(path)
        advance(batch.standing, made.draft, made.verdict)
        return batch.standing.root

    def _assume(self) -> None:
        for holder in (self.batch.session, self.batch.drafting):
            holder.assume(self.looked)  # type: ignore[union-attr]

    def _propose(self) -> Draft:
        self._assume()
        self.batch.drafting.session.pending = 0  # type: ignore[attr-defined]
        return self.batch.drafting.propose(self.engine._scene(self.batch, self.job))

    def _timed(self, step: Callable[[Tensor], Tensor]) -> float:
        return timed(step, self.batch.standing.going, self.repeats)


def _opened(side: Side, pair: Pair, plan: Plan, order: Order) -> _Bench:
    """Room for every step that is timed, in a cache of the size that a captured run would look at."""
    engine = Engine(side.target, side.drafter(plan), named_rule("race"), frozenset())
    prompt, most = pair.prompts[0], (WARM + order.grid.repeats + 2) * (plan.length + 1)
    slots = 1 << (len(prompt) + most + plan.capacity - 1).bit_length()
    tokens = slots - len(prompt) - plan.capacity + plan.length + 2  # what a head reads before its tree needs room too
    job = Job([Request(prompt, 0, tokens)], Policy(order.grid.temperature))
    batch = engine.begin(job)
    batch.texts = []
    made = _Bench(engine, job, batch, slots - plan.capacity, order.grid.repeats)
    engine.score(batch, job, [])
    return made


def _native(pair: Pair, plan: Plan, order: Order, whole: Found) -> Found:
    """The same step with a drafter of the small target's width."""
    draft = _opened(pair.small, pair, plan, order).drafting()
    step = whole["step_ms"] - whole["pieces_ms"]["draft"] + draft
    other = step - whole["pieces_ms"]["target"]
    return {"how": _NATIVE, "draft_ms": draft, "step_ms": step, "other_ms": other, "other_share": other / step}


def _apart(pair: Pair, plan: Plan, order: Order) -> Found:
    step = _opened(pair.large, pair, plan, order).whole()
    bench = _opened(pair.large, pair, plan, order)
    pieces = bench.pieces()
    target = pieces["target"]
    found = {
        "nodes": plan.capacity, "beam": plan.drafts, "depth": plan.length, "cache_slots": bench.looked + plan.capacity,
        "step_ms": step, "pieces_ms": pieces, "pieces_sum_ms": sum(pieces.values()),
        "other_ms": step - target, "other_share": (step - target) / step,
    }  # fmt: skip
    return {**found, "with_native_drafter": _native(pair, plan, order, found)}


def steps(pair: Pair, order: Order) -> Iterator[Found]:
    """The usual tree of so many nodes, and one of the depth that was asked for."""
    grid = order.grid
    ways = {way.key: way for way in (race(grid.tree), race(grid.tree, grid.depth))}
    rows = list[Found]()
    for way in ways.values():
        assert way.plan is not None
        rows.append(_apart(pair, way.plan, order))
        yield {"rows": rows, "left": len(ways) - len(rows)}
