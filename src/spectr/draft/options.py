"""The options of a drafter that a user may set, checked before the drafter is built."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spectr.checks import whole
from spectr.draft.profile import Profile, read_profile
from spectr.errors import ArgumentError
from spectr.trees import Shape

__all__ = ["AUTO", "PLANNED", "DraftOptions"]

AUTO = "auto"
PLANNED = ("drafts", "length", "nodes", "tree")
"""The options that a plan decides."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Options of a drafter. None leaves the choice to the drafter."""

    drafts: int | None = None  # K: number of chains, of matches, or of nodes expanded at each depth
    length: int | None = None  # L: tokens of each draft
    nodes: int | None = None  # the most nodes of the tree, including the root
    tree: tuple[int, ...] | Shape | None = None  # branching numbers or a shape, instead of chains
    layers: int | None = None  # early_exit: how many of the target's layers
    order: int | None = None  # ngram: tokens of an n-gram, including the predicted one
    text: str | None = None  # ngram: the text that it is trained on
    vocabulary: int | None = None  # trained: only the most frequent tokens are drafted
    hidden_states: tuple[int, ...] | None = None  # published heads: the hidden states of the target that they read
    plan: str | os.PathLike[str] | None = None  # a profile of spectr tune, or "auto": chosen while running
    profile: str | os.PathLike[str] | None = None  # with plan="auto": the profile that the choice starts from

    def __post_init__(self) -> None:
        for name in ("drafts", "length", "nodes", "layers", "order", "vocabulary"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for state in self.hidden_states or ():
            whole("a number of hidden_states", state, 1)
        if self.tree is not None and not isinstance(self.tree, (list, tuple, Shape)):
            raise ArgumentError(f"tree must be a sequence of branching numbers, such as (4, 2, 1), got {self.tree!r}")
        if self.text is not None and not isinstance(self.text, str):
            raise ArgumentError(f"text must be a string that ngram learns from, got {self.text!r}")
        for name in ("plan", "profile"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise ArgumentError(f"{name} must be a file that spectr tune wrote, got {value!r}")
        if self.profile is not None and self.plan != AUTO:
            raise ArgumentError(
                "profile must be used with plan='auto', which starts from it; to use it unchanged, pass it as plan"
            )
        if self.plan is not None and (extra := self.some(*PLANNED)):
            raise ArgumentError(f"plan decides {', '.join(PLANNED)}; got {', '.join(extra)} as well: leave them out")

    @property
    def measured(self) -> Profile | None:
        """The profile that `plan` or `profile` names, read from its file; None if neither does."""
        path = self.profile if self.plan == AUTO else self.plan
        return None if path is None else read_profile(Path(path))

    def some(self, *names: str) -> dict[str, Any]:
        """Return the options among `names` that are set."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def only(self, names: Iterable[str]) -> "DraftOptions":
        """Return the options in `names` only."""
        return DraftOptions(**self.some(*names))

    def check(self, drafter: str, taken: Iterable[str]) -> None:
        """Raise ArgumentError for options that the drafter would ignore."""
        extra = [field.name for field in fields(self) if field.name not in taken and self.some(field.name)]
        if extra:
            raise ArgumentError(f"drafter {drafter!r} takes {', '.join(taken) or 'no options'}; got {', '.join(extra)}")
