"""Converts JSON schemas to grammars. Every text that a grammar admits is valid under its schema.

Not every valid text is admitted: keys appear in the order of the schema, keys and items that it does not name are
excluded unless it allows them, and each value is written in one of the usual ways. Keywords that a grammar cannot
express are refused, never ignored.
"""

import json
from collections import deque
from decimal import Decimal
from itertools import combinations
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar.ebnf import format_rules, prune_rules, unroll
from spectr.grammar.exclusion import disjoint
from spectr.grammar.expressions import (
    EMPTY,
    NOTHING,
    Expression,
    Literal,
    Ref,
    Repeat,
    choice,
    sequence,
)
from spectr.grammar.keywords import Node, Subschema, kinds_of, satisfies
from spectr.grammar.layout import Layout, Punctuation, punctuation
from spectr.grammar.merging import Document
from spectr.grammar.numbers import Bounds, integers, multiples, numbers
from spectr.grammar.strings import (
    FORMATS,
    KEY,
    STRING,
    check_format,
    lengths,
    other_keys,
    quoted,
    strings_of_format,
    strings_with_pattern,
)

__all__ = ["schema_ebnf"]

_DEEPEST = 100  # nested objects and lists
_MOST_RULES = 10_000
_MOST_RESIDUES = 100  # largest multipleOf
_MOST_STATES = 5_000  # rules of an object whose properties are counted


def schema_ebnf(schema: Any, layout: Layout, *, strict: bool) -> str:
    """Return the grammar of JSON texts that are valid under a schema.

    With `strict`, properties and items that the schema does not name are excluded."""
    _check_size(schema)
    try:
        return _converted(_Converter(Document(schema), punctuation(layout), strict))
    except RecursionError:
        raise ArgumentError(
            "a schema must not be nested so deeply, or have numbers of so many digits, that the interpreter's stack is "
            "too small for it; name parts of it in $defs, and use smaller bounds"
        ) from None


def _check_size(schema: Any) -> None:
    """Refuse schemas that are nested too deep, and strings that are not valid Unicode."""
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ArgumentError(f"a schema must have at most {_DEEPEST} levels; name parts of it in $defs")
        for part in level:
            for text in part if isinstance(part, dict) else (part,):
                if isinstance(text, str) and any("\ud800" <= sign <= "\udfff" for sign in text):
                    raise ArgumentError(f"a schema must be valid Unicode text, got a lone surrogate in {text!r}")
        level = [
            child
            for part in level
            for child in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        ]


