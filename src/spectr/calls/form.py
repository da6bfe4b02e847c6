"""How a model writes calls of functions. This does not depend on the model's name: its chat template is given a
conversation with calls, and the model was trained to write them as the template does."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from spectr.errors import ArgumentError

__all__ = ["TEMPLATE_ERRORS", "CallForm", "Render"]

Render = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], bool], str]
"""Returns the text of a conversation with functions; if the flag is set, up to where the model's answer begins."""

TEMPLATE_ERRORS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What a chat template raises on a conversation, or functions, of a form that it does not expect: it is a program."""

_NAME, _ARGUMENTS, _ANSWER = "probe_function", {"probe_key": "probe value"}, "Probe answer"
_FUNCTION = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]},
    },
}
_QUESTION = {"role": "user", "content": "Probe question"}
_KEYS = ("arguments", "parameters")


def _call(number: int) -> dict[str, Any]:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}


def _refusal(why: str) -> ArgumentError:
    return ArgumentError(
        f"tools need a model whose chat template writes calls as JSON objects; that of this model {why}"
    )


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a call is written: a JSON object of a name and arguments, between two texts."""

    begin: str  # the text before the object; if it is empty, an answer is either a single call or text
    end: str  # the text after the object
    key: str  # the key of the arguments in the object
    between: str | None  # the text between two calls; None if an answer has at most one call

    @property
    def marker(self) -> str:
        """The text by which a call is recognized; empty if a call is recognized by its object alone."""
        return self.begin.strip()

    @property
    def closing(self) -> str:
        """The end of a call without the white space around it."""
        return self.end.strip()

    @classmethod
    def of(cls, render: Render) -> "CallForm":
        """Return the form in which a chat template writes calls; raises ArgumentError if it writes none, or writes them
        in another form than a JSON object."""
        prompt = _rendered(render, [_QUESTION], is_open=True)
        if _NAME not in prompt:
            raise _refusal("does not show functions")
        before, after = _around_answers(render, prompt)
        body = _answer(render, [_call(1)], before, after)
        begin, end, key = _parts(body)
        return cls(begin, end, key, _between(render, body, before, after))


def _rendered(render: Render, turns: Sequence[dict[str, Any]], *, is_open: bool = False) -> str:
    try:
        return render(turns, [_FUNCTION], is_open)
    except TEMPLATE_ERRORS as error:
        raise _refusal(f"fails: {error}") from error


def _around_answers(render: Render, prompt: str) -> tuple[str, str]:
    """Return the texts that the template writes before and after an answer, and so before and after calls."""
    answered = _rendered(render, [_QUESTION, {"role": "assistant", "content": _ANSWER}])
    before, found, after = answered.partition(_ANSWER)
    if not found or not before.startswith(prompt):
        raise _refusal("writes earlier answers differently from where an answer begins")
    return before, after


def _answer(render: Render, calls: list[dict[str, Any]], before: str, after: str) -> str:
    """Return what the template writes for some calls, without the texts before and after an answer."""
    text = _rendered(render, [_QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}])
    if not text.startswith(before) or not text.endswith(after):
        raise _refusal("writes them in a form that is not known")
    return text[len(before) : len(text) - len(after)]


def _parts(body: str) -> tuple[str, str, str]:
    """Return the text before the object of a call, the text after it, and the key of the arguments."""
    place = body.find("{")
    try:
        found, end = json.JSONDecoder().raw_decode(body, place) if place >= 0 else (None, 0)
    except ValueError:
        found, end = None, 0
    for key in _KEYS:
        if isinstance(found, dict) and list(found.items()) == [("name", _NAME), (key, _ARGUMENTS)]:
            return body[:place], body[end:], key
    raise _refusal(f"writes {body.strip()[:200]!r}")


def _between(render: Render, one: str, before: str, after: str) -> str | None:
    """Return the text between two calls; None if the template takes only one."""
    try:
        two = _answer(render, [_call(1), _call(2)], before, after)
    except ArgumentError:
        return None
    is_twice = two.startswith(one) and two.endswith(one) and len(two) >= 2 * len(one)
    return two[len(one) : len(two) - len(one)] if is_twice else None
