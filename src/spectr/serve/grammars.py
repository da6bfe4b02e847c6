"""Compiles the schemas, regexes and grammars of requests in a thread of their own, within the server's time limit."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.lm import LM
from spectr.serve.errors import ApiError
from spectr.serve.json_text import json_bytes
from spectr.serve.protocol import ChatRequest, CompletionRequest, ResponseFormat
from spectr.serve.settings import Limits
from spectr.serve.tools import Calling
from spectr.serve.workers import Workers

__all__ = ["GrammarCache", "WantedGrammar", "wanted_grammar"]

_KEPT = 64  # bodies whose grammar is known without converting it again
_MAKERS: dict[str, Callable[[Any], Grammar]] = {
    "json_": Grammar.json_schema, "regex": Grammar.regex, "grammar": Grammar.ebnf, "choice": Grammar.choice,
    "json_object": lambda _: Grammar.json(),
}  # fmt: skip


class GrammarCache:
    """Compiled grammars of a model. One is compiled at a time; keys take turns, and requests without a grammar, or with
    one that is known, do not wait. All calls are from the event loop."""

    def __init__(self, lm: LM, limits: Limits) -> None:
        self._lm, self._limits = lm, limits
        self._workers = Workers(1, max(1, limits.queue), "spectr-grammars")
        self._known: OrderedDict[tuple[str, bytes], Grammar] = OrderedDict()
        self._compiler: GrammarCompiler | None = None

    def prepare(self) -> GrammarCompiler:
        """Read the vocabulary of the model once, and set the time limit. From any thread."""
        if self._compiler is None:
            compiler = self._lm.grammars
            compiler.limit_time(self._limits.compile_time)
            self._compiler = compiler
        return self._compiler

    async def compiled(self, wanted: "WantedGrammar", tenant: str) -> CompiledGrammar:
        """Return the grammar that a body asks for, compiled unless it is known."""
        if len(wanted.text) > (most := self._limits.grammar_bytes):
            raise ApiError(400, f"a schema, regex or grammar must have at most {most} bytes, got {len(wanted.text)}",
                           wanted.param, "invalid_grammar")  # fmt: skip
        if (found := self._find(wanted)) is not None:
            return found
        try:
            made = await self._workers.run(tenant, lambda: self.prepare().compile(wanted.make()))
        except ArgumentError as error:
            raise ApiError(400, str(error), wanted.param, "invalid_grammar") from error
        self._known[wanted.kind, wanted.text] = made.grammar
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return made

    def _find(self, wanted: "WantedGrammar") -> CompiledGrammar | None:
        known = self._known.get((wanted.kind, wanted.text))
        if known is None or self._compiler is None or (found := self._compiler.find(known)) is None:
            return None
        self._known.move_to_end((wanted.kind, wanted.text))
        return found

    def close(self) -> None:
        """End the thread."""
        self._workers.close()


@dataclass(frozen=True, slots=True)
class WantedGrammar:
    """A grammar that a body asks for, before it is made."""

    kind: str
    text: bytes  # all that it depends on
    param: str  # the field of the body
    make: Callable[[], Grammar]


def wanted_grammar(body: CompletionRequest | ChatRequest, calling: Calling | None) -> WantedGrammar | None:
    """Return the grammar that a body asks for, by itself or for the functions that it lets the model call; or None. It
    belongs in a worker: a schema may have megabytes."""
    outputs, form = body.structured_outputs, body.response_format
    given: dict[str, Any] = {}
    if outputs is not None:
        given = {name: value for name, value in outputs if value not in (None, False)}
        if len(given) != 1:
            raise ApiError(400, f"structured_outputs takes one of json, regex, grammar and choice, got {len(given)}",
                           "structured_outputs")  # fmt: skip
    if form is not None and form.type != "text":
        if given:
            raise ApiError(400, "response_format and structured_outputs cannot both be given", "response_format")
        given = _of_form(form)
    param = "structured_outputs" if outputs else "response_format"
    if calling is not None and given:
        raise ApiError(400, f"{param} and tools cannot both be given, unless tool_choice is none", param)
    if calling is not None:
        return WantedGrammar("calls", calling.key, "tools", calling.grammar) if calling.needs_grammar else None
    for kind, value in given.items():
        return WantedGrammar(kind, _written(value, param), param, partial(_MAKERS[kind], value))
    return None


def _written(value: Any, param: str) -> bytes:
    try:
        return json_bytes(value)
    except ValueError as error:
        raise ApiError(400, f"a schema must be JSON with finite numbers: {error}", param, "invalid_grammar") from error


def _of_form(form: ResponseFormat) -> dict[str, Any]:
    """Return the kind of grammar of a response_format, with its schema."""
    schema = None if form.json_schema is None else form.json_schema.schema_
    if form.type == "json_schema" and schema is None:
        raise ApiError(400, "a response_format of type json_schema needs json_schema.schema",
                       "response_format.json_schema")  # fmt: skip
    return {"json_object": True} if form.type == "json_object" else {"json_": schema}
