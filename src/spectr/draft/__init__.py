"""Drafters: anything that proposes tokens. One file per drafter; none of them knows a rule or a target."""

from typing import Any

from spectr.registry import Entry, Registry
from spectr.types import Drafter

__all__ = ["DRAFTERS", "drafter"]

DRAFTERS = Registry(
    "drafter",
    {
        "none": Entry("spectr.draft.none:NoDrafter"),
        "lookup": Entry("spectr.draft.lookup:Lookup"),
    },
    group="spectr.drafters",
)


def drafter(name: str, **options: Any) -> Drafter:
    """The drafter called `name`.

    >>> drafter("lookup", drafts=2).siblings
    'fixed'
    """
    made: Drafter = DRAFTERS.make(name, **options)
    return made