class _Converter:
    """Converts schemas to rules. Each distinct schema becomes one rule, so that references may be recursive."""

    def __init__(self, document: Document, punctuation: Punctuation, strict: bool) -> None:
        self.document, self.punctuation, self.strict = document, punctuation, strict
        self._rules: dict[str, Expression] = {}
        self._names: dict[str, str] = {}
        self._waiting: deque[tuple[str, Any, str]] = deque()

    def rules(self) -> dict[str, Expression]:
        """Return all rules; the first is called root."""
        self._rules = {"root": self._value(self.document.root, "#"), "string": STRING}
        while self._waiting:
            if len(self._rules) > _MOST_RULES:
                raise ArgumentError(f"a schema must result in at most {_MOST_RULES} grammar rules; make it smaller")
            name, schema, path = self._waiting.popleft()
            self._rules[name] = self._body(name, schema, path)
        return self._rules

    def _value(self, schema: Any, path: str) -> Expression:
        """Return a reference to the rule for the values that a schema admits."""
        if schema is False:
            return NOTHING
        key = json.dumps(schema, default=repr)
        if key not in self._names:
            self._names[key] = f"v{len(self._names)}"
            self._waiting.append((self._names[key], schema, path))
        return Ref(self._names[key])

    def _body(self, name: str, schema: Any, path: str) -> Expression:
        node = self.document.reduced(schema, path)
        if isinstance(node, bool):
            return choice(self._kind(kind, name, {}, path) for kind in kinds_of({})) if node else NOTHING
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                return self._options(keyword, node, path)
        if "enum" in node:
            return choice(self._constant(value) for value in node["enum"] if satisfies(node, value, path))
        kinds = kinds_of(node)
        return choice(
            self._kind(kind, name, node, path) for kind in kinds if kind != "integer" or "number" not in kinds
        )

    def _options(self, keyword: str, node: Node, path: str) -> Expression:
        """Match what one of several options admits, together with the keywords beside them."""
        options, beside = node[keyword], {name: value for name, value in node.items() if name != keyword}
        if keyword == "oneOf":
            for (at, one), (other_at, other) in combinations(enumerate(options), 2):
                if not disjoint(self.document, one, other, path):
                    raise ArgumentError(
                        f"{path}: the schemas of oneOf must visibly exclude each other, by their types, constants or "
                        f"bounds, or those of a required property; numbers {at} and {other_at} do not: use anyOf"
                    )
        return choice(
            self._value({"allOf": [beside, option]} if beside else option, f"{path}/{keyword}/{at}")
            for at, option in enumerate(options)
        )

    def _constant(self, value: Any) -> Expression:
        return Literal(json.dumps(value, ensure_ascii=False, separators=self.punctuation.separators))

    def _kind(self, kind: str, name: str, node: Node, path: str) -> Expression:
        """Match the values of one type."""
        if kind == "object":
            return self._object(name, node, path)
        if kind == "array":
            return self._array(name, node, path)
        if kind == "string":
            return self._string(name, node, path)
        if kind in ("integer", "number"):
            return self._number(kind, name, node, path)
        return Literal("null") if kind == "null" else choice([Literal("true"), Literal("false")])

    # Strings and numbers

    def _string(self, name: str, node: Node, path: str) -> Expression:
        form, least, most = node.get("format"), int(node.get("minLength", 0)), node.get("maxLength")
        check_format(form or "", path)
        present = [word for word in ("pattern", "format") if word in node and (word != "format" or form in FORMATS)]
        counted = bool(least) or most is not None
        if len(present) + counted > 1:
            raise ArgumentError(
                f"{path}: only one of pattern, format, and minLength with maxLength must be given, got "
                f"{', '.join([*present, *(['a length'] if counted else [])])}; write lengths in the pattern, as {{2,5}}"
            )
        if present == ["pattern"]:
            return strings_with_pattern(node["pattern"], f"{path}: pattern")
        if present == ["format"]:
            return strings_of_format(node["format"])
        if not counted:
            return Ref("string")
        self._rules |= lengths(least, None if most is None else int(most), f"{name}-c")
        return Ref(f"{name}-c")

    def _number(self, kind: str, name: str, node: Node, path: str) -> Expression:
        bounds = _bounds(node)
        factor = node.get("multipleOf")
        if factor is None or (factor == 1 and kind == "integer"):
            return integers(bounds) if kind == "integer" else numbers(bounds)
        if bounds != Bounds() or int(factor) > _MOST_RESIDUES:
            raise ArgumentError(
                f"{path}: multipleOf must be at most {_MOST_RESIDUES} and must not be combined with bounds; use an "
                "enum, or leave it out and check the answer"
            )
        self._rules |= multiples(int(factor), f"{name}-m")
        return Ref(f"{name}-m")

    # Arrays and objects

    def _array(self, name: str, node: Node, path: str) -> Expression:
        least, most = _counts(node, "Items")
        first = [self._value(item, f"{path}/prefixItems/{at}") for at, item in enumerate(node.get("prefixItems", ()))]
        others = self._value(self._rest(node, "prefixItems", "items"), f"{path}/items")
        some = NOTHING if most is not None and most < max(least, 1) else self._items(name, first, others, (least, most))
        inside = choice([sequence(some, self.punctuation.gap), *([] if least else [EMPTY])])
        return sequence(Literal("["), self.punctuation.gap, inside, Literal("]"))

    def _rest(self, node: Node, named: str, rest: str) -> Subschema:
        """Return the schema of properties or items that the schema does not name."""
        if rest in node:
            found: Subschema = node[rest]
            return found
        kind = "Items" if rest == "items" else "Properties"
        return node.get(f"unevaluated{kind}", True) is not False and not (self.strict and named in node)

    def _items(
        self, name: str, first: list[Expression], others: Expression, counts: tuple[int, int | None]
    ) -> Expression:
        """Match the items of a non-empty array: each of `first`, then any number of `others`."""
        (least, most), comma, known = counts, self.punctuation.comma, max(len(first), 1)
        left = None if most is None else max(0, most - known)
        tail: Expression = Repeat(sequence(comma, others), max(0, least - known), left)
        for at in reversed(range(1, len(first))):
            if most is not None and at >= most:
                tail = EMPTY
                continue
            this = sequence(comma, first[at], tail)
            self._rules[f"{name}-i{at}"] = choice([this, EMPTY]) if at >= least else this
            tail = Ref(f"{name}-i{at}")
        return sequence(first[0] if first else others, tail)

    def _object(self, name: str, node: Node, path: str) -> Expression:
        required = node.get("required", [])
        unnamed = dict.fromkeys(required, node.get("additionalProperties", True))
        named = {**unnamed, **node.get("properties", {})}
        named = {key: named[key] for key in [*node.get("properties", {}), *unnamed]}
        pairs = [
            (self._pair(quoted(key), self._value(value, f"{path}/properties/{key}")), key in required)
            for key, value in named.items()
        ]
        extra = self._extra(name, node, named, path)
        least, most = _counts(node, "Properties")
        if least > len(pairs) + (extra != NOTHING):
            raise ArgumentError(
                f"{path}: minProperties must be at most {len(pairs) + (extra != NOTHING)}, the number of properties "
                f"that are certainly distinct, got {least}; name more properties"
            )
        states = self._states(name, pairs, extra, (least, most), path)
        return sequence(Literal("{"), self.punctuation.gap, states, Literal("}"))

    def _pair(self, key: Expression, value: Expression) -> Expression:
        return sequence(key, self.punctuation.colon, value)

    def _extra(self, name: str, node: Node, named: Node, path: str) -> Expression:
        """Match a property that the schema does not name."""
        patterns, names = node.get("patternProperties"), node.get("propertyNames")
        if patterns is not None or names is not None:
            rest = node.get("additionalProperties")
            clear = len(patterns) == 1 and not rest and names is None if patterns is not None else True
            if named or not clear:
                raise ArgumentError(
                    f"{path}: patternProperties must have one pattern and no other keyword for properties, and "
                    "propertyNames must not be combined with properties; use additionalProperties"
                )
        if patterns is not None:
            ((pattern, value),) = patterns.items()
            return self._pair(strings_with_pattern(pattern, f"{path}/patternProperties"), self._value(value, path))
        rest = self._rest(node, "properties", "additionalProperties")
        if rest is False:
            return NOTHING
        if names is not None:
            key = self._value({"allOf": [{"type": "string"}, names]}, f"{path}/propertyNames")
        elif named:
            self._rules |= other_keys(named, f"{name}-k")
            key = Ref(f"{name}-k")
        else:
            self._rules["key"] = KEY
            key = Ref("key")
        return self._pair(key, self._value(rest, f"{path}/additionalProperties"))

    def _states(
        self, name: str, pairs: list[tuple[Expression, bool]], extra: Expression, counts: tuple[int, int | None],
        path: str,
    ) -> Expression:  # fmt: skip
        """Match the contents of an object: the required pairs and any of the others, in order, then extra ones.

        There is a rule for each pair and number of pairs before it, as far as that number matters."""
        least, most = counts
        cap = max(1, least, most or 0)
        if len(pairs) * cap > _MOST_STATES:
            raise ArgumentError(
                f"{path}: properties times minProperties or maxProperties must be at most {_MOST_STATES}, got "
                f"{len(pairs)} · {cap}; leave them out"
            )
        states = [self._end(extra, before, counts) for before in range(cap + 1)]
        for at, (pair, required) in reversed(list(enumerate(pairs))):
            earlier = list[Expression]()
            for before in range(cap + 1):
                comma = self.punctuation.comma if before else EMPTY
                this = sequence(comma, pair, states[min(before + 1, cap)])
                options = [] if most is not None and before >= most else [this]
                self._rules[f"{name}-p{at}-{before}"] = choice([*options, *([] if required else [states[before]])])
                earlier.append(Ref(f"{name}-p{at}-{before}"))
            states = earlier
        return states[0]

    def _end(self, extra: Expression, before: int, counts: tuple[int, int | None]) -> Expression:
        """Match the rest of an object after `before` named pairs. Extra keys may be equal, so only one of them
        counts."""
        least, most = counts
        if before + 1 < least:
            return NOTHING
        left = None if most is None else max(0, most - before)
        missing = int(before < least)
        more = sequence(self.punctuation.comma, extra)
        if before:
            return sequence(Repeat(more, missing, left), self.punctuation.gap)
        some = sequence(extra, Repeat(more, 0, None if left is None else max(0, left - 1)), self.punctuation.gap)
        return choice([*([some] if left != 0 else []), *([] if missing else [EMPTY])])


def _counts(node: Node, what: str) -> tuple[int, int | None]:
    """Return the minimum and maximum number of items or properties."""
    most = node.get(f"max{what}")
    return int(node.get(f"min{what}", 0)), None if most is None else int(most)


def _bounds(node: Node) -> Bounds:
    """Return the bounds of a number; of two bounds on one side, the tighter one."""
    lows = [(Decimal(str(node[name])), name != "minimum") for name in ("minimum", "exclusiveMinimum") if name in node]
    highs = [(Decimal(str(node[name])), name != "maximum") for name in ("maximum", "exclusiveMaximum") if name in node]
    low, above = max(lows, default=(None, False))
    high, below = min(highs, key=lambda bound: (bound[0], not bound[1]), default=(None, False))
    return Bounds(low, high, above, below)


def _converted(converter: _Converter) -> str:
    rules = prune_rules(converter.rules(), "root")
    if rules is None:
        raise ArgumentError("a schema must admit some value, and this one admits none; check its bounds and enums")
    return format_rules(unroll(rules))
