"""Drafters, which propose tokens, one file each, and the choice between their plans while running.

No drafter depends on how a rule decides, or on the target's distributions.
"""

from typing import Any

from spectr.draft.plan import Plan
from spectr.registry import Entry, Registry
from spectr.types import Drafter

__all__ = ["DRAFTERS", "Plan", "drafter"]

DRAFTERS = Registry(
    "drafter",
    {
        "none": Entry("spectr.draft.none:NoDrafter"),
        "lookup": Entry("spectr.draft.lookup:Lookup"),
        "ngram": Entry("spectr.draft.ngram:NGram"),
        "model": Entry("spectr.draft.model:ModelDrafter"),
        "early_exit": Entry("spectr.draft.early_exit:EarlyExit"),
        "feature": Entry("spectr.draft.feature:FeatureDrafter"),
        "blockwise": Entry("spectr.draft.blockwise:Blockwise"),
        "block": Entry("spectr.draft.block:BlockDrafter"),
        "masked": Entry("spectr.draft.masked:MaskedDrafter"),
        "random": Entry("spectr.draft.random:RandomDrafter"),
        "mixed": Entry("spectr.draft.mixed:Mixed"),
    },
    group="spectr.drafters",
)


def drafter(name: str, **options: Any) -> Drafter:
    """Return the drafter called `name`, made with `options`.

    >>> drafter("lookup", drafts=2).siblings
    'fixed'
    """
    made: Drafter = DRAFTERS.make(name, **options)
    return made
