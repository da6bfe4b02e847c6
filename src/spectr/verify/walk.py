"""SpecTr's walk down the tree with any coupling: at each node the coupling decides which child is accepted, if any.

The drafts at the next node are the children of all copies of the accepted token. The walk ends with a token drawn from
the residual, or at a leaf with one drawn from the target.
"""

from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import LazyRows, pick_rows
from spectr.transport import coupling as named_coupling
from spectr.transport.coupling import Coupling
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_in_slot, drafted_at, node_ids
from spectr.verify.rule import Card, Descent, Rule, law_of, laws_in

__all__ = ["Walk"]


class Walk(Rule):
    """Accepts tokens one by one down the tree with one coupling."""

    def __init__(
        self, coupling: str | Coupling = "optimal", name: str = "walk", summary: str = "", **options: object
    ) -> None:
        self.coupling = named_coupling(coupling, **options) if isinstance(coupling, str) else coupling
        inner = self.coupling
        text = summary or f"walks down the tree with any coupling, here {inner.name!r}"
        self.card = Card(name, text, inner.siblings, inner.papers, inner.lossless)

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Choose a child at each visited node, then draw the bonus from the residual of the last one."""
        tree, laws = descent.tree, laws_in(draft)

        def decide(nodes: Tensor | None) -> tuple[Tensor, LazyRows]:
            children, drafted = drafted_at(tree, draft, nodes)
            outcome = self.coupling.outcome(law_of(logits(nodes)), pick_rows(laws, nodes), drafted)
            slot = coins.pick(outcome.choices, node_ids(draft, nodes), Purpose.CHILD)
            return child_in_slot(tree, children, slot), outcome.residual

        trail = descend(decide, tree, lazily=descent.lazily)
        bonus = coins.pick(trail.at_end()[:, None], trail.end[:, None], Purpose.BONUS)
        return conclude(tree, trail.end, bonus.squeeze(1))
