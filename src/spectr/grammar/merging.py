"""Combines schemas that apply together into one: references, `allOf`, and keywords beside `anyOf`."""

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import Any
from urllib.parse import unquote

from spectr.errors import ArgumentError
from spectr.grammar.keywords import KINDS, Node, Subschema, check_keywords, json_equal, shown

__all__ = ["Document", "kinds_in_common"]

_KNOWN = {"type", "enum", "anyOf", "oneOf", *(keyword for keywords in KINDS.values() for keyword in keywords)}
_MOST_OPTIONS = 256  # options of an anyOf that results from combining several
_MOST_MERGES = 64  # depth of references to references, and of allOf in allOf
_MOST_REDUCTIONS = 200_000  # schemas reduced in one document: references and allOf can repeat each other exponentially


@dataclass(frozen=True, slots=True)
class Document:
    """A root schema, within which references are resolved."""

    root: Any
    _reductions: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    def reduced(self, schema: Subschema, path: str) -> Subschema:
        """Return the keywords that apply, without `$ref`, `allOf`, `const`, and keywords that do not affect
        grammars."""
        return self._reduced(schema, path, _MOST_MERGES)

    def _reduced(self, schema: Any, path: str, left: int) -> Subschema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ArgumentError(f"{path}: a schema must be an object, true or false, got {shown(schema)}")
        if left == 0:
            raise ArgumentError(f"{path}: references and allOf must not be circular; give the type a name in $defs")
        if next(self._reductions) >= _MOST_REDUCTIONS:
            raise ArgumentError(
                f"{path}: a schema must expand to at most {_MOST_REDUCTIONS:,} schemas; use fewer references within "
                "each other's allOf, anyOf and oneOf"
            )
        check_keywords(schema, path)
        node = _modern({name: value for name, value in schema.items() if name in _KNOWN or name in _OLD})
        parts: list[Any] = [node]
        if "$ref" in schema:
            parts.append(self.resolved(schema["$ref"], path))
        parts += _listed(schema, "allOf", path) if "allOf" in schema else []
        reduced = [node, *(self._reduced(part, path, left - 1) for part in parts[1:])]
        return reduce(lambda one, other: _merged(one, other, path), reduced)

    def resolved(self, reference: Any, path: str) -> Any:
        """Return the part of the schema that a reference points to."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ArgumentError(f"{path}: $ref must point into the schema, such as '#/$defs/…', got {shown(reference)}")
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
    """Rewrite `const` as an enum, and tuples of older JSON Schema drafts in the newer form."""
    node = dict(node)
    if "const" in node:
        value = node.pop("const")
        values = node.get("enum")
        node["enum"] = [value] if values is None or any(json_equal(value, one) for one in values) else []
    rest = node.pop("additionalItems", None)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if rest is not None:
            node["items"] = rest
    return node


def _listed(schema: Node, keyword: str, path: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"{path}: {keyword} must be a list of at least one, got {shown(values)}")
    return values


def _both(one: Subschema, other: Subschema) -> Subschema:
    if one is False or other is False:
        return False
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _merged(one: Subschema, other: Subschema, path: str) -> Subschema:
    """Return one schema that is equivalent to both together."""
    if isinstance(one, bool) or isinstance(other, bool):
        return _both(one, other)
    found = {**one, **{name: value for name, value in other.items() if name not in one}}
    for name in one.keys() & other.keys():
        if one[name] != other[name] and name not in _TOGETHER:
            if name not in _MERGED:
                raise ArgumentError(
                    f"{path}: {name} must not occur in two schemas that apply together; combine them into one schema"
                )
            found[name] = _MERGED[name](one[name], other[name])
    found |= _merged_objects(one, other, path) | _merged_arrays(one, other)
    for name in ("anyOf", "oneOf"):
        if len(found.get(name, ())) > _MOST_OPTIONS:
            raise ArgumentError(f"{path}: {name} must leave at most {_MOST_OPTIONS} options, got {len(found[name])}")
    return found


_TOGETHER = {"properties", "additionalProperties", "prefixItems", "items"}


def kinds_in_common(one: Any, other: Any) -> list[str]:
    ours, theirs = ([kinds] if isinstance(kinds, str) else kinds for kinds in (one, other))
    wide = [kind for kind in ours if kind in theirs or (kind == "integer" and "number" in theirs)]
    return wide + [kind for kind in theirs if kind == "integer" and "number" in ours and kind not in wide]


def _in_common(one: list[Any], other: list[Any]) -> list[Any]:
    known = {_hashable(value) for value in other}
    return [value for value in one if _hashable(value) in known]


def _hashable(value: Any) -> Hashable:
    """Return a key that is equal for two values if and only if they are equal in JSON."""
    if isinstance(value, bool | list):
        return (type(value), value if isinstance(value, bool) else tuple(map(_hashable, value)))
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(part)) for name, part in value.items())
    key: Hashable = value
    return key


def _products(one: list[Any], other: list[Any]) -> list[Any]:
    return [_both(ours, theirs) for ours in one for theirs in other]


_MERGED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("anyOf", "oneOf"), _products),
    **dict.fromkeys(("uniqueItems", "unevaluatedProperties", "unevaluatedItems"), lambda one, other: one and other),
    "type": kinds_in_common,
    "enum": _in_common,
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "multipleOf": lambda one, other: math.lcm(int(one), int(other)),
}


def _merged_objects(one: Node, other: Node, path: str) -> Node:
    """Merge the properties; `additionalProperties` applies to those that a schema does not name."""
    has_properties = [any(name in node for name in ("properties", "additionalProperties")) for node in (one, other)]
    patterns = ["patternProperties" in node or "propertyNames" in node for node in (one, other)]
    if (patterns[0] and has_properties[1]) or (patterns[1] and has_properties[0]):
        raise ArgumentError(
            f"{path}: patternProperties and propertyNames must not apply together with properties of other schemas; "
            "write one schema"
        )
    if not any(has_properties):
        return {}

    def own(node: Node, name: str) -> Subschema:
        found: Subschema = node.get("properties", {}).get(name, node.get("additionalProperties", True))
        return found

    names = list(dict.fromkeys([*one.get("properties", ()), *other.get("properties", ())]))
    found: Node = {"properties": {name: _both(own(one, name), own(other, name)) for name in names}} if names else {}
    rest = [node["additionalProperties"] for node in (one, other) if "additionalProperties" in node]
    return found | ({"additionalProperties": reduce(_both, rest)} if rest else {})


def _merged_arrays(one: Node, other: Node) -> Node:
    """Merge the items; `items` applies to those beyond a schema's `prefixItems`."""
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
