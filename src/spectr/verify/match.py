"""Draws from the target at every node and continues while the token was drafted; for top-k trees and prompt lookup."""

from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import LazyRows
from spectr.types import SIBLINGS, Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_with_token, node_ids
from spectr.verify.rule import Card, Descent, Rule, law_of

__all__ = ["Match"]


class Match(Rule):
    """Accepts any tree with any kind of siblings and needs no draft laws: the drawn token never depends on the
    draft."""

    card = Card(
        "match",
        "draws from the target and continues while the token was drafted",
        SIBLINGS,
        ("miao2024specinfer",),
        needs_laws=False,
        draws="fixed",
    )

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Draw one token at each visited node and follow it down the tree."""
        tree = descent.tree

        def decide(nodes: Tensor | None) -> tuple[Tensor, LazyRows]:
            law = law_of(logits(nodes))
            token = coins.pick(law, node_ids(draft, nodes), Purpose.BONUS)
            return child_with_token(tree, draft, nodes, token), LazyRows.of(token)

        trail = descend(decide, tree, lazily=descent.lazily)
        return conclude(tree, trail.end, trail.at_end())
