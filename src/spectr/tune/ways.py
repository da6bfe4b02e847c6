"""Ways to decode: which are worth a thought with a drafter and a rule, and engines that decode so."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.adaptive import AdaptiveDrafter, Option, replanned
from spectr.draft.chooser import Fixed
from spectr.draft.options import DraftOptions
from spectr.draft.profile import Way
from spectr.engine import Engine
from spectr.errors import ArgumentError, MismatchError, SpectrError
from spectr.lm import LM
from spectr.pairing import pair
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["Bench", "Reach", "reach_for"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far to look."""

    sizes: tuple[int, ...]  # nodes of pruned trees, the root included
    beams: tuple[int, ...]
    depth: int
    spreads: tuple[float, ...] = (0.67, 1.0, 1.5)
    drafts: tuple[int, ...] = (1, 2, 4)  # K of rules that couple laws
    length: int = 4  # L of these
    lookups: tuple[int, ...] = (1, 2, 4)  # places that lookup drafts from
    lengths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # and how long


def reach_for(device: torch.device) -> Reach:
    """Small trees where a node costs time, large ones where it hardly does."""
    if device.type == "cpu":
        return Reach((2, 3, 4, 5, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8), 6)
    return Reach((2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8, 16), 8, drafts=(1, 2, 4, 8), length=8)


@dataclass(frozen=True)
class Bench:
    """A loaded target, and the drafters and rules that are tried with it. Weights are loaded once."""

    lm: LM
    drafters: tuple[str, ...]
    rules: tuple[str, ...]
    reach: Reach

    def __post_init__(self) -> None:
        for name in self.rules:
            if not named_rule(name).card.lossless:
                raise ArgumentError(f"rules must be lossless, {name!r} is not; choose it by name, not by speed")
        if "none" in self.drafters or not self.drafters:
            raise ArgumentError("tune compares drafters with plain decoding, which is always there; name a drafter")
        if not self.pairs:
            raise MismatchError(f"no rule fits a drafter: {'; '.join(self.left_out.values())}")

    @cached_property
    def _made(self) -> tuple[dict[tuple[str, str], Drafter], dict[str, str]]:
        """Drafters by name and rule, and those that cannot be with the reason."""
        found, left = dict[tuple[str, str], Drafter](), dict[str, str]()
        for name in self.drafters:
            for rule in self.rules:
                try:
                    found[name, rule] = self._pair(name, rule, found)
                except SpectrError as error:
                    left[f"{name} with {rule}"] = str(error)
        return found, left

    def _pair(self, name: str, rule: str, found: dict[tuple[str, str], Drafter]) -> Drafter:
        known = next((made for (other, _), made in found.items() if other == name), None)
        card = named_rule(rule).card
        if known is None or not hasattr(known, "plan"):
            made = known or pair(name, self.lm.opened, card, DraftOptions())
        else:
            made = replanned(known, Plan(card.draws or card.siblings[0], 1, 1))
        Engine(self.lm.opened.target, made, named_rule(rule))  # refuses what does not fit
        if rule != "race" and not (hasattr(made, "plan") and not made.plan.prunes):
            raise MismatchError(f"rule {rule!r} is planned by drafts and length, and {name!r} has no such trees")
        return made

    @property
    def pairs(self) -> dict[tuple[str, str], Drafter]:
        """What fits, by drafter and rule."""
        return self._made[0]

    @property
    def left_out(self) -> dict[str, str]:
        """What does not fit, and why."""
        return self._made[1]

    def deepest(self, drafter: Any) -> int:
        """How deep its trees can be."""
        heads = getattr(drafter, "heads", None)
        return min(self.reach.depth, getattr(heads, "deepest", None) or self.reach.depth)

    def plan(self, way: Way) -> Plan:
        """Of a drafter that has one."""
        card = named_rule(way.rule).card
        return Plan(card.draws or card.siblings[0], **way.options)

    def drafter(self, way: Way) -> Drafter:
        """As the way says."""
        if way.plain:
            return named_drafter("none")
        base: Any = self.pairs[way.drafter, way.rule]
        if not hasattr(base, "plan"):
            card, options = named_rule(way.rule).card, DraftOptions(**way.options)
            return pair(way.drafter, self.lm.opened, card, options) if way.options else base
        made = replanned(base, self.plan(way))
        if way.spread == 1:
            return made
        return AdaptiveDrafter((Option(named_drafter("none")), Option(made, way.spread)), lambda _: Fixed(1))

    def engine(self, way: Way) -> Engine:
        """That decodes so."""
        opened = self.lm.opened
        return Engine(opened.target, self.drafter(way), named_rule(way.rule), opened.stops)

    def ways(self, name: str, rule: str) -> Iterator[Way]:
        """Worth a thought with this drafter and rule."""
        base: Any = self.pairs[name, rule]
        if not hasattr(base, "plan"):
            yield Way(name, rule)
            if base.name == "lookup":
                yield from self._lookups(name, rule)
        elif base.plan.prunes:
            yield from self._pruned(name, self.deepest(base))
        else:
            most = self.reach.drafts if named_rule(rule).card.tree else (1,)
            deepest = min(self.reach.length, self.deepest(base))
            yield from (Way(name, rule, k, length) for k in most for length in range(1, deepest + 1))

    def _lookups(self, name: str, rule: str) -> Iterator[Way]:
        for drafts in self.reach.lookups:
            for length in self.reach.lengths:
                yield Way(name, rule, drafts, length, 1 + drafts * length)

    def _pruned(self, name: str, deepest: int) -> Iterator[Way]:
        for nodes in self.reach.sizes:
            yield Way(name, "race", 1, 1, nodes)
            for depth in range(2, min(deepest, nodes - 1) + 1):
                for beam in self.reach.beams:
                    if beam < nodes:
                        yield from (Way(name, "race", beam, depth, nodes, spread) for spread in self.reach.spreads)
