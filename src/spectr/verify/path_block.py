"""Selects a path down the tree with the optimal coupling, then block-verifies that path.

Forward: at each node the coupling *selects* a child, without the accept-or-reject test, down to a leaf; the
distribution of a selected token is known in closed form. Backward: block verification of that one path, with these
distributions as its proposal. Testing the same path token by token would be the walk with the same coupling, so this
rule keeps at least as many tokens.
"""

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.errors import MismatchError
from spectr.rows import LazyRows, pick_rows
from spectr.transport import coupling as named_coupling
from spectr.transport.selection import SelectingCoupling
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.block import ProposedPath, keep_longest, next_tokens_on_path
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_in_slot, drafted_at, node_ids
from spectr.verify.rule import Card, Descent, Rule, law_of, laws_in

__all__ = ["PathBlock"]


def _with_target(target: Tensor, law: LazyRows) -> LazyRows:
    """Stack the target's and the selected token's distributions, (…, 2, V)."""
    return LazyRows(lambda target, *parts: torch.stack([target, law.compute(*parts)], -2), (target, *law.parts))


class PathBlock(Rule):
    """Selects one path of the tree and keeps as much of it as block verification allows."""

    def __init__(self, coupling: str = "optimal", **options: object) -> None:
        inner = named_coupling(coupling, **options)
        if not isinstance(inner, SelectingCoupling):
            raise MismatchError(
                f"path_block requires a coupling that selects one draft (maximal, kseq_plus, optimal), got {coupling!r}"
            )
        self.coupling = inner
        self.card = Card(
            "path_block",
            "selects a path with the optimal coupling and verifies it as a whole",
            inner.siblings,
            ("spectr", "sun2024block", "sun2023spectr"),
        )

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Select a child at each visited node, then block-verify the selected path."""
        tree, laws = descent.tree, laws_in(draft)

        def decide(nodes: Tensor | None) -> tuple[Tensor, LazyRows]:
            children, drafted = drafted_at(tree, draft, nodes)
            target = law_of(logits(nodes))
            chosen = self.coupling.selection(target, pick_rows(laws, nodes), drafted)
            slot = coins.pick(chosen.chance, node_ids(draft, nodes), Purpose.CHILD)
            return child_in_slot(tree, children, slot), _with_target(target, chosen.law)

        trail = descend(decide, tree, lazily=descent.lazily)
        path = ProposedPath(trail.nodes, next_tokens_on_path(draft, trail.nodes), trail.at)
        end, weights = keep_longest(path, coins, lazily=descent.lazily)
        bonus = coins.pick(weights[:, None], end[:, None], Purpose.BONUS).squeeze(1)
        return conclude(tree, end, bonus)
