"""What drafters and draftings may have beyond `Drafter` and `Drafting` in `spectr.types`.

Everything here is optional: a plain class with the members of `Drafter` is a whole drafter, and what it lacks has the
default that is given here. No other file looks for these attributes by their names, and neither the engine nor a
drafter that uses other drafters asks for the class of a drafting.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

from spectr.draft.plan import Plan
from spectr.types import Drafter, Drafting, Layers, TreeModel

__all__ = [
    "CachingDrafting",
    "DrafterTraits",
    "PlannedDrafting",
    "PredictingDrafting",
    "caches_text",
    "drop_text",
    "follows_plan",
    "is_drafter",
    "table_version",
    "takes_predictions",
]


class DrafterTraits:
    """The optional attributes of a drafter, which has them under the same names. Each is read when it is used."""

    __slots__ = ("_drafter",)

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def capturable(self) -> bool:
        """Whether drafting needs no text on the host. On a GPU the next step is then launched before the last one is
        read, and steps can be captured as graphs. Default: False."""
        return bool(getattr(self._drafter, "capturable", False))

    @property
    def scratch_slots(self) -> int:
        """The slots that a step needs in the target's cache behind the text. Default: one for each node of a tree. More
        are needed by a drafter that scores further nodes in the target's cache while it draws the tree."""
        return max(self._drafter.nodes, int(getattr(self._drafter, "scratch_slots", 0)))

    @property
    def origin(self) -> str:
        """Where traces say that its drafts come from: one of `ORIGINS`. Default: "drafter"."""
        return str(getattr(self._drafter, "origin", "drafter"))

    def origin_of(self, drafter_index: int) -> str:
        """Return the origin of the drafts of a step for which `Drafting.choose` returned `drafter_index`."""
        return DrafterTraits(self.drafters[drafter_index]).origin if self.drafters else self.origin

    @property
    def feature_layers(self) -> Layers | None:
        """The layers of the target whose outputs the drafter reads; the tuple may be empty. The target's session then
        keeps the input of the output layer and these outputs (`TreeModel.features_at`). Default: None, no features."""
        found: Layers | None = getattr(self._drafter, "feature_layers", None)
        return found

    @property
    def plan(self) -> Plan | None:
        """The plan of its trees. `replanned` makes a copy of the drafter with another plan, for `spectr tune`, profiles
        and plan="auto"; so whatever depends on the plan is computed from it. Default: None, trees of one kind."""
        found = getattr(self._drafter, "plan", None)
        return found if isinstance(found, Plan) else None

    @property
    def deepest(self) -> int | None:
        """The most tokens of a path that its plan may ask for. Default: None, any number."""
        found: int | None = getattr(self._drafter, "deepest", None)
        return found

    @property
    def model(self) -> TreeModel | None:
        """The draft model, if it has one: the engine compiles it and asks where it is. Default: None."""
        found: TreeModel | None = getattr(self._drafter, "model", None)
        return found

    @property
    def head(self) -> TreeModel | None:
        """The trained head on the target's features, if it has one; it is used like `model`. Default: None."""
        found: TreeModel | None = getattr(self._drafter, "head", None)
        return found

    @property
    def heads(self) -> Any:
        """The parallel heads on the target's features, if it has some. Default: None."""
        return getattr(self._drafter, "heads", None)

    @property
    def parts(self) -> Sequence[Drafter]:
        """The drafters whose trees it merges. Default: none."""
        found: Sequence[Drafter] = getattr(self._drafter, "parts", ())
        return found

    @property
    def drafters(self) -> Sequence[Drafter]:
        """The drafters of which one drafts each step: `Drafting.choose` returns its index. Default: none."""
        found: Sequence[Drafter] = getattr(self._drafter, "drafters", ())
        return found


class PlannedDrafting(Drafting, Protocol):
    """A drafting that follows its attribute `plan`. Another plan, which scores no more nodes, may be set between steps,
    so that drafters that differ in their plans only share a drafting."""

    plan: Plan


def follows_plan(drafting: Drafting) -> TypeGuard[PlannedDrafting]:
    """Return whether a drafting is a `PlannedDrafting`. By default it is not."""
    return hasattr(drafting, "plan")


class CachingDrafting(Drafting, Protocol):
    """A drafting with a cache of its own, into which it has read the texts. After steps in which it took no part
    (`SwitchingDrafter`) it lacks tokens, and reads them when it proposes again; `scene.unread` is then None."""

    def drop(self, first: int, starts: Sequence[int]) -> None:
        """Drop what the rows from `first` on have read from positions `starts` on, and read nothing."""
        ...


def caches_text(drafting: Drafting) -> TypeGuard[CachingDrafting]:
    """Return whether a drafting is a `CachingDrafting`. By default it is not: it reads all that it needs in the
    scene."""
    return hasattr(drafting, "drop")


def drop_text(drafting: Drafting, first: int, starts: Sequence[int]) -> None:
    """Tell a drafting which takes no part at present that the state of rows from `first` on is invalid from positions
    `starts` on."""
    if caches_text(drafting):
        drafting.drop(first, starts)
    else:
        drafting.read(first, [[] for _ in starts], starts)


class PredictingDrafting(Drafting, Protocol):
    """A drafting that also drafts from predictions, texts that the rows will probably repeat, and text that a grammar
    forces."""

    def set_prediction(self, row: int, tokens: Sequence[int], after: int) -> None:
        """Set the row's prediction, which is drafted until the row ends. It continues the first `after` tokens of the
        row's text."""
        ...

    def set_next_tokens(self, row: int, tokens: Sequence[int]) -> None:
        """Set the tokens to draft in the next step only, after the row's present text."""
        ...


def takes_predictions(drafting: Drafting) -> TypeGuard[PredictingDrafting]:
    """Return whether a drafting is a `PredictingDrafting`. By default it is not; for requests with predictions the
    engine wraps the drafter in a `PredictionDrafter`, whose drafting is one."""
    return hasattr(drafting, "set_prediction") and hasattr(drafting, "set_next_tokens")


def table_version(drafting: Drafting) -> int:
    """Return the attribute `version` of a drafting, a number that changes when it replaces a tensor that captured steps
    refer to. By default it is 0: tensors are changed in place, or replaced in `make_room` only."""
    return int(getattr(drafting, "version", 0))


def is_drafter(thing: object) -> TypeGuard[Drafter]:
    """Return whether an object is a drafter, and not a model or the name of one."""
    return hasattr(thing, "open") and hasattr(thing, "siblings")
