"""Warning signs of bad speculation: each limit from both sides, and a real run."""

import pytest

from spectr.engine.metrics import Stats
from spectr.lm import LM
from spectr.tune.checkup import check_up, signs_of


@pytest.mark.parametrize(
    ("stats", "seconds", "bad"),
    [
        (Stats(steps=100, emitted=149, corrections=30), [0.030, 0.038], {"block efficiency"}),
        (Stats(steps=100, emitted=150, corrections=31), [0.030, 0.030], {"correction share"}),
        (Stats(steps=100, emitted=250, corrections=10), [0.030, 0.0391], {"latency by nodes"}),
        (Stats(steps=100, emitted=250, corrections=30), [0.030, 0.0389], set()),
        (
            Stats(steps=100, emitted=100, corrections=99),
            [0.030, 0.085],
            {"block efficiency", "correction share", "latency by nodes"},
        ),
    ],
)
def test_a_sign_is_bad_beyond_its_limit(stats: Stats, seconds: list[float], bad: set[str]) -> None:
    signs = signs_of([stats], seconds)
    assert {sign.name for sign in signs if sign.bad} == bad
    for sign in signs:
        assert ("advice" in sign.as_data()) == sign.bad
        assert sign.advice


def test_signs_of_several_texts_are_signs_of_all() -> None:
    signs = signs_of([Stats(steps=10, emitted=30), Stats(steps=30, emitted=30)], [1.0, 1.0])
    assert signs[0].value == pytest.approx(1.5)


def test_a_real_run(lm: LM) -> None:
    signs = {sign.name: sign for sign in check_up(lm, ["the quick brown fox", "tides rise"], tokens=8)}
    assert signs["block efficiency"].value == 1  # nothing is drafted, and it says so
    assert signs["block efficiency"].bad
    assert signs["correction share"].value == 0
    assert signs["latency by nodes"].value > 0
