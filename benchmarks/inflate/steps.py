"""Measures the pieces of one captured step: the target's call, and everything else.

The pieces are those of `spectr.engine.step`, in the same order, each captured separately.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.inflate.clock import WARM, timed
from benchmarks.inflate.order import Order
from benchmarks.inflate.pair import Pair, Side
from benchmarks.inflate.ways import race
from benchmarks.record import Found
from spectr.draft import Plan
from spectr.engine import Request
from spectr.engine.readout import HostReadout
from spectr.engine.rows import Rows
from spectr.engine.step import Scored, StepParts, draft_trees, run_step, score_trees, settle
from spectr.policy import Policy
from spectr.rows import pick_rows
from spectr.transport.laws import zero_undefined
from spectr.trees import topology
from spectr.types import Opening, Verdict
from spectr.verify import rule as named_rule

__all__ = ["steps"]

_NATIVE = (
    "the small head's drafting for the small target, captured alone, put in place of the large head's: it expands as "
    "many nodes over as many tokens, at the width that it was trained with"
)


@dataclass(slots=True)
class _Bench:
    """A row after its first step, so that all shapes are those of later steps."""

    held: StepParts
    session: Any  # the target's session, of which a step uses a window
    slots: int
    repeats: int

    def whole(self) -> float:
        """Time a whole step with its readout."""
        return self._timed(lambda _: run_step(self._parts(), []).numbers)

    def drafting(self) -> float:
        """Time the drafting alone."""
        return self._timed(lambda _: draft_trees(self._parts())[0].tokens)

    def pieces(self) -> dict[str, float]:
        """Time each piece of a step."""
        scored = self._scored()
        draft, tree = scored.draft, scored.tree
        found = {
            "draft": self.drafting(),
            "topology": self._timed(lambda _: topology(draft).ancestors),
            "target": self._timed(
                lambda _: self.held.target.score(self._parts().session, draft.tokens, tree.ancestors, tree.depth)
            ),
            "policy_and_rule": self._timed(lambda _: self._verdict(scored).path),
        }
        scored = self._scored()  # anew, since the previous tensors belong to a graph and were overwritten
        return {**found, "keep": self._keeping(scored, self._verdict(scored))}  # last, because it extends the text

    def _scored(self) -> Scored:
        """Run a step up to its verdict, without changing the row."""
        parts = self._parts()
        return score_trees(parts, *draft_trees(parts))

    def _verdict(self, scored: Scored) -> Verdict:
        logits, _ = zero_undefined(scored.logits)

        def policy_logits(nodes: Tensor | None) -> Tensor:
            return self.held.rows.policies(pick_rows(logits, nodes), stages=self.held.policy_stages)

        return self.held.rule(policy_logits, scored.draft, scored.coins, tree=scored.tree)

    def _keeping(self, scored: Scored, verdict: Verdict) -> float:
        """Time everything that `settle` does besides the verdict, which is given."""
        decided: Any = lambda *_, **__: verdict  # noqa: E731
        return self._timed(lambda _: settle(replace(self._parts(), rule=decided), scored).numbers)

    def _parts(self) -> StepParts:
        """Return the parts with a new window of the session, which every use needs."""
        held = self.held
        return replace(held, session=held.target.window(self.session, 0, 1, held.longest))

    def _timed(self, step: Callable[[Tensor], Tensor]) -> float:
        return timed(step, self.held.rows.active, self.repeats)


def _opened(side: Side, pair: Pair, plan: Plan, order: Order) -> _Bench:
    """Prepare a row as a lane does, with room for all timed steps, in a cache of the size that a captured step uses."""
    target, drafter, prompt = side.target, side.drafter(plan), list(pair.prompts[0])
    most = (WARM + order.grid.repeats + 2) * (plan.length + 1)
    slots = 1 << (len(prompt) + most + plan.capacity - 1).bit_length()
    session = target.open(1, slots, feature_layers=side.feature_layers)
    drafting = drafter.open(Opening(1, slots, target.vocabulary, session))
    rows = Rows(1, slots, target.vocabulary, target.device)
    rows.put(0, [Request(prompt, 0, slots - len(prompt), Policy(order.grid.temperature))], frozenset())
    drafting.begin(0, prompt, slots, None)
    target.read(target.window(session, 0, 1, 0), [prompt[:-1]], [0])
    drafting.read(0, [prompt[:-1]], [0])
    rows.activate(0, 1)
    is_gpu, longest = target.device.type == "cuda", slots - plan.capacity
    parts = StepParts(
        target, target.window(session, 0, 1, longest), drafting, named_rule("race"), rows.window(1),
        rows.policy_stages(1, exactly=not is_gpu), longest,
    )  # fmt: skip
    width = HostReadout(run_step(parts, [])).width
    return _Bench(replace(parts, unread=width if is_gpu else None), session, slots, order.grid.repeats)


def _native(pair: Pair, plan: Plan, order: Order, whole: Found) -> Found:
    """Return the times of the same step with a drafter of the small target's width."""
    draft = _opened(pair.small, pair, plan, order).drafting()
    step = whole["step_ms"] - whole["pieces_ms"]["draft"] + draft
    other = step - whole["pieces_ms"]["target"]
    return {"how": _NATIVE, "draft_ms": draft, "step_ms": step, "other_ms": other, "other_share": other / step}


@torch.no_grad()
def _apart(pair: Pair, plan: Plan, order: Order) -> Found:
    step = _opened(pair.large, pair, plan, order).whole()
    bench = _opened(pair.large, pair, plan, order)
    pieces = bench.pieces()
    target = pieces["target"]
    found = {
        "nodes": plan.capacity, "beam": plan.drafts, "depth": plan.length, "cache_slots": bench.slots,
        "step_ms": step, "pieces_ms": pieces, "pieces_sum_ms": sum(pieces.values()),
        "other_ms": step - target, "other_share": (step - target) / step,
    }  # fmt: skip
    return {**found, "with_native_drafter": _native(pair, plan, order, found)}


def steps(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure a tree with the default depth for its nodes, and one with the requested depth."""
    grid = order.grid
    ways = {way.key: way for way in (race(grid.tree), race(grid.tree, grid.depth))}
    rows = list[Found]()
    for way in ways.values():
        assert way.plan is not None
        rows.append(_apart(pair, way.plan, order))
        yield {"rows": rows, "left": len(ways) - len(rows)}
