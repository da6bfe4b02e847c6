"""Several ways to draft, and somebody who picks one at each step: another tree, another drafter, or nothing at all.

With the race a pick may use anything, since the text never depends on drafts. With coupling rules it may use draft-side
or past information alone: a tree is settled before any of its tokens is drawn. What earlier steps accepted, and how
long they took, is past: the coins of a step are its own, so whatever was picked, the step emits the target's law given
the text so far. What is no longer fixed by the seed is the text itself, since seconds decide which tree is drawn.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.chooser import PLAIN, Chooses
from spectr.draft.mixed import Mixed
from spectr.draft.none import NoDrafter
from spectr.draft.plan import Plan
from spectr.draft.stateless import Stateless
from spectr.errors import ArgumentError
from spectr.types import Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings

__all__ = ["AdaptiveDrafter", "ByRows", "Option", "Timing", "replanned"]


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
class Option:
    """A way to draft."""

    drafter: Drafter
    spread: float = 1.0  # how far apart drafter and target are taken to be, in pruning; 1: as the plan has it

    def __post_init__(self) -> None:
        if not 0 < self.spread < float("inf"):
            raise ArgumentError(f"spread must be a number above 0, got {self.spread!r}")

    def sees(self, scene: Scene) -> Scene:
        """Heat is what scores of a pruned tree are multiplied by: less of it is more spread."""
        return scene if self.spread == 1 else replace(scene, heat=scene.heat / self.spread)


class ByRows:
    """A chooser for each size of a batch, by powers of two: a step of many rows has other costs."""

    def __init__(self, make: Callable[[int], Chooses]) -> None:
        self._make, self._made = make, dict[int, Chooses]()

    def __call__(self, rows: int) -> Chooses:
        """The one for so many rows, made when first asked for, with the most rows of its size."""
        size = (rows - 1).bit_length()
        if size not in self._made:
            self._made[size] = self._make(1 << size)
        return self._made[size]


@dataclass(frozen=True, slots=True)
class Timing:
    """One step, as seconds."""

    index: int  # which way
    nodes: int  # of its trees, the root included
    tokens: float  # that a row got, on average
    drafting: float
    verifying: float  # the target's call, the verdict, and keeping the path
    rest: float  # until the next step began

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.drafting + self.verifying + self.rest


def _unwatched(_: Timing) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class AdaptiveDrafter:
    """A menu, of which the first option drafts nothing, and what picks from it for so many rows. Rows of a batch share
    one choice. What the choosers learn they keep for the next request."""

    menu: tuple[Option, ...]
    choosers: Callable[[int], Chooses]
    watch: Callable[[Timing], None] = _unwatched  # told of every step but the last
    clock: Callable[[], float] = time.perf_counter
    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        if not self.menu or not isinstance(self.menu[PLAIN].drafter, NoDrafter):
            raise ArgumentError("the first way of a menu must draft nothing: plain decoding")

    @property
    def drafting(self) -> list[Drafter]:
        """Those that draft."""
        return [option.drafter for option in self.menu[1:]] or [self.menu[PLAIN].drafter]

    @property
    def siblings(self) -> Siblings:
        """As all of them draw; ways that draw differently only suit rules that take anything."""
        kinds = {drafter.siblings for drafter in self.drafting}
        return kinds.pop() if len(kinds) == 1 else "race"

    @property
    def nodes(self) -> int:
        """Of the largest."""
        return max(drafter.nodes for drafter in self.drafting)

    @property
    def gives_laws(self) -> bool:
        """If all do."""
        return all(drafter.gives_laws for drafter in self.drafting)

    @property
    def wants_features(self) -> Layers | None:
        """As a mix of them would."""
        return Mixed(self.drafting).wants_features

    def open(self, opening: Opening) -> Drafting:
        """Drafters that differ in their plan alone share what they remember of the rows."""
        return _AdaptiveDrafting(self, opening)


def _nothing(drafter: AdaptiveDrafter, vocabulary: int) -> Drafting:
    """Roots alone, as the rule takes them: drawn like the others, with a law that nobody reads."""

    def propose(scene: Scene) -> Draft:
        draft = replace(NoDrafter().propose(scene), siblings=drafter.siblings)
        if not drafter.gives_laws and not scene.wants_laws:
            return draft
        return replace(draft, laws=torch.zeros(*draft.tokens.shape, vocabulary, device=scene.root.device))

    return Stateless(propose)


def _family(drafter: Any) -> tuple[Any, ...]:
    """Everything about a drafter but its plan."""
    if not hasattr(drafter, "plan"):
        return (id(drafter),)
    names = [field.name for field in fields(drafter)] if is_dataclass(drafter) else list(vars(drafter))
    return (type(drafter), *(id(getattr(drafter, name)) for name in names if name != "plan"))


def _widest(drafter: Any, menu: Sequence[Option]) -> Drafter:
    """The one of a drafter's family that scores most nodes."""
    kin: list[Any] = [option.drafter for option in menu if _family(option.drafter) == _family(drafter)]
    widest: Drafter = max(kin, key=lambda one: one.plan.scored) if hasattr(drafter, "plan") else drafter
    return widest


