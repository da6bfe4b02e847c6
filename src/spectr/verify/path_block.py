"""Optimal selection down the tree, block verification back up.

Forward: at each node the coupling *selects* a child, without the accept-or-reject test, down to a leaf; the law of a
selected token is known in closed form. Backward: block verification of that one path, with the selected laws as its
proposal. Testing the same path token by token would be the walk with the same coupling, so this keeps no less.
"""

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.errors import MismatchError
from spectr.rows import Rows, pick_rows
from spectr.transport import coupling as named_coupling
from spectr.transport.selection import SelectingCoupling
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.block import ProposedPath, keep_longest, path_tokens
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_in_slot, drafted_at, node_ids
from spectr.verify.rule import Card, Rule, Way, law_of, laws_in

__all__ = ["PathBlock"]


def _with_target(target: Tensor, law: Rows) -> Rows:
    """Target and selected law side by side, (…, 2, V)."""
    return Rows(lambda target, *parts: torch.stack([target, law.compute(*parts)], -2), (target, *law.parts))


class PathBlock(Rule):
    """The best path by selection, then the most of it that block verification keeps."""

    def __init__(self, coupling: str = "optimal", **options: object) -> None:
        made = named_coupling(coupling, **options)
        if not isinstance(made, SelectingCoupling):
            raise MismatchError(
                f"path_block needs a coupling that selects (maximal, kseq_plus, optimal), got {coupling!r}"
            )
        self.coupling = made
        self.card = Card(
            "path_block",
            "picks a path with the optimal coupling and judges it as a whole",
            made.siblings,
            ("spectr", "sun2024block", "sun2023spectr"),
        )

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        """A selection per node looked at, then the laws of one path."""
        tree, laws = way.tree, laws_in(draft)

        def decide(nodes: Tensor | None) -> tuple[Tensor, Rows]:
            children, drafted = drafted_at(tree, draft, nodes)
            target = law_of(logits(nodes))
            chosen = self.coupling.selection(target, pick_rows(laws, nodes), drafted)
            slot = coins.pick(chosen.chance, node_ids(draft, nodes), Purpose.CHILD)
            return child_in_slot(tree, children, slot), _with_target(target, chosen.law)

        trail = descend(decide, tree, lazily=way.lazily)
        path = ProposedPath(trail.nodes, path_tokens(draft, trail.nodes), trail.at)
        end, weights = keep_longest(path, coins, lazily=way.lazily)
        bonus = coins.pick(weights[:, None], end[:, None], Purpose.BONUS).squeeze(1)
        return conclude(tree, end, bonus)
