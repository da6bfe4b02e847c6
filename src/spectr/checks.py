"""Checks of whole numbers that users pass."""

import operator
from typing import Any

from spectr.errors import ArgumentError

__all__ = ["whole"]


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return `value` as an int; raise ArgumentError unless it is a whole number of at least `least`. True and False
    are refused.

    >>> whole("drafts", 4, 1)
    4
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name} must be a whole number, got {value!r}")
    if least is not None and number < least:
        raise ArgumentError(f"{name} must be at least {least}, got {number}")
    return number
