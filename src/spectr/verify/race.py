"""The race: target and drafter share their noise, so the text is a function of the seed alone.

At absolute position t every token v has noise E_t(v) ~ Exp(1). The text is defined without any drafter, as
y_t = argmin E_t(v) / target(v | y_<t); drafts only guess it. A drafter therefore cannot bias the output, and the same
seed gives the same text with any drafter, any tree, or none. The rule needs no draft laws, no residual and no softmax.
"""

from torch import Tensor

from spectr.rows import LazyRows
from spectr.types import SIBLINGS, Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_with_token
from spectr.verify.rule import Card, Descent, Rule

__all__ = ["Race"]


class Race(Rule):
    """Keeps the path on which every token wins its race; the bonus token is the next winner."""

    card = Card(
        "race",
        "shares noise with the drafter: a seed gives the same text with any drafter or none",
        SIBLINGS,
        ("spectr", "daliri2024", "kobus2025", "rowan2025"),
        needs_laws=False,
        draws="race",
        text_depends_on_drafts=False,
    )

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Find the winner at each visited node and follow it down the tree."""
        tree = descent.tree

        def decide(nodes: Tensor | None) -> tuple[Tensor, LazyRows]:
            depth = tree.depth if nodes is None else tree.depth.gather(-1, nodes)
            winner = coins.race(logits(nodes), depth)
            return child_with_token(tree, draft, nodes, winner), LazyRows.of(winner)

        trail = descend(decide, tree, lazily=descent.lazily)
        return conclude(tree, trail.end, trail.at_end())
