"""Grammars of JSON numbers: all of them, or those between two bounds, written without an exponent."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from spectr.grammar.expressions import (
    EMPTY,
    NOTHING,
    Chars,
    Expression,
    Literal,
    Ref,
    Repeat,
    choice,
    optional,
    sequence,
)

__all__ = ["ANY_INTEGER", "ANY_NUMBER", "Bounds", "integers", "multiples", "numbers"]

_DIGIT = Chars.of((0x30, 0x39))
_WHOLE = choice([Literal("0"), sequence(Chars.of((0x31, 0x39)), Repeat(_DIGIT))])
_EXPONENT = sequence(
    Chars.of("eE"), optional(Chars.of("+-")), Repeat(_DIGIT, 1, 2)
)  # larger exponents overflow in many parsers
ANY_INTEGER = sequence(optional(Literal("-")), _WHOLE)
ANY_NUMBER = sequence(ANY_INTEGER, optional(sequence(Literal("."), Repeat(_DIGIT, 1))), optional(_EXPONENT))

_PLACES, _DIGITS = 9, 15
"""The maximum number of decimal places between bounds, and of digits in total, such that a parser that uses 53-bit
floats does not round a number to a bound or across it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a range of numbers; None means unbounded."""

    low: Decimal | None = None
    high: Decimal | None = None
    above: bool = False  # the low bound itself is excluded
    below: bool = False  # the high bound itself is excluded

    @property
    def negated(self) -> "Bounds":
        """The bounds of the negated numbers."""
        low, high = (None if bound is None else -bound for bound in (self.high, self.low))
        return Bounds(low, high, self.below, self.above)


def _digit(first: int, last: int) -> Expression:
    return Literal(str(first)) if first == last else Chars.of((0x30 + first, 0x30 + last))


def _same_length(low: str, high: str) -> Expression:
    """Match numbers from `low` to `high`, which have the same number of digits."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    if set(low) == {"0"} and set(high) == {"9"}:
        return Repeat(_DIGIT, len(low), len(low))
    first, last = int(low[0]), int(high[0])
    if first == last:
        return sequence(Literal(low[0]), _same_length(low[1:], high[1:]))
    options = [
        sequence(Literal(low[0]), _same_length(low[1:], "9" * rest)),
        sequence(Literal(high[0]), _same_length("0" * rest, high[1:])),
    ]
    if first + 1 < last:
        options.insert(1, sequence(_digit(first + 1, last - 1), Repeat(_DIGIT, rest, rest) if rest else EMPTY))
    return choice(options)


def _naturals(low: int, high: int | None) -> Expression:
    """Match integers from `low` to `high`, both at least 0."""
    if high is not None and high < low:
        return NOTHING
    options: list[Expression] = [Literal("0")] if low == 0 else []
    low, size = max(low, 1), len(str(max(low, 1)))
    longest = size if high is None else len(str(high))
    if high is not None and high < low:
        return choice(options)
    if longest == size:
        options.append(_same_length(str(low), str(high if high is not None else 10**size - 1)))
    else:
        options.append(_same_length(str(low), "9" * size))
        if longest > size + 1:
            options.append(sequence(Chars.of((0x31, 0x39)), Repeat(_DIGIT, size, longest - 2)))
        options.append(_same_length("1" + "0" * (longest - 1), str(high)))
    if high is None:
        options.append(sequence(Chars.of((0x31, 0x39)), Repeat(_DIGIT, size)))
    return choice(options)


def _whole_bounds(bounds: Bounds) -> tuple[int | None, int | None]:
    """Return the lowest and the highest integer between bounds."""
    low, high = bounds.low, bounds.high
    least = None if low is None else int(low.to_integral_value("ROUND_CEILING"))
    most = None if high is None else int(high.to_integral_value("ROUND_FLOOR"))
    least = least + 1 if least is not None and bounds.above and least == low else least
    most = most - 1 if most is not None and bounds.below and most == high else most
    return least, most


def integers(bounds: Bounds) -> Expression:
    """Return the grammar of the integers between bounds."""
    low, high = _whole_bounds(bounds)
    if low is None and high is None:
        return ANY_INTEGER
    if low is not None and high is not None and high < low:
        return NOTHING
    options = list[Expression]()
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        options.append(sequence(Literal("-"), _naturals(least, None if low is None else -low)))
    if high is None or high >= 0:
        options.append(_naturals(max(low or 0, 0), high))
    return choice(options)


