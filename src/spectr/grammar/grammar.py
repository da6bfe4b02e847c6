"""What users write: a JSON schema, a regular expression, a grammar in EBNF, or a choice of texts.

Each becomes rules in EBNF at once, so that what is wrong with it is said where it is written. No tokenizer is needed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar.ebnf import Literal, choice, cleaned, unrolled, written
from spectr.grammar.regex import matching
from spectr.grammar.schema import LAYOUTS, Layout, schema_ebnf

__all__ = ["Grammar"]

_MOST_BYTES = 1 << 18  # of what a user writes
_MOST_WRITTEN = 1 << 20  # of the rules that it becomes


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must look like. Made by `json_schema`, `json`, `regex`, `ebnf` or `choice`; immutable and hashable.

    >>> Grammar.choice(["yes", "no"])
    Grammar.choice: root ::= "yes" | "no"
    """

    kind: str  # how it was made
    text: str  # its rules in EBNF, as xgrammar reads it
    root: str = "root"  # the rule that a text must match
    is_foreign: bool = False  # some rules were written by users, so that it may take any time to compile

    def __post_init__(self) -> None:
        if len(self.text.encode(errors="surrogatepass")) > _MOST_WRITTEN:
            raise ArgumentError(
                f"{self.kind} must come to at most {_MOST_WRITTEN} bytes of rules, got {len(self.text)}; shorten it"
            )

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        return f"Grammar.{self.kind}: {text if len(text) <= 100 else text[:99] + '…'}"

    @classmethod
    def json_schema(cls, schema: Any, *, layout: Layout = "any", strict: bool = True) -> "Grammar":
        """JSON that is valid under a schema: a mapping, JSON text, or a Pydantic model. `layout` says where spaces
        stand: "any" (in the usual places, or not), "line" (as json.dumps writes it) or "compact" (nowhere). Properties
        come in the order of the schema. Those that it does not name do not come unless `additionalProperties` says so,
        or it is not `strict`. What a grammar cannot express, such as `uniqueItems`, is refused.

        >>> Grammar.json_schema({"type": "boolean"})
        Grammar.json_schema: root ::= v0 v0 ::= "true" | "false"
        """
        if layout not in LAYOUTS:
            raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        given = _read(schema)
        has_patterns = _mentions(given, ("pattern", "patternProperties"))
        return cls("json_schema", schema_ebnf(given, layout, strict=strict), is_foreign=has_patterns)

    @classmethod
    def json(cls, *, layout: Layout = "any") -> "Grammar":
        """Any JSON object."""
        if layout not in LAYOUTS:
            raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        return cls("json", schema_ebnf({"type": "object"}, layout, strict=True))

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """A text that matches a regular expression as a whole.

        >>> Grammar.regex(r"[1-9]\\d?")
        Grammar.regex: root ::= [1-9] [0-9]?
        """
        rules = cleaned({"root": matching(_checked("regex", pattern))}, "root")
        if rules is None:
            raise ArgumentError(f"regex must match some text, got {pattern!r}")
        return cls("regex", written(unrolled(rules)), is_foreign=True)

    @classmethod
    def ebnf(cls, text: str, *, root: str = "root") -> "Grammar":
        """A context-free grammar in the notation of llama.cpp (GBNF): `root ::= "a" [0-9]+ | other`. A text must match
        the rule called `root`."""
        if not isinstance(root, str) or not root:
            raise ArgumentError(f"root must be the name of a rule, got {root!r}")
        return cls("ebnf", _checked("ebnf", text), root, is_foreign=True)

    @classmethod
    def choice(cls, options: Sequence[str]) -> "Grammar":
        """One of several texts."""
        if isinstance(options, str) or not isinstance(options, Sequence) or not options:
            raise ArgumentError(f"choice must be a list of at least one text, got {options!r}")
        texts = [Literal(_checked("choice", option)) for option in options]
        return cls("choice", written({"root": choice(texts)}))


def _checked(kind: str, text: Any) -> str:
    """A text that is one, and not too long."""
    if not isinstance(text, str):
        raise ArgumentError(f"{kind} must be a string, got {text!r}")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ArgumentError(f"{kind} must be valid Unicode text, got the half of a character")
    if len(text.encode()) > _MOST_BYTES:
        raise ArgumentError(f"{kind} must be at most {_MOST_BYTES} bytes long, got {len(text.encode())}")
    return text


def _read(schema: Any) -> Any:
    """A schema as JSON has it, whatever it was given as."""
    made = getattr(schema, "model_json_schema", None)
    given = made() if callable(made) else schema
    if not isinstance(given, str | Mapping | bool):
        raise ArgumentError(f"json_schema must be a mapping, JSON text or a Pydantic model, got {schema!r}")
    try:
        text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        return json.loads(_checked("json_schema", text), parse_constant=_no_number)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"json_schema must be JSON: {error}") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _mentions(schema: Any, keywords: tuple[str, ...]) -> bool:
    """Whether some keyword stands anywhere."""
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
