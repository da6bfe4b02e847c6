"""Layouts of JSON texts: where white space stands between the values."""

from dataclasses import dataclass
from typing import Literal as OneOf
from typing import get_args

from spectr.grammar.expressions import EMPTY, Chars, Expression, Literal, Repeat, choice, optional, sequence

__all__ = ["LAYOUTS", "Layout", "Punctuation", "punctuation"]

Layout = OneOf["any", "line", "compact"]
"""White space: `line` as json.dumps writes it, `compact` none, `any` optional in the usual places: one space, or a new
line and its indentation."""
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """The punctuation between values."""

    gap: Expression  # after { and [, and before } and ]
    comma: Expression
    colon: Expression
    separators: tuple[str, str]  # for json.dumps of constants


def punctuation(layout: Layout) -> Punctuation:
    """Return the punctuation of a layout."""
    if layout == "any":
        gap = choice([EMPTY, Literal(" "), sequence(Literal("\n"), Repeat(Chars.of(" \t")))])
        return Punctuation(
            gap, sequence(Literal(","), gap), sequence(Literal(":"), optional(Literal(" "))), (", ", ": ")
        )
    separators = (", ", ": ") if layout == "line" else (",", ":")
    return Punctuation(EMPTY, Literal(separators[0]), Literal(separators[1]), separators)
