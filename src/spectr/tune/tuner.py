"""Measures plans on the loop that users run, round by round, and saves every measurement in the profile's file."""

import hashlib
import json
import math
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from spectr.draft import Plan
from spectr.draft.adaptive import SwitchingDrafter, replanned
from spectr.draft.candidate_plans import candidate_plans
from spectr.draft.options import DraftOptions
from spectr.draft.profile import PLAIN, DecodingPlan, MeasuredBatch, Profile
from spectr.draft.traits import DrafterTraits
from spectr.errors import ArgumentError, MismatchError, SpectrError
from spectr.lm import LM
from spectr.models.trained import fingerprint
from spectr.pairing import drafters_for, pair
from spectr.tune.halving import ROUNDS, Measurement, Result, choose, next_round, results, rungs
from spectr.types import Drafter
from spectr.verify import rule as named_rule
from spectr.version import installed

__all__ = ["Tuner", "Workload", "plans_for", "rows_label", "with_drafter"]

_WARM = 8  # tokens of the warm-up if no graphs have to be captured
_SEED = 1_000_003  # distance between the seeds of two rounds

Say = Callable[[str], None]


def with_drafter(lm: LM, drafter: Drafter, rule: str = "race") -> LM:
    """Return the loaded model with another drafter and rule. Steps are captured if those of `lm` are.

    The prefix cache is off, so that no plan benefits from earlier runs."""
    return LM(lm.engine.with_parts(drafter=drafter, rule=named_rule(rule), reuses_prefixes=False), lm.opened)


def plans_for(lm: LM, drafters: Sequence[str], rules: Sequence[str], say: Say) -> tuple[DecodingPlan, ...]:
    """Return plain decoding and the candidate plans of every drafter with every rule it fits.

    Combinations that do not fit are reported to `say` with the reason."""
    cards = [named_rule(rule).card for rule in rules]
    for card in cards:
        if not card.lossless:
            raise ArgumentError(f"rules must be lossless, and {card.name!r} is not; tune chooses by speed only")
    if "none" in drafters:
        raise ArgumentError("plain decoding is always measured; give at least one drafter in place of none")
    on_cpu, plans = lm.opened.target.device.type == "cpu", [DecodingPlan()]
    for name in drafters:
        base = pair(name, lm.opened, cards[0], DraftOptions())
        base = base.drafters[-1] if isinstance(base, SwitchingDrafter) else base  # its plans are measured individually
        known = "lookup" if base.name == "lookup" else name  # auto may stand for it
        for card in cards:
            siblings = card.draws or card.siblings[0]
            made = replanned(base, Plan(siblings, 1, 1)) if DrafterTraits(base).plan is not None else base
            try:
                with_drafter(lm, made, card.name)  # raises if the drafter does not fit the rule
            except MismatchError as error:
                say(f"left out {name} with rule {card.name}: {error}")
            else:
                plans += candidate_plans(known, made, card, on_cpu=on_cpu)
    if len(plans) == 1:
        raise MismatchError(
            f"no rule of {', '.join(rules)} fits a drafter of {', '.join(drafters)}; race fits every drafter"
        )
    return tuple(dict.fromkeys(plans))


@dataclass(frozen=True, slots=True)
class Workload:
    """The texts that every plan generates: at most `tokens` tokens, from the same prompts with the same seeds."""

    prompts: tuple[str, ...]
    tokens: int = 48
    settings: dict[str, Any] = field(default_factory=dict)  # settings of generate, such as the temperature

    def generate(self, lm: LM, rows: int, number: int, tokens: int | None = None) -> tuple[int, float]:
        """Generate the batch of one round; return its number of tokens and its seconds."""
        prompts = [self.prompts[(number * rows + row) % len(self.prompts)] for row in range(rows)]
        seeds = [number * _SEED + row for row in range(rows)]
        start = time.perf_counter()
        outputs = lm.generate(prompts, tokens or self.tokens, seeds=seeds, **self.settings)
        return sum(len(output.tokens) for output in outputs), time.perf_counter() - start


