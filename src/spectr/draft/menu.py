"""Drafters that choose: from a profile, or from guesses where nothing was measured yet. Small trees on a CPU, where a
node costs time, large ones elsewhere; a chooser soon knows better."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spectr.draft.adaptive import AdaptiveDrafter, ByRows, Option, replanned
from spectr.draft.chooser import Chooser, Chooses, Fixed, Prospect
from spectr.draft.none import NoDrafter
from spectr.draft.plan import Plan
from spectr.draft.profile import Profile
from spectr.errors import ArgumentError
from spectr.types import Drafter

__all__ = ["Ground", "adaptive", "by_profile", "guess", "plans_for"]

_PRUNED_FEW = ((1, 1, 2), (1, 2, 3), (2, 2, 4), (2, 3, 6), (4, 3, 8), (4, 4, 16))  # beam, depth, nodes
_PRUNED_MANY = ((2, 3, 4), (4, 4, 8), (6, 4, 16), (8, 4, 32), (16, 4, 64), (16, 6, 64), (16, 8, 128))
_CHAINS_FEW = ((1, 1), (1, 2), (1, 3), (2, 2), (4, 2))  # drafts, length
_CHAINS_MANY = ((1, 2), (1, 4), (1, 8), (2, 4), (4, 4), (8, 4), (8, 8))


@dataclass(frozen=True, slots=True)
class Ground:
    """Where trees are scored."""

    few: bool  # a node more takes time: a CPU
    tree: bool = True  # the rule takes more than one chain


def plans_for(plan: Plan, ground: Ground) -> Iterator[Plan]:
    """Plans that draw as `plan` does."""
    if plan.prunes:
        for drafts, length, nodes in _PRUNED_FEW if ground.few else _PRUNED_MANY:
            yield Plan(plan.siblings, drafts, length, nodes)
        return
    for drafts, length in _CHAINS_FEW if ground.few else _CHAINS_MANY:
        if drafts == 1 or ground.tree:
            yield Plan(plan.siblings, drafts, length)


def guess(drafter: Drafter, ground: Ground, rows: int) -> Prospect:
    """Half a token for every doubling of the tree, as far as it is deep; time for every node and every depth."""
    plan: Plan | None = getattr(drafter, "plan", None)
    depth = 1 if plan is None else plan.length
    tokens = 1 + min(0.6 * depth, 0.47 * math.log2(drafter.nodes))
    node, level = (0.1, 0.2) if ground.few else (0.002, 0.1)
    return Prospect(tokens, 1 + node * rows * (drafter.nodes - 1) + (0.0 if plan is None else level * depth))


def _options(drafter: Any, ground: Ground) -> Iterator[Option]:
    if not hasattr(drafter, "plan"):
        yield Option(drafter)
        return
    for plan in plans_for(drafter.plan, ground):
        with suppress(ArgumentError):  # deeper than the heads reach
            yield Option(replanned(drafter, plan))


def adaptive(drafter: Drafter, ground: Ground) -> AdaptiveDrafter:
    """Plain decoding, or what `drafter` drafts with one of several trees; one without trees of its choice as it is."""
    menu = (Option(NoDrafter()), *_options(drafter, ground))

    def chooser(rows: int) -> Chooser:
        return Chooser([Prospect(1.0, 1.0), *(guess(option.drafter, ground, rows) for option in menu[1:])])

    return AdaptiveDrafter(menu, ByRows(chooser))


def by_profile(profile: Profile, menu: Sequence[Option], *, auto: bool) -> Drafter:
    """What the profile says for so many rows; with `auto`, what a chooser makes of it."""

    def chooser(rows: int) -> Chooses:
        choice = profile.at(rows)
        return Chooser(choice.prospects) if auto else Fixed(choice.index)

    first, *others = {choice.index for choice in profile.choices}
    if auto or others or menu[first].spread != 1:
        return AdaptiveDrafter(tuple(menu), ByRows(chooser))
    return menu[first].drafter
