"""The fields of conversations: messages, and the tools that the model may use.

The docstring below a field is its description in `/openapi.json` and in docs/http.md.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from spectr.serve.errors import ApiError
from spectr.serve.fields import MOST_FIELDS, Fields

__all__ = ["Content", "Message", "Messages", "NamedTool", "TextPart", "Tool", "ToolCall"]

MOST_MESSAGES = 4096
MOST_PARTS = 1024  # of the content of one message
MOST_TOOLS = 128
MOST_CALLS = 4096  # of all messages together


class TextPart(BaseModel):
    """A part of a message."""

    model_config = Fields.model_config  # not a subclass of `Fields`: `_parts` limits how many fields it has
    type: Literal["text"]
    """The kind of the part; only text is supported."""
    text: str
    """The text of the part. The parts of a content are joined without a separator."""


def _parts(given: Any) -> Any:
    """Refuse a content of too many parts, or of parts with too many fields, before each part is checked."""
    if isinstance(given, list) and (
        len(given) > MOST_PARTS or any(isinstance(part, dict) and len(part) > MOST_FIELDS for part in given)
    ):
        raise ApiError(400, f"a content must have at most {MOST_PARTS} parts of {MOST_FIELDS} fields", "content",
                       "invalid_value")  # fmt: skip
    return given


def _together(given: Any) -> Any:
    """Refuse messages that have too many parts or calls together, before each is checked."""
    if not isinstance(given, list) or len(given) > MOST_MESSAGES:
        return given
    for name, noun, most in (("content", "parts", MOST_MESSAGES), ("tool_calls", "tool_calls", MOST_CALLS)):
        lists = [message.get(name) for message in given if isinstance(message, dict)]
        if (count := sum(len(found) for found in lists if isinstance(found, list))) > most:
            raise ApiError(400, f"messages must have at most {most} {noun} together, got {count}", "messages",
                           "invalid_value")  # fmt: skip
    return given


Content = str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_PARTS), BeforeValidator(_parts)]


FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class CalledFunction(Fields):
    """A function that the model called, with its arguments."""

    name: FunctionName
    """The function's name."""
    arguments: str
    """The arguments, a JSON object as a string."""


class ToolCall(Fields):
    """A call that the model made earlier in the conversation."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    """The id of the call, which the message with its result repeats."""
    type: Literal["function"]
    """The kind of the tool; only functions are supported."""
    function: CalledFunction
    """The function that was called."""


class Message(Fields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks; developer means the same as system, and tool brings the result of a call."""
    content: Content | None = None
    """What is said, as a string or in parts; null is allowed for an assistant's message with `tool_calls` only. A
    user's message must not be empty."""
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    """The calls of an assistant's message."""
    tool_call_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The id of the call whose result this message brings; for the role tool only."""
    refusal: None = None
    """Always null; accepted because responses have it, so that a client can send their messages back."""


Messages = Annotated[
    list[Message], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES), BeforeValidator(_together)
]


class FunctionDefinition(Fields):
    """A function that the model may call. The model sees the definition through its chat template."""

    name: FunctionName
    """The function's name."""
    description: str | None = None
    """What the function does, and when to call it."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments, of the type object. Default: no parameters."""
    strict: bool | None = None
    """True: the arguments of every call are valid under `parameters`. False: they need not be. Default: true where
    `tool_choice` makes the model call a function, false otherwise."""


class Tool(Fields):
    """A tool that the model may use."""

    type: Literal["function"]
    """The kind of the tool; only functions are supported."""
    function: FunctionDefinition
    """The function."""


class NamedFunction(Fields):
    """The name of a function."""

    name: FunctionName
    """The name of one of the functions in `tools`."""


class NamedTool(Fields):
    """The one tool that the model must use."""

    type: Literal["function"]
    """The kind of the tool."""
    function: NamedFunction
    """The function that must be called."""
