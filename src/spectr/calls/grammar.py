"""Grammars of texts that contain calls of functions, or consist of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spectr.calls.form import CallForm
from spectr.errors import ArgumentError
from spectr.grammar import Grammar
from spectr.grammar.ebnf import format_rules
from spectr.grammar.expressions import EMPTY, Literal, Ref, choice, sequence

__all__ = ["Function", "call_grammar"]

_ROOT, _CALL, _MORE = "tool-calls", "tool-call", "tool-more"  # names of rules, besides those of the schema
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are not schemas
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are objects of schemas, under names that the schema's author chose."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call."""

    name: str
    parameters: dict[str, Any] | None  # a JSON schema of an object; None for no parameters
    is_enforced: bool  # whether arguments must be valid under the schema, and not only a JSON object


def call_grammar(form: CallForm, functions: Sequence[Function], *, is_required: bool, several: bool) -> Grammar:
    """Return the grammar of texts whose calls are valid.

    If calls are required the text consists of calls; otherwise it may contain some. Unless `several`, it has at most
    one call. Objects are laid out as json.dumps writes them, as chat templates do."""
    if not (is_required or form.marker):
        raise ArgumentError(
            "this model writes calls without a mark at their beginning, so that they cannot be told from text in "
            "advance: use strict with tool_choice required or with a named function"
        )
    options = [_object(form.key, function, f"#/anyOf/{at}") for at, function in enumerate(functions)]
    try:
        made = Grammar.json_schema({"anyOf": options}, layout="line")
    except ArgumentError as error:
        raise ArgumentError(_in_place(str(error), form.key, functions)) from error
    text = _required(form, several) if is_required else _optional(form, several)
    return replace(made, kind="calls", text=text + made.text, root=_ROOT)


def _object(key: str, function: Function, path: str) -> dict[str, Any]:
    """Return the schema of the object of a call, which stands at `path` of the whole schema."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    schema: Any = nothing if function.parameters is None else function.parameters
    if not function.is_enforced:
        schema = {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, key: _moved(schema, f"{path}/properties/{key}")},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _moved(schema: Any, path: str, *, is_named: bool = False) -> Any:
    """Return a schema with its references changed so that they hold at `path` of another schema. If `is_named`, the
    keys are names and not keywords, as those of `properties` are."""
    if isinstance(schema, list):
        return [_moved(part, path) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {
        name: part if name in _DATA and not is_named else _moved(part, path, is_named=name in _BY_NAME and not is_named)
        for name, part in schema.items()
    }
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#") and not is_named:
        moved["$ref"] = f"{path}{target[1:]}"
    return moved


def _in_place(message: str, key: str, functions: Sequence[Function]) -> str:
    """Return an error message in which schemas are named by their places in the request."""
    for at in reversed(range(len(functions))):
        message = message.replace(f"#/anyOf/{at}/properties/{key}", f"tools.{at}.function.parameters")
    return message


def _required(form: CallForm, several: bool) -> str:
    """Return the rules of texts that consist of calls."""
    again = choice([EMPTY, sequence(Literal(form.between or ""), Ref(_CALL), Ref(_MORE))])
    is_one = not several or form.between is None
    return format_rules(
        {_ROOT: sequence(Ref(_CALL), EMPTY if is_one else Ref(_MORE)), _CALL: _bounded(form, form.begin)}
        | ({} if is_one else {_MORE: again})
    )


def _optional(form: CallForm, several: bool) -> str:
    """Return the rules of texts that may contain calls: any text in which every marker is followed by a call."""
    rest = form.begin.lstrip().removeprefix(form.marker)
    mark = format_rules({"x": Literal(form.marker)}).removeprefix("x ::= ").strip()
    loop = "true" if several else "false"
    dispatch = f"{_ROOT} ::= TagDispatch(({mark}, {_CALL}), loop_after_dispatch={loop})\n"
    return dispatch + format_rules({_CALL: _bounded(form, rest)})


def _bounded(form: CallForm, begin: str) -> Any:
    """Return a call: `begin`, the object, and the text after it."""
    return sequence(Literal(begin), Ref("root"), Literal(form.end))
