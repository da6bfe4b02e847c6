"""Keywords of JSON Schema: the types they apply to, checks of their values, and constants that satisfy them."""

import json
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from spectr.errors import ArgumentError

__all__ = [
    "KINDS",
    "Node",
    "Subschema",
    "check_keywords",
    "is_kind",
    "json_equal",
    "kinds_of",
    "satisfies",
    "shown",
]

Node: TypeAlias = dict[str, Any]
"""A schema as a mapping of keywords."""
Subschema: TypeAlias = Node | bool

KINDS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
               "minProperties", "maxProperties", "unevaluatedProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "integer": (),
    "boolean": (),
    "null": (),
}  # fmt: skip
"""The JSON types, and the keywords that apply to each; those of numbers apply to integers as well."""

_REFUSED = {
    "not": "name what is allowed instead",
    "if": "use anyOf with one schema for each case",
    "dependentRequired": "use anyOf with one schema for each case",
    "dependentSchemas": "use anyOf with one schema for each case",
    "dependencies": "use anyOf with one schema for each case",
    "contains": "a grammar cannot count the items of an array; leave it out and check the answer",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}


def json_equal(value: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON: 1 equals 1.0 but not true."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(json_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(json_equal(value[key], other[key]) for key in value)
    return bool(value == other)


def kinds_of(node: Node) -> list[str]:
    """Return the types that a schema names, or else those that its keywords apply to, or else all."""
    named = node.get("type")
    if named is not None:
        return [named] if isinstance(named, str) else list(named)
    implied = [kind for kind, keywords in KINDS.items() if any(keyword in node for keyword in keywords)]
    return implied or [kind for kind in KINDS if kind != "integer"]


def is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    return {"object": dict, "array": list, "string": str, "null": type(None)}.get(kind) is type(value)


def satisfies(node: Node, value: Any, path: str) -> bool:
    """Return whether an enum's value satisfies the types, bounds and lengths beside it; other keywords are refused."""
    if "type" in node and not any(is_kind(value, kind) for kind in kinds_of(node)):
        return False
    for keyword, bound in node.items():
        if keyword in ("type", "enum"):
            continue
        if keyword not in _CHECKS:
            raise ArgumentError(f"{path}: enum and const must not be combined with {keyword}; leave {keyword} out")
        kind, holds = _CHECKS[keyword]
        if is_kind(value, kind) and not holds(value, bound):
            return False
    return True


_CHECKS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, bound: value >= bound),
    "maximum": ("number", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, bound: len(value) >= bound),
    "maxLength": ("string", lambda value, bound: len(value) <= bound),
}


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"


def check_keywords(schema: Node, path: str) -> None:
    """Refuse keywords that a grammar cannot express."""
    for keyword, instead in _REFUSED.items():
        if keyword in schema:
            raise ArgumentError(f"{path}: {keyword} is not supported in grammars; {instead}")
    if schema.get("uniqueItems") is True and not _counts(schema, "maxItems", most=1):
        raise ArgumentError(
            f"{path}: uniqueItems is not supported in grammars, which cannot compare items; leave it out and check the "
            "answer"
        )
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if not isinstance(schema.get(keyword, False), bool):
            raise ArgumentError(f"{path}: {keyword} must be true or false, got {shown(schema[keyword])}")
    for keyword, (holds, sentence) in _VALUES.items():
        if keyword in schema and not holds(schema[keyword]):
            raise ArgumentError(f"{path}: {keyword} must be {sentence}, got {shown(schema[keyword])}")


def _counts(schema: Node, keyword: str, most: int) -> bool:
    return _is_count(schema.get(keyword)) and schema[keyword] <= most


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and float(value).is_integer()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_types(value: Any) -> bool:
    named = [value] if isinstance(value, str) else value
    return isinstance(named, list) and bool(named) and all(isinstance(kind, str) and kind in KINDS for kind in named)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_COUNT = (_is_count, "an integer of at least 0")
_NUMBER = (_is_number, "a number within the range of floats")
_SCHEMAS = (lambda value: isinstance(value, dict), "an object of schemas")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("properties", "patternProperties"), _SCHEMAS),
    "multipleOf": (lambda value: _is_count(value) and value > 0, "a whole number above 0"),
    "type": (_is_types, f"one or several of {', '.join(KINDS)}"),
    "required": (_is_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "prefixItems": (lambda value: isinstance(value, list), "a list of schemas"),
    "anyOf": (lambda value: isinstance(value, list) and bool(value), "a list of at least one schema"),
    "oneOf": (lambda value: isinstance(value, list) and bool(value), "a list of at least one schema"),
    "pattern": (lambda value: isinstance(value, str), "a regular expression"),
    "format": (lambda value: isinstance(value, str), "a name"),
}
