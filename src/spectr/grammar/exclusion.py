"""Decides whether two schemas exclude each other, which `oneOf` requires of its options."""

from typing import Any

from spectr.grammar.keywords import Node, Subschema, is_kind, json_equal, kinds_of
from spectr.grammar.merging import Document, kinds_in_common

__all__ = ["disjoint"]


def disjoint(document: Document, one: Subschema, other: Subschema, path: str, deep: int = 4) -> bool:
    """Return whether no value satisfies both schemas, as far as types, constants, bounds and required properties show.

    `deep` limits the recursion into properties and options."""
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
    common = kinds_in_common(_all_kinds(ours), _all_kinds(theirs))
    if not common:
        return True
    if common == ["object"]:
        return _objects_differ(document, ours, theirs, path, deep)
    return set(common) <= {"integer", "number"} and (_lies_below(ours, theirs) or _lies_below(theirs, ours))


def _all_kinds(node: Node) -> list[str]:
    """Return the types that a schema allows, regardless of its other keywords."""
    return kinds_of({"type": node["type"]} if "type" in node else {})


def _excludes(node: Node, value: Any) -> bool:
    """Return whether a schema certainly excludes a value."""
    if "enum" in node and not any(json_equal(value, one) for one in node["enum"]):
        return True
    return "type" in node and not any(is_kind(value, kind) for kind in kinds_of(node))


def _lies_below(one: Node, other: Node) -> bool:
    highs = [one[name] for name in ("maximum", "exclusiveMaximum") if name in one]
    lows = [other[name] for name in ("minimum", "exclusiveMinimum") if name in other]
    return bool(highs) and bool(lows) and min(highs) < max(lows)


def _objects_differ(document: Document, one: Node, other: Node, path: str, deep: int) -> bool:
    """Return whether a property that one schema requires has disjoint schemas in the two."""
    for node, rival in ((one, other), (other, one)):
        for name in node.get("required", ()):
            ours, theirs = (
                side.get("properties", {}).get(name, side.get("additionalProperties", True)) for side in (node, rival)
            )
            if "patternProperties" not in rival and disjoint(document, ours, theirs, path, deep - 1):
                return True
    return False
