"""What a user may say about a drafter, checked before anything is built. Knows not how drafters are made."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spectr.checks import whole
from spectr.draft.profile import Profile, check_plan, read_profile
from spectr.errors import ArgumentError
from spectr.trees import Shape

__all__ = ["AUTO", "PLANNED", "DraftOptions"]

AUTO = "auto"
PLANNED = ("drafts", "length", "nodes", "tree")
"""What a plan decides."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What may be said about a drafter; None leaves it to the drafter."""

    drafts: int | None = None  # K: chains, matches, or nodes expanded at each depth
    length: int | None = None  # L: tokens of each
    nodes: int | None = None  # most nodes of the tree, the root included
    tree: tuple[int, ...] | Shape | None = None  # branching numbers or a shape, in place of chains
    layers: int | None = None  # early_exit: how many of the target's layers
    order: int | None = None  # ngram: tokens looked at, the next one included
    text: str | None = None  # ngram: what it learns from before it begins
    vocabulary: int | None = None  # trained: only the most frequent tokens are drafted
    plan: str | os.PathLike[str] | None = None  # "auto": chosen at every step; or a profile of spectr tune, as it says
    profile: str | os.PathLike[str] | None = None  # with plan="auto": what it begins with

    def __post_init__(self) -> None:
        for name in ("drafts", "length", "nodes", "layers", "order", "vocabulary"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        if self.tree is not None and not isinstance(self.tree, (list, tuple, Shape)):
            raise ArgumentError(f"tree must be a sequence of branching numbers, such as (4, 2, 1), got {self.tree!r}")
        if self.text is not None and not isinstance(self.text, str):
            raise ArgumentError(f"text must be a string that ngram learns from, got {self.text!r}")
        check_plan(self.plan, self.profile)
        if self.plan is not None and (given := self.some(*PLANNED)):
            raise ArgumentError(f"plan decides {', '.join(PLANNED)}; got {', '.join(given)} besides: leave them out")

    @property
    def measured(self) -> Profile | None:
        """The profile that was given, one way or the other."""
        path = self.profile if self.plan == AUTO else self.plan
        return None if path is None else read_profile(Path(path))

    def some(self, *names: str) -> dict[str, Any]:
        """Those of `names` that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def only(self, names: Iterable[str]) -> "DraftOptions":
        """Without the others."""
        return DraftOptions(**self.some(*names))

    def check(self, drafter: str, taken: Iterable[str]) -> None:
        """Refuse what the drafter would not listen to."""
        extra = [field.name for field in fields(self) if field.name not in taken and self.some(field.name)]
        if extra:
            raise ArgumentError(f"drafter {drafter!r} takes {', '.join(taken) or 'no options'}; got {', '.join(extra)}")
