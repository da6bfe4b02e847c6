"""Successive halving as a function of given measurements; nothing is timed."""

import random
from collections.abc import Callable, Sequence

import pytest

from spectr.draft.profile import DecodingPlan
from spectr.tune.halving import ROUNDS, Measurement, choose, next_round, results, rungs

PLANS = (DecodingPlan(), *(DecodingPlan("random", nodes=2 + size) for size in range(7)))
RATES = (100.0, 80.0, 95.0, 130.0, 120.0, 60.0, 110.0, 99.0)


def run(
    rates: Sequence[float], noise: float = 0.0, drift: Callable[[int], float] = lambda _: 1.0, rows: int = 1
) -> list[Measurement]:
    """Run every round of the halving on a machine with these rates."""
    draws, found = random.Random(5), list[Measurement]()
    while (turn := next_round(found, len(rates))) is not None:
        number, plans = turn
        for plan in plans:
            rate = rates[plan] * drift(number) * (1 + noise * draws.uniform(-1, 1))
            found.append(Measurement(rows, number, plan, 48, 48 / rate))
    return found


def test_the_fastest_plan_is_found_with_few_measurements() -> None:
    found = run(RATES, noise=0.05)
    assert choose({1: results(found)}, PLANS) == {1: 3}
    assert len(found) == sum(ROUNDS * (1 + left) for left in rungs(len(RATES))) == 54
    by_plan = {plan: sum(one.plan == plan for one in found) for plan in range(len(RATES))}
    assert by_plan[0] == by_plan[3] == 4 * ROUNDS  # plain decoding is in every round, as the winner is
    assert by_plan[5] == ROUNDS  # the slowest is dropped first


def test_every_round_begins_with_another_plan() -> None:
    found = run(RATES)
    firsts = [next(one.plan for one in found if one.round == number) for number in range(ROUNDS)]
    assert firsts == [0, 1, 2]


def test_a_machine_that_slows_down_slows_down_all() -> None:
    """Ratios are taken within a round, so halving the speed from the fourth round on changes nothing."""
    found = run(RATES, drift=lambda number: 1.0 if number < 3 else 0.5)
    winner = next(one for one in results(found) if one.plan == 3)
    assert winner.ratio == pytest.approx(1.3)
    assert winner.interval == pytest.approx((1.3, 1.3))
    assert choose({1: results(found)}, PLANS) == {1: 3}


@pytest.mark.parametrize("rates", [(100, 99, 80), (100, 100, 90), (100, 104, 90)])
def test_plain_decoding_is_chosen_where_no_gain_is_sure(rates: tuple[float, ...]) -> None:
    """The third case gains 4 % with a noise of 10 %, so its interval reaches below 1."""
    assert choose({1: results(run(rates, noise=0.1))}, PLANS[:3]) == {1: 0}


def test_too_few_rounds_choose_plain_decoding() -> None:
    found = [one for one in run(RATES) if one.round < ROUNDS - 1]
    assert choose({1: results(found)}, PLANS) == {1: 0}


def test_a_run_goes_on_from_its_measurements() -> None:
    """Interrupted at any point, also within a round, the run continues with the same measurements."""
    whole = run(RATES, noise=0.05)
    for cut in range(1, len(whole)):
        turn = next_round(whole[:cut], len(RATES))
        assert turn is not None
        number, plans = turn
        assert number == whole[cut].round
        assert plans == [one.plan for one in whole[cut:] if one.round == number]


def test_later_rounds_bring_no_plan_back() -> None:
    """A plan that is fast in three rounds and slow afterwards does not bring dropped plans back."""
    found = list[Measurement]()
    while (turn := next_round(found, 5)) is not None:
        for plan in turn[1]:
            rate = (100.0, 200.0 if turn[0] < ROUNDS else 1.0, 150.0, 140.0, 130.0)[plan]
            found.append(Measurement(1, turn[0], plan, 48, 48 / rate))
    assert len(found) == sum(ROUNDS * (1 + left) for left in rungs(5))
    assert choose({1: results(found)}, PLANS[:5]) == {1: 2}


def test_a_plan_that_cannot_run_is_not_asked_for() -> None:
    turn = next_round([], 4, left_out={2})
    assert turn == (0, [0, 1, 3])
    assert next_round([], 2, left_out={1}) == (0, [0])


def test_the_interval_is_of_the_median() -> None:
    """Twelve rounds: the third smallest and the third largest; three rounds: the range."""
    ratios = [1.0 + 0.01 * number for number in range(12)]
    for count, low, high in ((12, 1.02, 1.09), (3, 1.0, 1.02), (1, 1.0, 1.0)):
        found = [Measurement(1, number, 0, 100, 1.0) for number in range(count)]
        found += [Measurement(1, number, 1, 100, 1 / ratios[number]) for number in range(count)]
        one = results(found)[1]
        assert one.interval == pytest.approx((low, high))
        assert one.rounds == count


def test_a_plan_without_plain_decoding_beside_it_says_nothing() -> None:
    assert results([Measurement(1, 0, 1, 100, 1.0)]) == []
    assert results([]) == []


def test_each_number_of_rows_has_its_own_plan_under_the_race() -> None:
    many = (100.0, 120.0, 70.0, 60.0, 90.0, 60.0, 95.0, 99.0)
    found = {1: results(run(RATES)), 16: results(run(many, rows=16))}
    assert choose(found, PLANS) == {1: 3, 16: 1}


def test_another_rule_has_one_plan_for_all_rows() -> None:
    """Otherwise its text would depend on the batch; it is chosen only if its total gain is larger."""
    plans = (DecodingPlan(), DecodingPlan("random"), DecodingPlan("random", "optimal", 2, 2))
    one, many = results(run((100.0, 110.0, 150.0))), results(run((100.0, 105.0, 90.0), rows=8))
    assert choose({1: one, 8: many}, plans) == {1: 2, 8: 2}
    many = results(run((100.0, 105.0, 60.0), rows=8))
    assert choose({1: one, 8: many}, plans) == {1: 1, 8: 1}
