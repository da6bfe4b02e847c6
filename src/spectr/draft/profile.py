"""Decoding plans, and the profile that `spectr tune` writes: which plan is fastest for a number of rows.

A profile names drafters and does not depend on how they are built.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from spectr.errors import ArgumentError, MismatchError

__all__ = ["PLAIN", "DecodingPlan", "MeasuredBatch", "Profile", "read_profile"]

PLAIN = 0
"""The index of plain decoding in every list of plans."""

FORMAT = 2


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """A drafter, a rule and the size of the tree. The default is plain decoding."""

    drafter: str = "none"
    rule: str = "race"
    drafts: int | None = None  # None: the drafter's default
    length: int | None = None
    nodes: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The sizes that are set, as options of a drafter."""
        sizes = {"drafts": self.drafts, "length": self.length, "nodes": self.nodes}
        return {name: value for name, value in sizes.items() if value is not None}

    def __str__(self) -> str:
        """The plan in words.

        >>> print(DecodingPlan("lookup", drafts=1, length=8, nodes=9), DecodingPlan(), sep="; ")
        lookup, drafts 1, length 8, nodes 9; plain decoding
        """
        if self.drafter == "none":
            return "plain decoding"
        rule = [] if self.rule == "race" else [self.rule]
        sizes = [f"{name} {value}" for name, value in self.options.items()]
        return ", ".join([Path(self.drafter).name, *rule, *sizes])


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """The fastest plan for batches of `rows` rows, and the tokens per second of every plan that was measured."""

    rows: int
    plan: int  # its index in the profile's plans
    rates: tuple[float | None, ...]  # by plan; None where it was not measured


@dataclass(frozen=True, slots=True)
class Profile:
    """Plans, plain decoding first, and a choice for each number of rows that was measured."""

    fingerprint: str  # of the target
    device: str
    versions: Mapping[str, str | None]
    plans: tuple[DecodingPlan, ...]
    choices: tuple[MeasuredBatch, ...]

    def __post_init__(self) -> None:
        if not self.plans or self.plans[PLAIN] != DecodingPlan():
            raise ArgumentError("the first plan of a profile must be plain decoding")
        if not self.choices or any(not 0 <= choice.plan < len(self.plans) for choice in self.choices):
            raise ArgumentError(f"a profile needs choices, each one of its {len(self.plans)} plans")
        if any(len(choice.rates) != len(self.plans) for choice in self.choices):
            raise ArgumentError("every choice of a profile needs a rate, or null, for each of its plans")
        chosen = [self.plans[choice.plan] for choice in self.choices]
        if len(set(chosen)) > 1 and any(plan.rule != "race" for plan in chosen):
            raise ArgumentError(
                "only rule race may have several plans; under another rule the text would depend on the rows"
            )

    @property
    def rule(self) -> str:
        """The rule of the chosen plans."""
        return self.plans[self.choices[0].plan].rule

    def at(self, rows: int) -> MeasuredBatch:
        """Return the choice for the nearest number of rows that was measured."""
        return min(self.choices, key=lambda choice: abs(choice.rows - rows))

    def candidates(self, most: int) -> tuple[DecodingPlan, ...]:
        """Return at most `most` plans to choose from while running: plain decoding, the chosen plans, then the fastest
        other plans with the same rule."""
        chosen = [self.plans[choice.plan] for choice in self.choices]
        rates = {plan: self.choices[0].rates[place] or 0.0 for place, plan in enumerate(self.plans)}
        others = sorted((plan for plan in self.plans if plan.rule == self.rule), key=lambda plan: -rates[plan])
        return tuple(dict.fromkeys([self.plans[PLAIN], *chosen, *others]))[:most]

    def check(self, fingerprint: str, device: str, drafter: Any) -> None:
        """Raise MismatchError unless the target, the kind of device and the drafter are those of the profile."""
        if self.fingerprint != fingerprint:
            raise MismatchError("the profile was made for another target; tune this one: spectr tune TARGET --out FILE")
        if self.device != device:
            raise MismatchError(f"the profile was measured on {self.device}, this model is on {device}; tune it there")
        measured = list(dict.fromkeys(plan.drafter for plan in self.plans[1:]))
        named = os.fspath(drafter) if isinstance(drafter, os.PathLike) else drafter
        if named != "auto" and [named] != measured:
            raise MismatchError(
                f"the profile was made for drafter {', '.join(measured) or 'none'}, got {named!r}; leave the drafter "
                "out, or tune with it: spectr tune --drafters …"
            )

    def as_data(self) -> dict[str, Any]:
        """Return the profile as data for JSON."""
        return {"format": FORMAT, **asdict(self)}


def _from(kind: type, data: Mapping[str, Any]) -> Any:
    """Make a dataclass from JSON; lists become tuples."""
    values = {field.name: data[field.name] for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def read_profile(path: Path) -> Profile:
    """Read a profile that `spectr tune --out` wrote."""
    if not path.is_file():
        raise ArgumentError(f"plan must be auto or a profile that spectr tune wrote, and there is no file {path}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise ValueError(f"its format must be {FORMAT}, got {data.get('format')}")
        plans = [_from(DecodingPlan, plan) for plan in data["plans"]]
        choices = [_from(MeasuredBatch, choice) for choice in data["choices"]]
        profile: Profile = _from(Profile, {**data, "plans": plans, "choices": choices})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is not a profile that spectr tune wrote: {error}; tune again") from None
    return profile
