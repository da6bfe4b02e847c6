"""SpecTr's selection of a path, with any coupling: at each node the coupling says which child comes out, or none.

Live drafts shrink on the way: what is below the chosen token, over all copies of it, is what is drafted next. The
walk ends with a token from the residual, or at a leaf with one from the target.
"""

from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import Rows, pick_rows
from spectr.transport import coupling as named_coupling
from spectr.transport.coupling import Coupling
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_in_slot, drafted_at, node_ids
from spectr.verify.rule import Card, Rule, Way, law_of, laws_in

__all__ = ["Walk"]


class Walk(Rule):
    """Token by token down the tree with one coupling."""

    def __init__(
        self, coupling: str | Coupling = "optimal", name: str = "walk", summary: str = "", **options: object
    ) -> None:
        self.coupling = named_coupling(coupling, **options) if isinstance(coupling, str) else coupling
        held = self.coupling
        text = summary or f"walks down the tree with any coupling, here {held.name!r}"
        self.card = Card(name, text, held.siblings, held.papers, held.lossless)

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        """A choice per node looked at, and one draw from what the last of them left."""
        tree, laws = way.tree, laws_in(draft)

        def decide(nodes: Tensor | None) -> tuple[Tensor, Rows]:
            children, drafted = drafted_at(tree, draft, nodes)
            outcome = self.coupling.outcome(law_of(logits(nodes)), pick_rows(laws, nodes), drafted)
            slot = coins.pick(outcome.choices, node_ids(draft, nodes), Purpose.CHILD)
            return child_in_slot(tree, children, slot), outcome.residual

        trail = descend(decide, tree, lazily=way.lazily)
        bonus = coins.pick(trail.at_end()[:, None], trail.end[:, None], Purpose.BONUS)
        return conclude(tree, trail.end, bonus.squeeze(1))
