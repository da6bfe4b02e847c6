"""The plans that are worth trying with a drafter: small trees on a CPU, where every node costs time, and larger trees
on a GPU, where a call of the target is bound by memory bandwidth."""

from dataclasses import replace

from spectr.draft.profile import DecodingPlan
from spectr.draft.traits import DrafterTraits
from spectr.types import Drafter
from spectr.verify import Card

__all__ = ["candidate_plans"]

# drafts, length and nodes of pruned trees, the most promising first
_TREES_CPU = ((1, 1, 2), (2, 2, 4), (4, 3, 8), (1, 2, 3), (4, 4, 16))
_TREES = ((16, 4, 64), (6, 4, 16), (2, 3, 4), (8, 4, 32), (4, 4, 8))
# drafts and length of independent chains, for rules that couple drafts with the target's distribution
_CHAINS_CPU = ((1, 1), (1, 2), (2, 2), (4, 2))
_CHAINS = ((8, 3), (1, 3), (4, 3), (2, 3))
_LOOKUP = DecodingPlan("lookup", drafts=1, length=8, nodes=9)  # one long copy; the default is two short ones


def candidate_plans(name: str, drafter: Drafter, card: Card, *, on_cpu: bool) -> list[DecodingPlan]:
    """Return plans for the drafter called `name` under the rule with `card`; no plans for drafter none."""
    traits = DrafterTraits(drafter)
    plan, deepest = traits.plan, traits.deepest or 99
    if drafter.name == "none":
        return []
    if plan is None:  # a drafter that takes no plan
        is_free = name == "lookup" and not card.text_depends_on_drafts
        return [DecodingPlan(name, card.name), *([replace(_LOOKUP, rule=card.name)] if is_free else [])]
    if plan.prunes:
        trees = [t for t in (_TREES_CPU if on_cpu else _TREES) if t[1] <= deepest]
        return [DecodingPlan(name, card.name, *tree) for tree in trees]
    chains = [c for c in (_CHAINS_CPU if on_cpu else _CHAINS) if c[1] <= deepest and (c[0] == 1 or card.tree)]
    return [DecodingPlan(name, card.name, *chain) for chain in chains]
