"""Grammars of numbers between bounds admit every such number with a few digits, and no other."""

from decimal import Decimal
from itertools import product

import pytest
from tests.grammar.conftest import matches

from spectr.grammar.ebnf import prune_rules
from spectr.grammar.numbers import Bounds, integers, multiples, numbers

ENDS = [
    None,
    *map(Decimal, ("-1000", "-101", "-20", "-7", "-1", "0", "1", "5", "9", "10", "13", "99", "100", "734", "1000")),
]


PAIRS = [(low, high) for low in ENDS for high in ENDS if None in (low, high) or low <= high]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("low", "high"),
    [pytest.param(*pair, marks=pytest.mark.slow if at % 2 else ()) for at, pair in enumerate(PAIRS)],
)
def test_integers_between_bounds(low: Decimal | None, high: Decimal | None) -> None:
    for above, below in product((False, True), repeat=2):
        body = integers(Bounds(low, high, above, below))
        for number in range(-1111, 1112, 1 if low is not None and high is not None and high - low < 120 else 7):
            inside = (low is None or low < number or (low == number and not above)) and (
                high is None or number < high or (high == number and not below)
            )
            assert matches(body, str(number)) == inside, (low, above, high, below, number)
        for text in ("", "-", "01", "-01", "1.0", "+1", "1e1"):
            assert not matches(body, text)


FRACTIONS = [None, *map(Decimal, ("-2.5", "-1", "-0.25", "0", "0.3", "0.995", "1", "1.05", "10.5"))]
TEXTS = [
    sign + whole + places
    for sign in ("", "-")
    for whole in ("0", "1", "2", "9", "10", "11", "20")
    for places in ("", ".0", ".00", ".05", ".050", ".1", ".2", ".25", ".249", ".2501", ".3", ".30", ".31", ".5", ".6",
                   ".9", ".99", ".994", ".995", ".9951", ".996", ".049", ".0501", ".51")
]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high"),
    [(low, high) for low in FRACTIONS for high in FRACTIONS if None in (low, high) or low <= high],  # type: ignore[operator]
)
def test_numbers_between_bounds(low: Decimal | None, high: Decimal | None) -> None:
    if low is None and high is None:
        pytest.skip("no bounds")
    for above, below in product((False, True), repeat=2):
        body = numbers(Bounds(low, high, above, below))
        for text in TEXTS:
            number = Decimal(text)
            if text.startswith("-") and number == 0:
                continue  # minus zero is not written
            inside = (low is None or low < number or (low == number and not above)) and (
                high is None or number < high or (high == number and not below)
            )
            assert matches(body, text) == inside, (low, above, high, below, text)


@pytest.mark.parametrize("text", ["", ".5", "5.", "-.5", "1.2.3", "00", "0x1", "1e5", "1,5", "٣", "0.1234567891"])
def test_what_is_no_number_between_bounds(text: str) -> None:
    assert not matches(numbers(Bounds(Decimal(0), Decimal(10))), text)


@pytest.mark.parametrize("bound", ["1e12", "123456789012.5", "3e14", "1e15", "1e18"])
def test_no_number_is_rounded_to_an_excluded_bound(bound: str) -> None:
    """A parser with 53-bit floats reads 999999999999.999999999 as 1e12."""
    edge = Decimal(bound)
    for places in range(1, 12):
        for body, number in (
            (numbers(Bounds(None, edge, below=True)), edge - Decimal(1).scaleb(-places)),
            (numbers(Bounds(edge, None, above=True)), edge + Decimal(1).scaleb(-places)),
        ):
            if matches(body, f"{number:f}"):
                assert float(number) != float(edge)


def test_bounds_that_admit_nothing() -> None:
    for bounds in (Bounds(Decimal(3), Decimal(2)), Bounds(Decimal(3), Decimal(3), above=True)):
        assert prune_rules({"root": integers(bounds)}, "root") is None
        assert prune_rules({"root": numbers(bounds)}, "root") is None
    assert prune_rules({"root": integers(Bounds(Decimal("0.1"), Decimal("0.9")))}, "root") is None


@pytest.mark.parametrize("factor", [1, 2, 7, 12, 30])
def test_multiples(factor: int) -> None:
    rules = multiples(factor, "m")
    for number in range(-400, 401):
        assert matches(rules["m"], str(number), rules) == (number % factor == 0), number
    assert not any(matches(rules["m"], text, rules) for text in ("", "-", "-0", "00", "0" + str(factor)))
