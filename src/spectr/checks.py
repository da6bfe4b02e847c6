"""Checks of values that users pass, and words for what such a value must be."""

import operator
from collections.abc import Mapping
from typing import Any

from spectr.errors import ArgumentError

__all__ = ["requirement", "whole"]


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


_REQUIREMENTS = {
    "greater_than_equal": "be at least {ge}", "greater_than": "be greater than {gt}",
    "less_than_equal": "be at most {le}", "less_than": "be less than {lt}", "finite_number": "be finite",
    "literal_error": "be {expected}", "too_short": "have {min_length} or more entries",
    "too_long": "have at most {max_length} entries", "string_too_short": "have {min_length} or more characters",
    "string_too_long": "have at most {max_length} characters", "string_pattern_mismatch": "match {pattern}",
    "unknown_item": "be an object of the type message, function_call or function_call_output",
    "none_required": "be null",
}  # fmt: skip
_TYPES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a string", "list": "a list",
    "dict": "an object", "model": "an object",
}  # fmt: skip
_WRONG_TYPE = ("type", "parsing", "parsing_size", "from_float", "attributes_type")  # ends of the names of such errors


def requirement(kind: str, bounds: Mapping[str, Any]) -> str | None:
    """Return what must hold of a value that pydantic refused, from the type and the context of its error; None if there
    are no better words than pydantic's own.

    >>> requirement("greater_than_equal", {"ge": 2.0}), requirement("int_parsing", {})
    ('be at least 2', 'be a whole number')
    """
    if kind in _REQUIREMENTS:
        plain = {name: int(value) if _is_whole(value) else value for name, value in bounds.items()}
        return _REQUIREMENTS[kind].format_map(plain)
    name, _, end = kind.partition("_")
    return f"be {_TYPES[name]}" if name in _TYPES and end in _WRONG_TYPE else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()
