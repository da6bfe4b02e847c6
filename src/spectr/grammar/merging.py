"""Schemas that apply together as one: references, `allOf`, and what stands beside `anyOf`; and which exclude others.

Nothing here knows of grammars.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import Any, TypeAlias
from urllib.parse import unquote

from spectr.errors import ArgumentError

__all__ = ["KINDS", "Document", "Node", "Subschema", "admits", "disjoint", "kinds_of", "same"]

Node: TypeAlias = dict[str, Any]
"""Keywords that apply together."""
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
"""The types of JSON, and the keywords that speak of each; those of numbers hold for integers."""

_KNOWN = {"type", "enum", "anyOf", "oneOf", *(keyword for keywords in KINDS.values() for keyword in keywords)}
_REFUSED = {
    "not": "name what is allowed instead",
    "if": "use anyOf with one schema for each case",
    "dependentRequired": "use anyOf with one schema for each case",
    "dependentSchemas": "use anyOf with one schema for each case",
    "dependencies": "use anyOf with one schema for each case",
    "contains": "a grammar cannot count what an array contains; leave it out and check the answer",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
_MOST_OPTIONS = 256  # of anyOf, after the options of several were combined
_MOST_MERGES = 64  # of references to references, and allOf in allOf
_MOST_REDUCTIONS = 200_000  # of one document: references and allOf that repeat each other grow exponentially


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal to JSON: 1 is 1.0 and not true."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    return bool(value == other)


def kinds_of(node: Node) -> list[str]:
    """The types that a schema names, or else those that its keywords speak of, or else all."""
    named = node.get("type")
    if named is not None:
        return [named] if isinstance(named, str) else list(named)
    spoken = [kind for kind, keywords in KINDS.items() if any(keyword in node for keyword in keywords)]
    return spoken or [kind for kind in KINDS if kind != "integer"]


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and float(value).is_integer())
    return {"object": dict, "array": list, "string": str, "null": type(None)}.get(kind) is type(value)


def admits(node: Node, value: Any, path: str) -> bool:
    """Whether a value of an enum satisfies what stands beside it: types, bounds and lengths; the rest is refused."""
    if "type" in node and not any(_is_kind(value, kind) for kind in kinds_of(node)):
        return False
    for keyword, bound in node.items():
        if keyword in ("type", "enum"):
            continue
        if keyword not in _CHECKS:
            raise ArgumentError(f"{path}: enum and const must not stand beside {keyword}; leave {keyword} out")
        kind, holds = _CHECKS[keyword]
        if _is_kind(value, kind) and not holds(value, bound):
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


@dataclass(frozen=True, slots=True)
class Document:
    """A schema, within which references point."""

    root: Any
    _reductions: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    def reduced(self, schema: Subschema, path: str) -> Subschema:
        """The keywords that apply, without `$ref`, `allOf`, `const`, and what is a comment to grammars."""
        return self._reduced(schema, path, _MOST_MERGES)

    def _reduced(self, schema: Any, path: str, left: int) -> Subschema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ArgumentError(f"{path}: a schema must be an object, true or false, got {_shown(schema)}")
        if left == 0:
            raise ArgumentError(f"{path}: references and allOf must not lead in circles; give the type a name in $defs")
        if next(self._reductions) >= _MOST_REDUCTIONS:
            raise ArgumentError(
                f"{path}: a schema must come to at most {_MOST_REDUCTIONS:,} schemas that are merged; name fewer "
                "references in each other's allOf, anyOf and oneOf"
            )
        _check_keywords(schema, path)
        node = _modern({name: value for name, value in schema.items() if name in _KNOWN or name in _OLD})
        parts: list[Any] = [node]
        if "$ref" in schema:
            parts.append(self.resolved(schema["$ref"], path))
        parts += _listed(schema, "allOf", path) if "allOf" in schema else []
        reduced = [node, *(self._reduced(part, path, left - 1) for part in parts[1:])]
        return reduce(lambda one, other: _merged(one, other, path), reduced)

    def resolved(self, reference: Any, path: str) -> Any:
        """What a reference points to."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ArgumentError(
                f"{path}: $ref must point into the schema, such as '#/$defs/…', got {_shown(reference)}"
            )
        found = self.root
        for step in reference[1:].split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                raise ArgumentError(f"{path}: $ref must point to something, and there is nothing at {reference!r}")
        return found


