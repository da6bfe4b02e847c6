"""The time of a text: moments by recursion against all sequences of calls, and against the renewal theorem."""

import math
from collections import defaultdict

import pytest

from spectr.errors import ArgumentError
from spectr.theory import call_moments, expected_tokens, text_time, token_law, trade_off


def law_of_calls(acceptance: list[float], tokens: int) -> dict[int, float]:
    """Return the law of the number of calls, call by call."""
    going, done, calls = {0: 1.0}, defaultdict[int, float](float), 0
    while going:
        calls += 1
        new: dict[int, float] = defaultdict(float)
        for have, chance in going.items():
            for n, p in enumerate(token_law(acceptance), start=1):
                if have + n >= tokens:
                    done[calls] += chance * p
                else:
                    new[have + n] += chance * p
        going = dict(new)
    return done


@pytest.mark.parametrize("acceptance", [[], [0.5], [0.8, 0.3, 0.9], [1.0, 0.0], [0.9] * 5])
@pytest.mark.parametrize("tokens", [1, 2, 7, 20])
def test_moments(acceptance: list[float], tokens: int) -> None:
    law = law_of_calls(acceptance, tokens)
    mean = sum(n * p for n, p in law.items())
    variance = sum((n - mean) ** 2 * p for n, p in law.items())
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert call_moments(acceptance, tokens) == pytest.approx((mean, variance), abs=1e-10)
    time = text_time(acceptance, 0.1, tokens)
    assert time.mean == pytest.approx((1 + 0.1 * len(acceptance)) * mean, abs=1e-10)
    assert time.deviation == pytest.approx((1 + 0.1 * len(acceptance)) * math.sqrt(variance), abs=1e-7)


def test_nothing_varies_without_doubt() -> None:
    assert call_moments([1.0, 1.0], 9) == (3.0, 0.0)
    assert call_moments([0.0, 1.0], 9) == (9.0, 0.0)
    assert call_moments([0.5], 0) == (0.0, 0.0)


@pytest.mark.parametrize("gamma", [1, 4, 12])
def test_a_long_text_follows_the_renewal_theorem(gamma: int) -> None:
    """Differences of moments between two long texts are the rates, up to a geometrically small error."""
    short, long = (text_time([0.8] * gamma, 0.05, tokens) for tokens in (2000, 3000))
    assert (long.mean - short.mean) / 1000 == pytest.approx(short.rate, rel=1e-10)
    assert (long.deviation**2 - short.deviation**2) / 1000 == pytest.approx(short.spread, rel=1e-8)
    assert short.rate == pytest.approx((1 + 0.05 * gamma) / expected_tokens(0.8, gamma), rel=1e-12)


def test_longer_drafts_mean_fewer_calls_and_more_spread() -> None:
    times = trade_off(0.8, 0.05, 256, range(1, 20))
    calls = [time.calls for time in times]
    assert calls == sorted(calls, reverse=True)
    assert [time.gamma for time in times] == list(range(1, 20))
    assert min(times, key=lambda time: time.rate).gamma == 8
    late = [time.deviation for time in times[7:]]
    assert late == sorted(late)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="tokens must be at least 1"):
        text_time([0.5], 0.1, 0)
    with pytest.raises(ArgumentError, match="alpha must be a probability"):
        trade_off(2.0, 0.1, 8, (1,))
