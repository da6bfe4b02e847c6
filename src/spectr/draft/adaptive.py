"""Several drafters in one, of which one drafts each step: chosen by the number of rows, as a profile says, or while
running, from the tokens and seconds of earlier steps.

For the race alone, whose text does not depend on drafts. Under other rules the text would depend on the choice.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from spectr.draft.mixed import Mixed
from spectr.draft.plan import Plan
from spectr.draft.selector import PlanSelector
from spectr.types import Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings

__all__ = ["SwitchingDrafter", "adaptive", "replanned"]

Observe = Callable[[int, int, float, float], None]
"""The rows of a step, which drafter it used, the tokens that a row got on average, and the seconds it took."""


def replanned(drafter: Any, plan: Plan) -> Drafter:
    """The same drafter, weights and all, with another plan.

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
    """Drafts each step with one of `drafters`; all rows of a batch share it. Steps can be captured if nobody observes
    them, since then the choice depends on the number of rows alone, and if every drafter's can."""

    drafters: tuple[Drafter, ...]
    select: Callable[[int], int]  # rows of the batch → place of the drafter
    observe: Observe | None = None
    clock: Callable[[], float] = time.perf_counter
    name: ClassVar[str] = "switching"
    siblings: ClassVar[Siblings] = "race"
    gives_laws: ClassVar[bool] = False

    @property
    def capturable(self) -> bool:
        """Whether no step needs the host."""
        return self.observe is None and all(getattr(drafter, "capturable", False) for drafter in self.drafters)

    @property
    def nodes(self) -> int:
        """The room that the largest tree needs."""
        return max(drafter.nodes for drafter in self.drafters)

    @property
    def wants_features(self) -> Layers | None:
        """The features that any of the drafters reads."""
        return Mixed(list(self.drafters)).wants_features

    @property
    def head(self) -> Any:
        """The first trained head among the drafters, for those who compile it or ask where it lies."""
        return next((drafter.head for drafter in self.drafters if hasattr(drafter, "head")), None)

    @property
    def model(self) -> Any:
        """The first draft model, likewise."""
        return next((drafter.model for drafter in self.drafters if hasattr(drafter, "model")), None)

    def open(self, opening: Opening) -> Drafting:
        """Open the drafter for this number of rows; the others are opened when they are first used."""
        return _SwitchingDrafting(self, opening)


def adaptive(drafters: Sequence[Drafter], start: Callable[[int], int]) -> SwitchingDrafter:
    """A drafter that selects while running, beginning with the one at place `start` of the number of rows. It learns
    for each size of a batch, by powers of two, and keeps what it learnt for later requests."""
    selectors = dict[int, PlanSelector]()

    def selector(rows: int) -> PlanSelector:
        size = (rows - 1).bit_length()
        if size not in selectors:
            selectors[size] = PlanSelector(len(drafters), start(rows))
        return selectors[size]

    def observe(rows: int, plan: int, tokens: float, seconds: float) -> None:
        selector(rows).observe(plan, tokens, seconds)

    return SwitchingDrafter(tuple(drafters), lambda rows: selector(rows).choose(), observe)


def _differ_in_plan_alone(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or not hasattr(one, "plan") or not is_dataclass(one):
        return False
    names = [field.name for field in fields(one) if field.name != "plan"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _with_most_room(drafters: Sequence[Any], index: int) -> int:
    """Of the drafters that differ from this one in their plan alone, the place of the one that scores most nodes."""
    kin = [place for place, other in enumerate(drafters) if _differ_in_plan_alone(drafters[index], other)]
    return max(kin, key=lambda place: drafters[place].plan.scored, default=index)


@dataclass(slots=True)
class _Step:
    """A step under way: who drafts it, how long the texts were before, when it began, and how long it took."""

    index: int
    lengths: list[int]
    began: float
    seconds: float = 0.0


class _SwitchingDrafting:
    """The draftings that were opened so far, by place; drafters that differ in their plan alone share one."""

    def __init__(self, drafter: SwitchingDrafter, opening: Opening) -> None:
        self.drafter, self.opening = drafter, opening
        self.opened: dict[int, Drafting] = {}
        self._current = 0
        self._step: _Step | None = None
        self._open_for_rows()

    def propose(self, scene: Scene) -> Draft:
        """Report the step before, select a drafter, and draft with it."""
        rows, began = len(scene.root), self.drafter.clock()
        self._report(scene)
        self._current = self.drafter.select(rows)
        if self._current not in self.opened:
            self.opening = replace(self.opening, prompts=[list(text) for text in scene.texts])
        drafting: Any = self._drafting(self._current)
        if hasattr(drafting, "plan"):
            plan: Any = self.drafter.drafters[self._current]
            drafting.plan = plan.plan
        draft: Draft = drafting.propose(scene)
        self._step = _Step(self._current, [len(text) for text in scene.texts], began)
        return draft

    def keep(self, path: Tensor) -> None:
        """The others read what they missed when they are used again."""
        self.opened[self._current].keep(path)
        if self._step is not None:
            self._step.seconds = self.drafter.clock() - self._step.began

    def take_rows(self, rows: Tensor) -> None:
        """Take the same rows of every drafting."""
        places = rows.tolist()
        for drafting in self._distinct():
            drafting.take_rows(rows)
        sources = self.opening.sources
        self.opening = replace(
            self.opening,
            prompts=[self.opening.prompts[row] for row in places],
            sources=None if sources is None else [sources[row] for row in places],
        )
        if self._step is not None:
            self._step.lengths = [self._step.lengths[row] for row in places]
        self._open_for_rows()

    def assume(self, longest: int) -> None:
        """Pass on how long rows are at most."""
        for drafting in self._distinct():
            drafting.assume(longest)

    def begin(self, opening: Opening, kept: int) -> None:
        """Begin again with other prompts in as many rows, so with the same drafter."""
        self.opening = opening
        drafting: Any = self._drafting(self.drafter.select(len(opening.prompts)))
        drafting.begin(opening, kept)

    def _distinct(self) -> list[Any]:
        return list({id(one): one for one in self.opened.values()}.values())

    def _open_for_rows(self) -> None:
        """Open what the number of rows decides on now: a captured step cannot."""
        if self.drafter.observe is None:
            self._drafting(self.drafter.select(len(self.opening.prompts)))

    def _drafting(self, index: int) -> Drafting:
        """The drafting of the drafter at a place, with room for the largest plan of those that share it."""
        if index not in self.opened:
            drafters = self.drafter.drafters
            owner = _with_most_room(drafters, index)
            shared = self.opened.get(owner) or drafters[owner].open(self.opening)
            if owner != index and hasattr(shared, "plan"):
                self.opened[owner] = self.opened[index] = shared
            else:
                self.opened[index] = shared if owner == index else drafters[index].open(self.opening)
        return self.opened[index]

    def _report(self, scene: Scene) -> None:
        """Tell the observer what the step before gave to the rows that are still there."""
        step, rows = self._step, len(scene.root)
        if step is not None and self.drafter.observe is not None:
            grown = sum(len(text) - before for text, before in zip(scene.texts, step.lengths, strict=True))
            self.drafter.observe(rows, step.index, grown / rows, step.seconds)