_OLD = ("const", "additionalItems")


def _modern(node: Node) -> Node:
    """`const` as an enum, and tuples of older drafts as of newer ones."""
    node = dict(node)
    if "const" in node:
        value = node.pop("const")
        values = node.get("enum")
        node["enum"] = [value] if values is None or any(same(value, one) for one in values) else []
    rest = node.pop("additionalItems", None)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if rest is not None:
            node["items"] = rest
    return node


def _listed(schema: Node, keyword: str, path: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"{path}: {keyword} must be a list of at least one, got {_shown(values)}")
    return values


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"


def _check_keywords(schema: Node, path: str) -> None:
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
            raise ArgumentError(f"{path}: {keyword} must be true or false, got {_shown(schema[keyword])}")
    for keyword, (holds, sentence) in _VALUES.items():
        if keyword in schema and not holds(schema[keyword]):
            raise ArgumentError(f"{path}: {keyword} must be {sentence}, got {_shown(schema[keyword])}")


def _counts(schema: Node, keyword: str, most: int) -> bool:
    return _is_count(schema.get(keyword)) and schema[keyword] <= most


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and float(value).is_integer()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_types(value: Any) -> bool:
    named = [value] if isinstance(value, str) else value
    return isinstance(named, list) and bool(named) and all(isinstance(kind, str) and kind in KINDS for kind in named)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_COUNT = (_is_count, "a whole number from 0 on")
_NUMBER = (_is_number, "a number")
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


# What applies together


def _both(one: Subschema, other: Subschema) -> Subschema:
    if one is False or other is False:
        return False
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _merged(one: Subschema, other: Subschema, path: str) -> Subschema:
    """What two schemas say together."""
    if isinstance(one, bool) or isinstance(other, bool):
        return _both(one, other)
    found = {**one, **{name: value for name, value in other.items() if name not in one}}
    for name in one.keys() & other.keys():
        if one[name] != other[name] and name not in _TOGETHER:
            if name not in _MERGED:
                raise ArgumentError(
                    f"{path}: {name} must not be given twice by schemas that apply together; write one schema"
                )
            found[name] = _MERGED[name](one[name], other[name])
    found |= _merged_objects(one, other, path) | _merged_arrays(one, other)
    for name in ("anyOf", "oneOf"):
        if len(found.get(name, ())) > _MOST_OPTIONS:
            raise ArgumentError(f"{path}: {name} must leave at most {_MOST_OPTIONS} options, got {len(found[name])}")
    return found


_TOGETHER = {"properties", "additionalProperties", "prefixItems", "items"}


def _kinds_in_common(one: Any, other: Any) -> list[str]:
    ours, theirs = ([kinds] if isinstance(kinds, str) else kinds for kinds in (one, other))
    wide = [kind for kind in ours if kind in theirs or (kind == "integer" and "number" in theirs)]
    return wide + [kind for kind in theirs if kind == "integer" and "number" in ours and kind not in wide]


def _in_common(one: list[Any], other: list[Any]) -> list[Any]:
    known = {_hashable(value) for value in other}
    return [value for value in one if _hashable(value) in known]


def _hashable(value: Any) -> Hashable:
    """A key that is equal for two values exactly if they are the `same`."""
    if isinstance(value, bool | list):
        return (type(value), value if isinstance(value, bool) else tuple(map(_hashable, value)))
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(part)) for name, part in value.items())
    made: Hashable = value
    return made


def _products(one: list[Any], other: list[Any]) -> list[Any]:
    return [_both(ours, theirs) for ours in one for theirs in other]


_MERGED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("anyOf", "oneOf"), _products),
    **dict.fromkeys(("uniqueItems", "unevaluatedProperties", "unevaluatedItems"), lambda one, other: one and other),
    "type": _kinds_in_common,
    "enum": _in_common,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "multipleOf": lambda one, other: math.lcm(int(one), int(other)),
}


