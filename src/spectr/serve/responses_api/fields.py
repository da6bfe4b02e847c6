"""The fields of the bodies of `/v1/responses`, with OpenAI's names.

The docstring below a field is its description in `/openapi.json` and in docs/http.md.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from spectr.serve.chat_fields import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS, FunctionName
from spectr.serve.errors import ApiError
from spectr.serve.fields import Fields
from spectr.serve.protocol import Count, SamplingFields

__all__ = [
    "CallItem",
    "InputItem",
    "MessageItem",
    "NamedFunctionTool",
    "ResponsesRequest",
    "ResultItem",
    "TextSettings",
]

Id = Annotated[str, Field(min_length=1, max_length=128)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Fields):
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    """The kind of the part: `input_text`, or `output_text` in answers that are sent back."""
    text: str
    """The text of the part. The parts of a content are joined without a separator."""
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    """Empty; accepted because answers have it."""
    logprobs: list[Any] | None = None
    """Accepted because answers have it, and not used."""


Content = str | Annotated[list[InputText], Field(fail_fast=True, max_length=MOST_PARTS)]


class _Item(Fields):
    id: Id | None = None
    """The id of the item; accepted and not used."""
    status: Status | None = None
    """Accepted and not used."""


class MessageItem(_Item):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    """The kind of the item."""
    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks; developer means the same as system."""
    content: Content
    """What is said, as a string or in parts."""


class CallItem(_Item):
    """A call of a function that the model made."""

    type: Literal["function_call"]
    """The kind of the item."""
    call_id: Id
    """The id of the call, which the item with its result repeats."""
    name: FunctionName
    """The function's name."""
    arguments: str
    """The arguments, a JSON object as a string."""


class ResultItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    """The kind of the item."""
    call_id: Id
    """The id of the call."""
    output: Content
    """What the function returned."""


def _kind(item: Any) -> str:
    """Return the name of an item's model; an item without a type is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return f"item:{kind}" if isinstance(kind, str) and len(kind) < 80 else "item:?"


InputItem = Annotated[
    Annotated[MessageItem, Tag("item:message")]
    | Annotated[CallItem, Tag("item:function_call")]
    | Annotated[ResultItem, Tag("item:function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message="an item of another type",
    ),
]


def _bounded(given: Any) -> Any:
    """Refuse items that have too many parts together, before each is checked."""
    if isinstance(given, list) and len(given) <= MOST_MESSAGES:
        lists = [item.get(name) for item in given if isinstance(item, dict) for name in ("content", "output")]
        if (count := sum(len(parts) for parts in lists if isinstance(parts, list))) > MOST_MESSAGES:
            raise ApiError(400, f"input must have at most {MOST_MESSAGES} parts together, got {count}", "input",
                           "invalid_value")  # fmt: skip
    return given


class FunctionTool(Fields):
    """A function that the model may call."""

    type: Literal["function"]
    """The kind of the tool; only functions are supported."""
    name: FunctionName
    """The function's name."""
    description: str | None = None
    """What the function does, and when to call it."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments, of the type object. Default: no parameters."""
    strict: bool | None = None
    """True: the arguments of every call are valid under `parameters`. False: they need not be. Default: true where
    `tool_choice` makes the model call a function, false otherwise."""


class NamedFunctionTool(Fields):
    """The one function that the model must call."""

    type: Literal["function"]
    """The kind of the tool."""
    name: FunctionName
    """The name of one of the functions in `tools`."""


class TextFormat(Fields):
    """The form that the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    """`text` for any text, `json_object` for any JSON object, `json_schema` for JSON that satisfies a schema."""
    name: str | None = Field(None, max_length=64)
    """A name for the schema; accepted and not used."""
    description: str | None = None
    """A description of the schema; accepted and not used. The model does not see it."""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """The JSON schema that the text must satisfy; required if the type is `json_schema`."""
    strict: bool | None = None
    """Accepted and not used: the schema is always enforced."""


class TextSettings(Fields):
    """Settings of the text of the answer."""

    format: TextFormat | None = None
    """The form that the text must have. Default: any text."""


class ResponseStreamOptions(Fields):
    """Optional contents of a stream."""

    include_obfuscation: Literal[False] | None = None
    """Only false is supported: events are not padded."""


class ResponsesRequest(SamplingFields):
    """The body of `/v1/responses`. Nothing is stored, so that the whole conversation is in `input`."""

    input: (
        str
        | Annotated[
            list[InputItem],
            Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES),
            BeforeValidator(_bounded),
        ]
    )
    """The conversation so far: a string for a message of the user, or messages, calls of functions and their results.
    The model's chat template turns it into a prompt."""
    instructions: str | None = None
    """A system message before the conversation. Default: none."""
    max_output_tokens: Count | None = None
    """The most tokens to generate, at least 1. Default: what remains of the context after the prompt."""
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    """Functions that the model may call. Its chat template must show them, and write calls as JSON objects.
    Default: none."""
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    """`auto`: the answer is text, calls of functions, or both. `required`: it is at least one call. `none`: it is text,
    and the functions are not shown to the model. An object with a function's name: it is one call of this function.
    Default: `auto` if there are tools."""
    parallel_tool_calls: bool | None = None
    """False: the answer has at most one call. Default: true."""
    text: TextSettings | None = None
    """Settings of the text of the answer."""
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None = None
    """`message.output_text.logprobs`: report the log-probability of each token under the model's own distribution,
    before temperature, filters and penalties. Default: nothing more."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """How many of the likeliest tokens in the place of each token to report as well; it needs the `include` above.
    Default: 0."""
    stream_options: ResponseStreamOptions | None = None
    """Optional contents of a stream; allowed if `stream` is true."""
    store: bool | None = None
    """Only false is supported: nothing is stored. Default: false."""
    truncation: Literal["disabled"] | None = None
    """Only `disabled` is supported: a conversation that does not fit into the context is refused."""
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)] | None = None
    """Up to 16 texts under names, which the response repeats. Default: none."""