@dataclass(slots=True)
class Tuner:
    """The plans, their workload, the batch sizes, and the measurements so far."""

    lm: LM  # as `spectr.load` returns it
    plans: tuple[DecodingPlan, ...]
    workload: Workload
    rows: tuple[int, ...]
    path: Path | None = None  # the profile; an unfinished run in it is continued
    found: list[Measurement] = field(default_factory=list)
    finished: bool = False

    def resume(self) -> None:
        """Load the measurements of the file, if it exists and has a run with the same settings."""
        if self.path is None or not self.path.exists():
            return
        try:
            run = json.loads(self.path.read_text(encoding="utf-8"))["run"]
            known, rows = run["settings"], [Measurement(*one) for one in run["measurements"]]
        except (OSError, KeyError, TypeError, ValueError) as error:
            why = f"{self.path}: {error!r}"
            raise ArgumentError(f"--out must be a new file, or one that spectr tune wrote; {why}") from None
        mine = json.loads(json.dumps(self._settings()))
        if differing := [name for name in mine if known.get(name) != mine[name]]:
            raise ArgumentError(
                f"{self.path} holds a run with another {', '.join(differing)}; choose another --out, or delete it"
            )
        self.found = rows

    @property
    def missing(self) -> int:
        """The number of remaining measurements, if no plan is left out."""
        return len(self.rows) * sum(ROUNDS * (1 + plans) for plans in rungs(len(self.plans))) - len(self.found)

    def run(self, minutes: float | None, say: Say, tick: Callable[[], None]) -> None:
        """Measure until every batch size is complete or its share of the minutes has passed.

        Every measurement is saved immediately."""
        drafters = drafters_for(self.plans, self.lm.opened, DraftOptions())
        begun, complete = time.monotonic(), 0
        for number, rows in enumerate(self.rows, start=1):
            until = math.inf if minutes is None else begun + 60 * minutes * number / len(self.rows)
            complete += self._measure(rows, drafters, until, say, tick)
        self.finished = complete == len(self.rows)
        self.save()

    def _measure(
        self, rows: int, drafters: Sequence[Drafter], until: float, say: Say, tick: Callable[[], None]
    ) -> bool:
        """Measure one batch size; return whether all rounds were done before `until`. The first round is always
        measured."""
        lms, left_out = dict[int, LM](), set[int]()
        while (turn := next_round(self.of(rows), len(self.plans), left_out)) is not None:
            number, missing = turn
            if number % ROUNDS == 0:
                say(f"{rows_label(rows)}: rounds {number + 1} to {number + ROUNDS}, plans left: {len(missing)}")
            for plan in missing:
                if number and time.monotonic() > until:
                    return False
                try:
                    lms[plan] = lms.get(plan) or self._warmed_up(plan, drafters[plan], rows)
                except (SpectrError, torch.OutOfMemoryError) as error:
                    if plan == PLAIN:
                        raise
                    say(f"left out {self.plans[plan]} with {rows_label(rows)}: {error}")
                    left_out.add(plan)
                    continue
                self.found.append(Measurement(rows, number, plan, *self.workload.generate(lms[plan], rows, number)))
                self.save()
                tick()
        return True

    def _warmed_up(self, plan: int, drafter: Drafter, rows: int) -> LM:
        """Return the loaded model with this plan, after an untimed generation that captures graphs."""
        planned = with_drafter(self.lm, drafter, self.plans[plan].rule)
        lm = LM(planned.engine.with_parts(rows=rows), planned.opened)
        self.workload.generate(lm, rows, 0, None if lm.engine.parts.captures else _WARM)
        return lm

    def of(self, rows: int) -> list[Measurement]:
        """Return the measurements at this batch size."""
        return [one for one in self.found if one.rows == rows]

    def results(self) -> dict[int, list[Result]]:
        """Return the results of all plans by batch size, without sizes at which plain decoding was not measured."""
        found = {rows: results(self.of(rows)) for rows in self.rows}
        return {rows: several for rows, several in found.items() if several}

    def profile(self) -> Profile | None:
        """Return the profile for `spectr.load`, or None if too little was measured."""
        found = self.results()
        if not found:
            return None
        rates = {rows: {one.plan: one.rate for one in several} for rows, several in found.items()}
        choices = tuple(
            MeasuredBatch(rows, plan, tuple(rates[rows].get(place) for place in range(len(self.plans))))
            for rows, plan in choose(found, self.plans).items()
        )
        net = self.lm.opened.target.model
        return Profile(fingerprint(net), net.device.type, _versions(), self.plans, choices)

    def as_data(self) -> dict[str, Any]:
        """Return the profile and the measurements behind it as JSON data."""
        profile = self.profile()
        return {
            "what": "the fastest plan for each number of rows, measured by spectr tune; spectr.load takes it as plan",
            **({} if profile is None else profile.as_data()),
            "run": {
                "settings": self._settings(),
                "finished": self.finished,
                "results": [asdict(one) for several in self.results().values() for one in several],
                "measurements": [astuple(one) for one in self.found],
            },
        }

    def save(self) -> None:
        """Write the file atomically, so that it is complete whenever the process ends."""
        if self.path is None or not self.found:
            return
        text = json.dumps(self.as_data(), indent=1, ensure_ascii=False, allow_nan=False)
        text = re.sub(r"\[\s+([^\[\]{}\"]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        aside = self.path.with_name(f"{self.path.name}.new")
        try:
            aside.write_text(text + "\n", encoding="utf-8")
            aside.replace(self.path)
        except OSError as error:
            raise ArgumentError(f"cannot write {self.path}: {error.strerror or error}; choose another --out") from None

    def _settings(self) -> dict[str, Any]:
        """Return the settings that must be equal for a run to be continued."""
        net, work = self.lm.opened.target.model, self.workload
        return {
            "target": fingerprint(net),
            "device": str(net.device),
            "dtype": str(net.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "versions": _versions(),
            "plans": [asdict(plan) for plan in self.plans],
            "rows": self.rows,
            "prompts": hashlib.sha256(repr(work.prompts).encode()).hexdigest()[:16],
            "tokens": work.tokens,
            "settings": work.settings,
        }


def rows_label(rows: int) -> str:
    """Describe a batch size.

    >>> rows_label(4)
    '4 rows at a time'
    """
    return f"{rows} row{'s' * (rows > 1)} at a time"


def _versions() -> dict[str, str | None]:
    packages = {name: installed(name) for name in ("spectr", "torch", "transformers")}
    return {"python": platform.python_version(), **packages}
