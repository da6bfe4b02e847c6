"""Several drafters in one, of which one drafts each step. It is chosen by the number of rows, as a profile says, or
while running, by the tokens and seconds of earlier steps.

This is for the race only, whose text does not depend on drafts. Under other rules the text would depend on the choice.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from spectr.draft.mixed import Mixed
from spectr.draft.plan import Plan
from spectr.draft.selector import DrafterSelector
from spectr.draft.traits import DrafterTraits, caches_text, drop_text, follows_plan
from spectr.types import Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings, TreeModel

__all__ = ["SwitchingDrafter", "adaptive", "replanned"]

Observe = Callable[[int, int, float, float], None]
"""Takes the rows of a step, the index of its drafter, the mean number of tokens per row, and the seconds it took."""


def replanned(drafter: Any, plan: Plan) -> Drafter:
    """Return a drafter with the same weights and another plan.

    >>> from spectr.draft import drafter
    >>> replanned(drafter("random", plan=Plan()), Plan(drafts=1, length=2)).nodes
    3
    """
    made: Any = replace(drafter, plan=plan) if is_dataclass(drafter) else copy.copy(drafter)  # type: ignore[type-var]
    if made.plan is not plan:
        made.plan = plan
    same: Drafter = made
    return same


@dataclass(frozen=True, slots=True)
class SwitchingDrafter:
    """Drafts each step with one of `drafters`; all rows of a step share it."""

    drafters: tuple[Drafter, ...]
    select: Callable[[int], int]  # rows of a step → index of the drafter
    observe: Observe | None = None
    siblings: ClassVar[Siblings] = "race"
    gives_laws: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The names of all drafters, each once."""
        return " or ".join(dict.fromkeys(drafter.name for drafter in self.drafters))

    @property
    def capturable(self) -> bool:
        """Whether no drafter needs texts on the host."""
        return all(DrafterTraits(drafter).capturable for drafter in self.drafters)

    @property
    def nodes(self) -> int:
        """The nodes of the largest tree."""
        return max(drafter.nodes for drafter in self.drafters)

    @property
    def scratch_slots(self) -> int:
        """The slots that the drafter needs which needs most."""
        return max(DrafterTraits(drafter).scratch_slots for drafter in self.drafters)

    @property
    def feature_layers(self) -> Layers | None:
        """The layers whose features any of the drafters reads."""
        return Mixed(list(self.drafters)).feature_layers

    @property
    def head(self) -> TreeModel | None:
        """The first trained head among the drafters, for compiling it and finding its device."""
        heads = (DrafterTraits(drafter).head for drafter in self.drafters)
        return next((head for head in heads if head is not None), None)

    @property
    def model(self) -> TreeModel | None:
        """The first draft model among the drafters, for the same uses."""
        models = (DrafterTraits(drafter).model for drafter in self.drafters)
        return next((model for model in models if model is not None), None)

    def open(self, opening: Opening) -> Drafting:
        """Open every drafter; drafters that differ in their plan only share a session."""
        return _SwitchingDrafting(self, opening)


def adaptive(drafters: Sequence[Drafter], start: Callable[[int], int]) -> SwitchingDrafter:
    """Return a drafter that selects the fastest of `drafters` while running; for batches of n rows it begins with
    drafter `start(n)`. It learns for each power of two of the batch size, and keeps what it has learnt for later
    requests."""
    selectors = dict[int, DrafterSelector]()

    def selector(rows: int) -> DrafterSelector:
        size = (rows - 1).bit_length()
        if size not in selectors:
            selectors[size] = DrafterSelector(len(drafters), start(rows))
        return selectors[size]

    def observe(rows: int, drafter: int, tokens: float, seconds: float) -> None:
        selector(rows).observe(drafter, tokens, seconds)

    return SwitchingDrafter(tuple(drafters), lambda rows: selector(rows).choose(), observe)


def _differ_in_plan_alone(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or DrafterTraits(one).plan is None or not is_dataclass(one):
        return False
    names = [field.name for field in fields(one) if field.name != "plan"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _with_most_room(drafters: Sequence[Any], index: int) -> int:
    """Return the index of the drafter that scores the most nodes, among those that differ in their plan only."""
    alike = [place for place, other in enumerate(drafters) if _differ_in_plan_alone(drafters[index], other)]
    return max(alike, key=lambda place: drafters[place].plan.scored, default=index)


class _SwitchingDrafting:
    """The draftings of all drafters. Only the current one reads tokens; the others read what they missed when they are
    used again."""

    def __init__(self, drafter: SwitchingDrafter, opening: Opening) -> None:
        self.drafter, opened = drafter, dict[int, Drafting]()
        self.draftings: list[Drafting] = []
        for place in range(len(drafter.drafters)):
            owner = _with_most_room(drafter.drafters, place)
            if owner not in opened:
                opened[owner] = drafter.drafters[owner].open(opening)
            shares = owner == place or follows_plan(opened[owner])
            self.draftings.append(opened[owner] if shares else drafter.drafters[place].open(opening))
        self._current = drafter.select(1)
        self.is_behind = False

    def choose(self, rows: int) -> int:
        """Select the drafter of the next step."""
        before, self._current = self._current, self.drafter.select(rows)
        drafting = self.draftings[self._current]
        self.is_behind = drafting is not self.draftings[before] and caches_text(drafting)
        return self._current

    def observe(self, rows: int, drafter_index: int, tokens: float, seconds: float) -> None:
        """Pass the measurement of a step to the selection."""
        if self.drafter.observe is not None:
            self.drafter.observe(rows, drafter_index, tokens, seconds)

    def propose(self, scene: Scene) -> Draft:
        """Draft with the current drafter."""
        drafting, plan = self.draftings[self._current], DrafterTraits(self.drafter.drafters[self._current]).plan
        if plan is not None and follows_plan(drafting):
            drafting.plan = plan
        return drafting.propose(scene)

    def keep(self, path: Tensor) -> None:
        """Keep the path in the current drafting."""
        self.draftings[self._current].keep(path)

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row in every drafting."""
        for drafting in self._distinct():
            drafting.begin(row, text, limit, source)

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Read tokens in the current drafting; the others forget earlier texts of these rows."""
        current = self.draftings[self._current]
        for drafting in self._distinct():
            if drafting is current:
                drafting.read(first, texts, starts)
            else:
                drop_text(drafting, first, starts)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy rows in every drafting."""
        for drafting in self._distinct():
            drafting.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room in every drafting."""
        for drafting in self._distinct():
            drafting.make_room(rows, slots)

    def _distinct(self) -> list[Drafting]:
        return list({id(one): one for one in self.draftings}.values())