def _merged_objects(one: Node, other: Node, path: str) -> Node:
    """Properties that one schema does not name are what it says of additional ones."""
    speaks = [any(name in node for name in ("properties", "additionalProperties")) for node in (one, other)]
    patterns = ["patternProperties" in node or "propertyNames" in node for node in (one, other)]
    if (patterns[0] and speaks[1]) or (patterns[1] and speaks[0]):
        raise ArgumentError(
            f"{path}: patternProperties and propertyNames must not apply together with properties of other schemas; "
            "write one schema"
        )
    if not any(speaks):
        return {}

    def own(node: Node, name: str) -> Subschema:
        found: Subschema = node.get("properties", {}).get(name, node.get("additionalProperties", True))
        return found

    names = list(dict.fromkeys([*one.get("properties", ()), *other.get("properties", ())]))
    found: Node = {"properties": {name: _both(own(one, name), own(other, name)) for name in names}} if names else {}
    rest = [node["additionalProperties"] for node in (one, other) if "additionalProperties" in node]
    return found | ({"additionalProperties": reduce(_both, rest)} if rest else {})


def _merged_arrays(one: Node, other: Node) -> Node:
    """Items beyond those that one schema names are what it says of the rest."""
    if not any(name in node for node in (one, other) for name in ("items", "prefixItems")):
        return {}

    def own(node: Node, place: int) -> Subschema:
        named = node.get("prefixItems", ())
        found: Subschema = named[place] if place < len(named) else node.get("items", True)
        return found

    size = max(len(node.get("prefixItems", ())) for node in (one, other))
    found: Node = {"prefixItems": [_both(own(one, at), own(other, at)) for at in range(size)]} if size else {}
    rest = [node["items"] for node in (one, other) if "items" in node]
    return found | ({"items": reduce(_both, rest)} if rest else {})


# What excludes each other


def disjoint(document: Document, one: Subschema, other: Subschema, path: str, deep: int = 4) -> bool:
    """Whether no value satisfies both schemas, as far as it can be seen from types, constants, bounds, and required
    properties."""
    ours, theirs = document.reduced(one, path), document.reduced(other, path)
    if ours is False or theirs is False:
        return True
    if ours is True or theirs is True or deep == 0:
        return False
    for node, rival in ((ours, theirs), (theirs, ours)):
        for name in ("anyOf", "oneOf"):
            if name in node and all(disjoint(document, option, rival, path, deep - 1) for option in node[name]):
                return True
        if "enum" in node and all(_excludes(rival, value) for value in node["enum"]):
            return True
    common = _kinds_in_common(_all_kinds(ours), _all_kinds(theirs))
    if not common:
        return True
    if common == ["object"]:
        return _objects_differ(document, ours, theirs, path, deep)
    return set(common) <= {"integer", "number"} and (_lies_below(ours, theirs) or _lies_below(theirs, ours))


def _all_kinds(node: Node) -> list[str]:
    """The types that a schema allows, whatever its keywords speak of."""
    return kinds_of({"type": node["type"]} if "type" in node else {})


def _excludes(node: Node, value: Any) -> bool:
    """Whether a schema surely does not admit a value."""
    if "enum" in node and not any(same(value, one) for one in node["enum"]):
        return True
    return "type" in node and not any(_is_kind(value, kind) for kind in kinds_of(node))


def _lies_below(one: Node, other: Node) -> bool:
    highs = [one[name] for name in ("maximum", "exclusiveMaximum") if name in one]
    lows = [other[name] for name in ("minimum", "exclusiveMinimum") if name in other]
    return bool(highs) and bool(lows) and min(highs) < max(lows)


def _objects_differ(document: Document, one: Node, other: Node, path: str, deep: int) -> bool:
    """Whether some property that one requires cannot be what the other says of it."""
    for node, rival in ((one, other), (other, one)):
        for name in node.get("required", ()):
            ours, theirs = (
                side.get("properties", {}).get(name, side.get("additionalProperties", True)) for side in (node, rival)
            )
            if "patternProperties" not in rival and disjoint(document, ours, theirs, path, deep - 1):
                return True
    return False
