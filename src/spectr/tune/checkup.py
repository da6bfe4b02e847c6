"""Signs, in a real run, that speculation does not do well, and what to do about each: in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.lm import LM
from spectr.metrics import Stats
from spectr.tune.costs import Trio, time_steps
from spectr.tune.study import Study
from spectr.verify import rule as named_rule

__all__ = ["Sign", "check_up", "signs_of"]

LEAST_EFFICIENCY = 1.5  # tokens per call
MOST_CORRECTIONS = 0.3  # of steps
MOST_GROWTH = 1.3  # of a call's time, from one node to `WIDE`
WIDE = 16  # nodes


@dataclass(frozen=True, slots=True)
class Sign:
    """A figure, whether it is a bad one, and what to do then."""

    name: str
    value: float
    limit: float
    bad: bool
    says: str  # what it means here
    advice: str

    def as_data(self) -> dict[str, Any]:
        """For JSON; no advice where none is needed."""
        advice = {"advice": self.advice} if self.bad else {}
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "bad": self.bad,
            "says": self.says,
        } | advice


def _efficiency(stats: Sequence[Stats]) -> Sign:
    value = sum(one.emitted for one in stats) / max(1, sum(one.steps for one in stats))
    return Sign(
        "block efficiency", value, LEAST_EFFICIENCY, value < LEAST_EFFICIENCY,
        f"{value:.2f} tokens per target call",
        "drafts are hardly accepted: take a drafter of the target's family, or train one (spectr train); where texts "
        "repeat their prompt, lookup; a lower temperature helps any of them; load(…, plan='auto') drafts only while it "
        "pays",
    )  # fmt: skip


def _corrections(stats: Sequence[Stats]) -> Sign:
    value = sum(one.corrections for one in stats) / max(1, sum(one.steps for one in stats))
    return Sign(
        "correction share", value, MOST_CORRECTIONS, value > MOST_CORRECTIONS,
        f"{value:.0%} of steps end because no child was right",
        "drafts go deeper than they are good for: shorten them (length), or put the nodes beside each other (more "
        "drafts); spectr tune finds which",
    )  # fmt: skip


def _growth(seconds: Sequence[float]) -> Sign:
    value = seconds[-1] / seconds[0]
    return Sign(
        "latency by nodes", value, MOST_GROWTH, value > MOST_GROWTH,
        f"a call on {WIDE} nodes takes {value:.2f} times a call on one",
        "latency grows with K: this machine computes where it should wait for memory. Keep trees small (nodes=4), use "
        "fewer rows at a time, and let spectr tune choose; on a CPU, speculate in float32",
    )  # fmt: skip


def signs_of(stats: Sequence[Stats], seconds: Sequence[float]) -> list[Sign]:
    """From what steps did, and from the seconds of calls on few and on many nodes."""
    return [_efficiency(stats), _corrections(stats), _growth(seconds)]


def _call_seconds(lm: LM, prompt: Sequence[int]) -> list[float]:
    """Of the target, on one node and on many; drafts are drawn at random, since only their number counts."""
    target, plan = lm.opened.target, Plan("race", 1, 1, WIDE)
    trio = Trio(target, named_drafter("random", plan=plan), named_rule("race"))
    timed = time_steps(trio, [plan], Study((tuple(prompt),)).long(1, 64, target.context), 8)
    return [one.verifying for one in timed]


def check_up(lm: LM, prompts: Sequence[str], tokens: int = 48, temperature: float = 1.0) -> list[Sign]:
    """Run a loaded model with its drafter on prompts, and look for signs."""
    study = Study(tuple(dict.fromkeys(tuple(lm.encode(prompt)) for prompt in prompts)), tokens, temperature)
    results = [lm.engine.generate(job)[0] for job in study.batches(1, 0)]
    return signs_of([result.stats for result in results], _call_seconds(lm, study.prompts[0]))