def numbers(bounds: Bounds) -> Expression:
    """Return the grammar of the numbers between bounds with at most nine decimal places; fewer if bounds are large."""
    if bounds.low is None and bounds.high is None:
        return ANY_NUMBER
    if bounds.low is not None and bounds.high is not None and bounds.high < bounds.low:
        return NOTHING
    options = list[Expression]()
    if bounds.high is None or bounds.high > 0 or (bounds.high == 0 and not bounds.below):
        options.append(_positive(bounds))
    if bounds.low is None or bounds.low < 0:
        options.append(sequence(Literal("-"), _positive(bounds.negated, zero=False)))
    return choice(options)


def _positive(bounds: Bounds, *, zero: bool = True) -> Expression:
    """Match the non-negative numbers between bounds; with `zero` False, the positive ones."""
    low, above = bounds.low, bounds.above
    if low is None or low < 0 or (low == 0 and not zero):
        low, above = Decimal(0), not zero or (low == 0 and above)
    first, fraction = _split(low)
    lower = None if not fraction and not above else (fraction, above)
    last, fraction = (None, "") if bounds.high is None else _split(bounds.high)
    room = max(0, min(_PLACES, _DIGITS - len(str(first if last is None else last))))
    if last is None:
        at_first = sequence(_naturals(first, first), _places(lower, None, room))
        return choice([at_first, sequence(_naturals(first + 1, None), _places(None, None, room))])
    upper = (fraction, bounds.below)
    if first == last:
        return sequence(_naturals(first, first), _places(lower, upper, room))
    return choice([
        sequence(_naturals(first, first), _places(lower, None, room)),
        sequence(_naturals(first + 1, last - 1), _places(None, None, room)),
        sequence(_naturals(last, last), _places(None, upper, room)),
    ])  # fmt: skip


def _split(number: Decimal) -> tuple[int, str]:
    """Return the integer part of a non-negative number, and its decimal places without trailing zeros.

    >>> _split(Decimal("12.340"))
    (12, '34')
    """
    whole, _, places = f"{number:f}".partition(".")
    return int(whole), places.rstrip("0")


_Edge = tuple[str, bool] | None
"""The decimal places of a bound and whether the bound is excluded; None if the number is inside without comparison."""


def _places(lower: _Edge, upper: _Edge, room: int) -> Expression:
    """Match a decimal point and at most `room` places after it, or nothing, between two edges."""
    some = sequence(Literal("."), _further(lower, upper, room, is_first=True))
    return choice([EMPTY, some] if _may_end(lower, upper) else [some])


def _may_end(lower: _Edge, upper: _Edge) -> bool:
    """Return whether the number may end here, which means the same as trailing zeros."""
    return (lower is None or (not lower[0] and not lower[1])) and (upper is None or bool(upper[0]) or not upper[1])


def _further(lower: _Edge, upper: _Edge, room: int, *, is_first: bool) -> Expression:
    """Match at most `room` more places, and at least one if `is_first`."""
    if lower is not None and not lower[0] and not lower[1]:
        lower = None
    if lower is None and upper is None:
        return Repeat(_DIGIT, int(is_first), room) if room else EMPTY if not is_first else NOTHING
    options: list[Expression] = [EMPTY] if not is_first and _may_end(lower, upper) else []
    if room:
        least = 0 if lower is None else int(lower[0][:1] or 0)
        most = 9 if upper is None else int(upper[0][:1] or 0)
        cuts = sorted({least, least + 1, most, most + 1})
        for start, stop in pairwise(cuts):
            if least <= start and stop - 1 <= most:
                below = None if lower is None or start > least else (lower[0][1:], lower[1])
                above = None if upper is None or start < most else (upper[0][1:], upper[1])
                options.append(sequence(_digit(start, stop - 1), _further(below, above, room - 1, is_first=False)))
    return choice(options)


def multiples(factor: int, name: str) -> dict[str, Expression]:
    """Return rules for the integer multiples of a number of at least 1.

    `name` is the first rule; the others are named after it and the remainder of the digits so far."""

    def rest(remainder: int) -> Expression:
        options = [
            sequence(Literal(str(digit)), Ref(f"{name}-{(10 * remainder + digit) % factor}")) for digit in range(10)
        ]
        return choice([*([EMPTY] if remainder == 0 else []), *options])

    starts = [sequence(Literal(str(digit)), Ref(f"{name}-{digit % factor}")) for digit in range(1, 10)]
    begun = choice([Literal("0"), sequence(optional(Literal("-")), choice(starts))])
    return {name: begun, **{f"{name}-{remainder}": rest(remainder) for remainder in range(factor)}}
