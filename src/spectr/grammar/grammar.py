"""The user's view of a grammar: a JSON schema, a regular expression, a grammar in EBNF, or a choice of texts.

Each is converted to EBNF rules immediately, so that errors are raised where it is written. No tokenizer is needed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar.ebnf import format_rules, prune_rules, unroll
from spectr.grammar.expressions import Literal, choice
from spectr.grammar.layout import LAYOUTS, Layout
from spectr.grammar.regex import full_match
from spectr.grammar.schema import schema_ebnf

__all__ = ["Grammar"]

_MOST_BYTES = 1 << 18  # bytes of the user's input
_MOST_WRITTEN = 1 << 20  # bytes of the resulting rules


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that a text must match, immutable and hashable.

    Create one with `json_schema`, `json`, `regex`, `ebnf` or `choice`.

    >>> Grammar.choice(["yes", "no"])
    Grammar.choice: root ::= "yes" | "no"
    """

    kind: str  # the constructor that created it
    text: str  # its rules in EBNF, as xgrammar reads it
    root: str = "root"  # the rule that a text must match
    is_foreign: bool = False  # contains rules written by users, so that it may take any time to compile

    def __post_init__(self) -> None:
        if len(self.text.encode(errors="surrogatepass")) > _MOST_WRITTEN:
            raise ArgumentError(
                f"{self.kind} must result in at most {_MOST_WRITTEN} bytes of rules, got {len(self.text)}; shorten it"
            )

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        return f"Grammar.{self.kind}: {text if len(text) <= 100 else text[:99] + '…'}"

    @classmethod
    def json_schema(cls, schema: Any, *, layout: Layout = "any", strict: bool = True) -> "Grammar":
        """Return the grammar of JSON that is valid under a schema: a mapping, JSON text, or a Pydantic model.

        `layout` controls white space: "any" (optional in the usual places), "line" (as json.dumps writes it) or
        "compact" (none). Properties appear in the order of the schema. Properties that it does not name are excluded
        unless it has `additionalProperties`, or `strict` is False. Keywords that a grammar cannot express, such as
        `uniqueItems`, are refused.

        >>> Grammar.json_schema({"type": "boolean"})
        Grammar.json_schema: root ::= v0 v0 ::= "true" | "false"
        """
        if layout not in LAYOUTS:
            raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        parsed = _read(schema)
        has_patterns = _mentions(parsed, ("pattern", "patternProperties"))
        return cls("json_schema", schema_ebnf(parsed, layout, strict=strict), is_foreign=has_patterns)

    @classmethod
    def json(cls, *, layout: Layout = "any") -> "Grammar":
        """Return the grammar of any JSON object."""
        if layout not in LAYOUTS:
            raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        return cls("json", schema_ebnf({"type": "object"}, layout, strict=True))

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Return the grammar of texts that match a regular expression as a whole.

        >>> Grammar.regex(r"[1-9]\\d?")
        Grammar.regex: root ::= [1-9] [0-9]?
        """
        rules = prune_rules({"root": full_match(_checked("regex", pattern))}, "root")
        if rules is None:
            raise ArgumentError(f"regex must match some text, got {pattern!r}")
        return cls("regex", format_rules(unroll(rules)), is_foreign=True)

    @classmethod
    def ebnf(cls, text: str, *, root: str = "root") -> "Grammar":
        """Return a context-free grammar in llama.cpp's notation (GBNF), such as `root ::= "a" [0-9]+ | other`.

        A text must match the rule called `root`."""
        if not isinstance(root, str) or not root:
            raise ArgumentError(f"root must be the name of a rule, got {root!r}")
        return cls("ebnf", _checked("ebnf", text), root, is_foreign=True)

    @classmethod
    def choice(cls, options: Sequence[str]) -> "Grammar":
        """Return the grammar that matches one of several texts."""
        if isinstance(options, str) or not isinstance(options, Sequence) or not options:
            raise ArgumentError(f"choice must be a list of at least one text, got {options!r}")
        texts = [Literal(_checked("choice", option)) for option in options]
        return cls("choice", format_rules({"root": choice(texts)}))


def _checked(kind: str, text: Any) -> str:
    """Return the text, or raise if it is not valid Unicode or too long."""
    if not isinstance(text, str):
        raise ArgumentError(f"{kind} must be a string, got {text!r}")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ArgumentError(f"{kind} must be valid Unicode text, got a lone surrogate")
    if len(text.encode()) > _MOST_BYTES:
        raise ArgumentError(f"{kind} must be at most {_MOST_BYTES} bytes long, got {len(text.encode())}")
    return text


def _read(schema: Any) -> Any:
    """Return a schema as JSON data, from a mapping, JSON text or a Pydantic model."""
    export = getattr(schema, "model_json_schema", None)
    source = export() if callable(export) else schema
    if not isinstance(source, str | Mapping | bool):
        raise ArgumentError(f"json_schema must be a mapping, JSON text or a Pydantic model, got {schema!r}")
    try:
        text = source if isinstance(source, str) else json.dumps(source, allow_nan=False)
        return json.loads(_checked("json_schema", text), parse_constant=_no_number)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"json_schema must be JSON: {error}") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _mentions(schema: Any, keywords: tuple[str, ...]) -> bool:
    """Return whether one of the keywords occurs anywhere in the schema."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if any(keyword in part for keyword in keywords):
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False
