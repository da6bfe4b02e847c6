"""Warning signs, in a real run, that speculation does not work well, and advice for each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.engine.metrics import Stats
from spectr.lm import LM
from spectr.tune.tuner import with_drafter

__all__ = ["Sign", "check_up", "signs_of"]

LEAST_EFFICIENCY = 1.5  # tokens per call
MOST_CORRECTIONS = 0.3  # share of steps
MOST_GROWTH = 1.3  # ratio of a call's time on `WIDE` nodes to that on one
WIDE = 16  # nodes
_TURNS = 3  # timings of each tree, of which the fastest counts


@dataclass(frozen=True, slots=True)
class Sign:
    """A measured value, whether it is bad, and what to do then."""

    name: str
    value: float
    limit: float
    bad: bool
    says: str  # the value as a sentence
    advice: str

    def as_data(self) -> dict[str, Any]:
        """Return the sign as JSON data, with advice only if the value is bad."""
        return {name: value for name, value in asdict(self).items() if name != "advice" or self.bad}


def signs_of(stats: Sequence[Stats], seconds: Sequence[float]) -> list[Sign]:
    """Return the signs, given statistics of texts and the seconds of a call on one node and on `WIDE` nodes."""
    steps = max(1, sum(one.steps for one in stats))
    efficiency = sum(one.emitted for one in stats) / steps
    corrections = sum(one.corrections for one in stats) / steps
    growth = seconds[-1] / seconds[0]
    return [
        Sign(
            "block efficiency", efficiency, LEAST_EFFICIENCY, efficiency < LEAST_EFFICIENCY,
            f"{efficiency:.2f} tokens per target call",
            "few drafts are accepted: use a drafter of the target's family, or train one (spectr train); use lookup if "
            "texts repeat their prompt; a lower temperature helps every drafter; spectr tune measures the effect",
        ),
        Sign(
            "correction share", corrections, MOST_CORRECTIONS, corrections > MOST_CORRECTIONS,
            f"{corrections:.0%} of steps end because no child was accepted",
            "drafts are too long for their acceptance: make them shorter (length) or trees wider (drafts); spectr tune "
            "measures which is better",
        ),
        Sign(
            "latency by nodes", growth, MOST_GROWTH, growth > MOST_GROWTH,
            f"a call on {WIDE} nodes takes {growth:.2f} times a call on one",
            "every node costs time, because a call is limited by computation rather than memory: keep trees small "
            "(nodes=4), use fewer rows at a time, and let spectr tune choose; on a CPU, speculate in float32",
        ),
    ]  # fmt: skip


def _call_seconds(lm: LM, prompt: str) -> list[float]:
    """Return the seconds of a target call on one node and on `WIDE` nodes. Drafts are random: only their number
    matters."""
    wide = named_drafter("random", plan=Plan("race", 1, 1, WIDE))
    lms, found = (
        [with_drafter(lm, drafter) for drafter in (named_drafter("none"), wide)],
        [list[float](), list[float]()],
    )
    for turn in range(_TURNS + 1):
        for one, seconds in zip(lms, found, strict=True):
            stats = one.generate(prompt, 16, seed=turn).stats
            seconds.append(stats.seconds["target"] / stats.steps)
    return [min(seconds[1:]) for seconds in found]  # the first turn warms up


def check_up(lm: LM, prompts: Sequence[str], tokens: int = 48, **settings: Any) -> list[Sign]:
    """Run a loaded model with its drafter on prompts and return the signs. `settings` are those of `generate`."""
    stats = [lm.generate(prompt, tokens, seed=seed, **settings).stats for seed, prompt in enumerate(prompts)]
    return signs_of(stats, _call_seconds(lm, prompts[0]))