def _opened(menu: Sequence[Option], opening: Opening) -> list[Drafting]:
    """A drafting for each option. Those of a family share one, if it can change its plan, with room for the widest."""
    shared, found = dict[tuple[Any, ...], Drafting](), list[Drafting]()
    for drafter in (option.drafter for option in menu):
        family = _family(drafter)
        if family not in shared:
            shared[family] = _widest(drafter, menu).open(opening)
        alone = hasattr(drafter, "plan") and not hasattr(shared[family], "plan")
        found.append(drafter.open(opening) if alone else shared[family])
    return found


@dataclass(slots=True)
class _Step:
    """The step under way."""

    chooser: Chooses
    index: int
    nodes: int
    drafting: float
    verifying: float = 0.0


class _AdaptiveDrafting:
    """The draftings of a menu, and what is known of the step under way."""

    def __init__(self, drafter: AdaptiveDrafter, opening: Opening) -> None:
        self.drafter = drafter
        self.draftings = [_nothing(drafter, opening.vocabulary), *_opened(drafter.menu[1:], opening)]
        self.lengths = [len(prompt) for prompt in opening.prompts]
        self._step: _Step | None = None
        self._mark, self._rest = 0.0, float("inf")

    def propose(self, scene: Scene) -> Draft:
        """Tell the chooser how the last step went, and draft as it says."""
        self._report(scene)
        chooser = self.drafter.choosers(len(scene.texts))
        index = chooser.pick()
        option, drafting = self.drafter.menu[index], self.draftings[index]
        self._mark = self.drafter.clock()
        if hasattr(option.drafter, "plan") and hasattr(drafting, "plan"):
            drafting.plan = option.drafter.plan
        draft = drafting.propose(option.sees(scene))
        self._step = _Step(chooser, index, draft.tokens.shape[1], self._lap())
        return draft

    def keep(self, path: Tensor) -> None:
        """The step is over once the path is known here."""
        assert self._step is not None
        self.draftings[self._step.index].keep(path)
        path.cpu()
        self._step.verifying = self._lap()

    def take_rows(self, rows: Tensor) -> None:
        """Of every drafting, once."""
        for drafting in {id(one): one for one in self.draftings}.values():
            drafting.take_rows(rows)
        self.lengths = [self.lengths[row] for row in rows.tolist()]

    def _lap(self) -> float:
        now = self.drafter.clock()
        past, self._mark = now - self._mark, now
        return past

    def _report(self, scene: Scene) -> None:
        """Whoever reads a stream may take their time between steps: the shortest pause is what a step itself takes."""
        lengths, step = [len(text) for text in scene.texts], self._step
        if step is not None:
            self._rest = min(self._rest, self._lap())
            tokens = sum(now - then for now, then in zip(lengths, self.lengths, strict=True)) / len(lengths)
            timing = Timing(step.index, step.nodes, tokens, step.drafting, step.verifying, self._rest)
            step.chooser.heard(step.index, tokens, timing.seconds)
            self.drafter.watch(timing)
        self.lengths = lengths
