"""The fields of the responses and events of `/v1/responses`, with OpenAI's names.

The docstring below a field is its description in `/openapi.json` and in docs/http.md. `assembly` makes responses and
events; a test checks them against these models.
"""

from typing import Any, Literal

from spectr.serve.reports import Answer, ResponseReport
from spectr.serve.responses import ErrorDetails
from spectr.serve.text_responses import PlaceLogprobs, PromptDetails, ResponseMetrics

__all__ = ["ResponseEvent", "ResponseObject"]

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer):
    """The text of a message."""

    type: Literal["output_text"]
    """The kind of the part."""
    text: str
    """The text."""
    annotations: list[Any]
    """Always empty; OpenAI's clients expect the field."""
    logprobs: list[PlaceLogprobs]
    """Log-probabilities of the tokens, if the request asks for them; otherwise empty."""


class OutputMessage(Answer):
    """A message of the model."""

    id: str
    """The id of the item."""
    type: Literal["message"]
    """The kind of the item."""
    role: Literal["assistant"]
    """Who speaks: the model."""
    status: Status
    """`incomplete` if the limit of tokens cut it off; `in_progress` in the event that begins it; else `completed`."""
    content: list[OutputText]
    """The text; empty in the event that begins the item."""


class OutputCall(Answer):
    """A call of a function. The client runs it and sends the result in an item of the type function_call_output."""

    id: str
    """The id of the item."""
    type: Literal["function_call"]
    """The kind of the item."""
    call_id: str
    """The id of the call, for the item with its result."""
    name: str
    """The function's name."""
    arguments: str
    """The arguments: a JSON object as a string."""
    status: Status
    """`incomplete` if the limit of tokens cut it off; `in_progress` in the event that begins it; else `completed`."""


class Incomplete(Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]
    """The text reached the limit of tokens, that of the request or that of the context."""


class OutputDetails(Answer):
    """What of the generated text had been predicted."""

    reasoning_tokens: int
    """Always 0; OpenAI's clients expect the field."""
    accepted_prediction_tokens: int
    """Tokens of the prediction that were generated where they were predicted."""
    rejected_prediction_tokens: int
    """The other tokens of the prediction."""


class ResponseUsage(Answer):
    """How many tokens a request took."""

    input_tokens: int
    """Tokens of the prompt."""
    input_tokens_details: PromptDetails
    """More about the tokens of the prompt."""
    output_tokens: int
    """Generated tokens."""
    output_tokens_details: OutputDetails
    """More about the generated tokens."""
    total_tokens: int
    """The sum of both."""


class ResponseObject(Answer):
    """The response of `/v1/responses`. It repeats the settings of the request; those that the request left out are
    null."""

    id: str
    """The id of the response."""
    object: Literal["response"]
    """The kind of the response."""
    created_at: int
    """When the response was begun, in seconds since 1970."""
    status: Status
    """`completed`, or `incomplete` if the limit of tokens ended it; `in_progress` while it is streamed."""
    error: None
    """Always null: a request that fails has a status of its own, or an event of the type error."""
    incomplete_details: Incomplete | None
    """Why the response is incomplete; null if it is complete or in progress."""
    model: str
    """The model's name."""
    output: list[OutputMessage | OutputCall]
    """What the model answered: messages, and calls of functions."""
    instructions: str | None
    """The system message of the request."""
    max_output_tokens: int | None
    """The limit of the request."""
    temperature: float | None
    """The temperature of the request."""
    top_p: float | None
    """The `top_p` of the request."""
    top_logprobs: int
    """How many log-probabilities the request asks for in the place of each token."""
    text: dict[str, Any]
    """The form of the text that the request asks for."""
    tools: list[dict[str, Any]]
    """The functions of the request."""
    tool_choice: str | dict[str, Any]
    """The `tool_choice` of the request, or its default."""
    parallel_tool_calls: bool
    """Whether the answer may have several calls."""
    truncation: Literal["disabled"]
    """Always disabled."""
    store: Literal[False]
    """Always false: nothing is stored."""
    previous_response_id: None
    """Always null; OpenAI's clients expect the field."""
    metadata: dict[str, str]
    """The metadata of the request."""
    user: str | None
    """The user of the request."""
    usage: ResponseUsage | None
    """How many tokens the request took; null while it is streamed."""
    metrics: ResponseMetrics | None = None
    """What speculation did; absent while it is streamed."""
    spectr: ResponseReport | None = None
    """What is needed to generate the text again; absent while it is streamed."""


class ResponseEvent(Answer):
    """The data of an event, if `/v1/responses` is asked for a stream. Which fields it has depends on its type."""

    type: Literal[
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done",
        "response.completed", "response.incomplete", "error",
    ]  # fmt: skip
    """The kind of the event, which its line `event:` repeats."""
    sequence_number: int
    """The number of the event, from 0."""
    response: ResponseObject | None = None
    """The response so far, in the first two events; all of it in the last."""
    output_index: int | None = None
    """The number of an item in `output`."""
    item_id: str | None = None
    """The id of the item."""
    item: OutputMessage | OutputCall | None = None
    """An item that begins or ends."""
    content_index: int | None = None
    """The number of the part of the item: 0."""
    part: OutputText | None = None
    """A part that begins or ends."""
    delta: str | None = None
    """The next part of a text, or of arguments."""
    text: str | None = None
    """The whole text of a message that ends."""
    name: str | None = None
    """The name of the function of a call that ends."""
    arguments: str | None = None
    """The whole arguments of a call that ends."""
    logprobs: list[PlaceLogprobs] | None = None
    """Log-probabilities of the tokens of a text, if the request asks for them; otherwise empty."""
    code: str | None = None
    """The short name of an error."""
    message: str | None = None
    """What an error says."""
    param: str | None = None
    """The field of the request that an error is about."""
    error: ErrorDetails | None = None
    """An error, in the form of other errors."""
