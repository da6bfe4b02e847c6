"""The selection of drafters at run time, on simulated speeds without a clock."""

import random
from dataclasses import dataclass

import pytest

from spectr.draft.selector import GRACE, SHARE, DrafterSelector


@dataclass(frozen=True)
class Speed:
    """The probability that a draft token of a chain is accepted, and the seconds of a step."""

    chances: tuple[float, ...]
    seconds: float

    def draw(self, draws: random.Random) -> tuple[float, float]:
        tokens = 1
        for chance in self.chances:
            if draws.random() >= chance:
                break
            tokens += 1
        return tokens, self.seconds * draws.uniform(0.95, 1.05)


PLAIN = Speed((), 1.0)
USEFUL = (
    PLAIN,
    Speed((0.8,), 1.2),
    Speed((0.8, 0.8, 0.8), 1.5),
    Speed((0.3,), 1.6),
)  # the third drafter is the fastest
USELESS = (PLAIN, Speed((0.05,), 1.2), Speed((0.05, 0.05, 0.05), 1.5), Speed((0.05,), 2.5))


def run(selector: DrafterSelector, speeds: tuple[Speed, ...], steps: int, seed: int) -> tuple[list[int], float, float]:
    """Return the drafters that were chosen, the tokens and the seconds."""
    draws, chosen, tokens, seconds = random.Random(seed), list[int](), 0.0, 0.0
    for _ in range(steps):
        drafter = selector.choose()
        gave, took = speeds[drafter].draw(draws)
        selector.observe(drafter, gave, took)
        chosen.append(drafter)
        tokens, seconds = tokens + gave, seconds + took
    return chosen, tokens, seconds


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_plan_is_found(seed: int) -> None:
    """After 300 steps the fastest drafter is used in more than 80 % of steps."""
    chosen, tokens, seconds = run(DrafterSelector(4), USEFUL, 600, seed)
    assert chosen[300:].count(2) > 0.8 * 300
    assert tokens / seconds > 1.5  # the best drafter alone reaches 1.97, plain decoding 1
    assert set(chosen) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [50, 200, 1000])
def test_little_is_lost_where_drafts_are_worth_nothing(seed: int, steps: int) -> None:
    """The time lost to useless drafts is at most the budget: a share of the time, the grace, and the one step that
    exceeds them; times are accurate to 5 %."""
    chosen, tokens, seconds = run(DrafterSelector(4), USELESS, steps, seed)
    assert seconds - tokens < 1.05 * (SHARE * seconds + GRACE + 2.5) + 0.01 * seconds
    assert chosen.count(0) > 0.7 * steps


@pytest.mark.parametrize("seed", range(5))
def test_a_change_is_noticed(seed: int) -> None:
    """When drafts become useful or useless, the selector changes its drafter within 400 steps."""
    selector = DrafterSelector(4)
    for speeds, best in ((USELESS, 0), (USEFUL, 2), (USELESS, 0)):
        chosen, _, _ = run(selector, speeds, 600, seed)
        assert chosen[400:].count(best) > 0.7 * 200


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_steps_that_are_observed_late_do_not_end_the_search(length: int) -> None:
    """On a GPU a step is read after the next one was launched, and the last two of a text together."""
    selector, draws, chosen = DrafterSelector(4), random.Random(0), list[int]()
    for _ in range(600 // length):
        launched = list[int]()
        for _ in range(length):
            launched.append(selector.choose())
            for drafter in launched[-2:-1]:
                selector.observe(drafter, *USEFUL[drafter].draw(draws))
        selector.observe(launched[-1], *USEFUL[launched[-1]].draw(draws))
        chosen += launched
    assert set(chosen) == {0, 1, 2, 3}
    assert chosen[300:].count(2) > 0.6 * len(chosen[300:])


def test_the_start_is_used_first() -> None:
    assert DrafterSelector(4, start=2).choose() == 2
    assert DrafterSelector(4).choose() == 0


def test_one_slow_step_does_not_rule_out_a_plan() -> None:
    """A single slow step does not change the measured rate of a drafter for long."""
    selector = DrafterSelector(2, start=1)
    for step in range(40):
        drafter = selector.choose()
        selector.observe(drafter, 1.0 if drafter == 0 else 2.0, 30.0 if step == 10 else 1.0)
    assert selector.best == 1
    assert selector.rate(1) == pytest.approx(2.0)


def test_a_single_plan_is_always_chosen() -> None:
    chosen, _, _ = run(DrafterSelector(1), (PLAIN,), 20, 0)
    assert set(chosen) == {0}
