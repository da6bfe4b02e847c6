"""What `spectr tune` found, as a file that `spectr.load` takes: ways to decode by name and number, what each of them is
expected to give and to cost for so many rows, and which is best. Knows not how a drafter is built."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from spectr.draft.chooser import PLAIN, Prospect
from spectr.errors import ArgumentError, MismatchError

__all__ = ["Choice", "Profile", "Way", "check_plan", "read_profile"]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to decode; the default drafts nothing."""

    drafter: str = "none"
    rule: str = "race"
    drafts: int | None = None  # as in a plan; None: as the drafter comes
    length: int | None = None
    nodes: int | None = None
    spread: float = 1.0  # times what pruning usually takes

    @property
    def plain(self) -> bool:
        """Nothing is drafted."""
        return self.drafter == "none"

    @property
    def options(self) -> dict[str, Any]:
        """What is said to the drafter."""
        given = {"drafts": self.drafts, "length": self.length, "nodes": self.nodes}
        return {name: value for name, value in given.items() if value is not None}

    def __str__(self) -> str:
        """In words.

        >>> print(Way("lookup", drafts=2, length=4, nodes=8), Way(), sep="; ")
        lookup, race, drafts 2, length 4, nodes 8; plain decoding
        """
        if self.plain:
            return "plain decoding"
        spread = [f"spread ×{self.spread:g}"] if self.spread != 1 else []
        drafter = Path(self.drafter).name
        return ", ".join([drafter, self.rule, *(f"{name} {value}" for name, value in self.options.items()), *spread])


@dataclass(frozen=True, slots=True)
class Choice:
    """For batches of so many rows: the best way, and what every way of the menu is expected to do."""

    rows: int
    index: int
    prospects: tuple[Prospect, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A menu of ways, plain decoding first, and a choice for each number of rows that was measured."""

    fingerprint: str  # of the target
    device: str
    menu: tuple[Way, ...]
    choices: tuple[Choice, ...]

    def __post_init__(self) -> None:
        counts = {len(self.menu), *(len(choice.prospects) for choice in self.choices)}
        if not self.choices or not self.menu or not self.menu[PLAIN].plain or len(counts) > 1:
            raise ArgumentError("a profile needs a menu that begins with plain decoding, and prospects for all of it")
        if any(not 0 <= choice.index < len(self.menu) for choice in self.choices):
            raise ArgumentError(f"a choice must lie in the menu of {len(self.menu)} ways")
        if len({way.rule for way in self.menu if not way.plain}) > 1:
            raise ArgumentError("the ways of a profile must have one rule, since the engine has one")

    @property
    def rule(self) -> str:
        """Of all ways that draft."""
        return next((way.rule for way in self.menu if not way.plain), "race")

    @property
    def drafters(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(way.drafter for way in self.menu if not way.plain))

    def at(self, rows: int) -> Choice:
        """The choice for the nearest number of rows."""
        return min(self.choices, key=lambda choice: abs(choice.rows - rows))

    def check(self, fingerprint: str, device: str, drafter: Any) -> None:
        """Refuse to serve another target, another kind of device, or another drafter than was measured."""
        if self.fingerprint != fingerprint:
            raise MismatchError("the profile was made for another target; tune this one: spectr tune TARGET --out FILE")
        if self.device != device:
            raise MismatchError(f"the profile was measured on {self.device}, this model is on {device}; tune it there")
        named = os.fspath(drafter) if isinstance(drafter, os.PathLike) else drafter
        if named != "auto" and [named] != self.drafters:
            found = ", ".join(self.drafters) or "none"
            raise MismatchError(
                f"the profile was made for drafter {found}, got {named!r}; leave it out, or tune with it"
            )

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass; a profile may say more."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}


def _choice(data: Mapping[str, Any]) -> Choice:
    prospects: Sequence[Mapping[str, Any]] = data["prospects"]
    return Choice(int(data["rows"]), int(data["index"]), tuple(Prospect(p["tokens"], p["cost"]) for p in prospects))


def check_plan(plan: Any, profile: Any) -> None:
    """What `load` is told: a profile, "auto", or "auto" and a profile to begin with."""
    for name, value in (("plan", plan), ("profile", profile)):
        if value is not None and not isinstance(value, str | os.PathLike):
            raise ArgumentError(f"{name} must be a file that spectr tune wrote, got {value!r}")
    if profile is not None and plan != "auto":
        raise ArgumentError("profile is what plan='auto' begins with; to use a profile as it is, give it as plan")


def read_profile(path: Path) -> Profile:
    """A profile as `spectr tune --out` writes it."""
    if not path.is_file():
        raise ArgumentError(f"plan must be auto, or a profile that spectr tune wrote; there is no file {path}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        menu = tuple(Way(**_known(Way, way)) for way in data["menu"])
        return Profile(data["fingerprint"], data["device"], menu, tuple(map(_choice, data["choices"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is not a profile that spectr tune wrote: {error}; tune again") from None
