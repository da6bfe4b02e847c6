"""The fields of generated texts in responses, with OpenAI's names. `reports` has those that are this server's own.

The docstring below a field is its description in `/openapi.json` and in docs/http.md. `replies` writes the responses; a
test holds them to these models.
"""

from typing import Literal

from spectr.serve.reports import Answer, ChoiceReport, ChunkReport, ResponseReport, SpeculativeDecoding

__all__ = ["ChatChunk", "ChatResponse", "CompletionChunk", "CompletionResponse"]

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(Answer):
    """How many tokens of the prompts were reused."""

    cached_tokens: int
    """Tokens of a prompt that were not computed again, because an earlier text began with them; the largest such number
    among the texts."""


class TextDetails(Answer):
    """What of the generated text had been predicted."""

    accepted_prediction_tokens: int
    """Tokens of the prediction that were generated where they were predicted, over all texts."""
    rejected_prediction_tokens: int
    """The other tokens of the prediction, over all texts."""


class Usage(Answer):
    """How many tokens a request took."""

    prompt_tokens: int
    """Tokens of all prompts."""
    completion_tokens: int
    """Tokens of all generated texts."""
    total_tokens: int
    """The sum of both."""
    prompt_tokens_details: PromptDetails
    """More about the tokens of the prompts."""
    completion_tokens_details: TextDetails
    """More about the generated tokens."""


class ResponseMetrics(Answer):
    """Statistics of a response."""

    speculative_decoding: SpeculativeDecoding
    """What speculation did."""


class _Head(Answer):
    id: str
    """The id of the response; all chunks of a stream have the same."""
    created: int
    """When the response was begun, in seconds since 1970."""
    model: str
    """The model's name."""
    system_fingerprint: str
    """The beginning of a digest of the weights."""


class _Whole(_Head):
    usage: Usage
    """How many tokens the request took."""
    metrics: ResponseMetrics
    """What speculation did."""
    spectr: ResponseReport
    """What is needed to generate the texts again."""


class _Chunk(_Head):
    usage: Usage | None = None
    """How many tokens the request took; in the last chunk, if `stream_options.include_usage` is true."""
    metrics: ResponseMetrics | None = None
    """What speculation did; in the last chunk."""
    spectr: ChunkReport | None = None
    """Steps and tokens, if the request asks for them; seed and receipt in the last chunk."""


class CompletionLogprobs(Answer):
    """Log-probabilities of the tokens of a completion, under the model's own distribution."""

    tokens: list[str]
    """The text of each token."""
    token_logprobs: list[float | None]
    """The log-probability of each token; null for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, float] | None] | None
    """For each place, the log-probabilities of the token and of the likeliest tokens, by their texts (another
    token with the text of this one, such as another part of a character, is named by its bytes: `bytes:\\xf0`); null if
    `logprobs` is 0."""
    text_offset: list[int]
    """Where each token begins in the joined texts of the tokens, in characters."""


class CompletionPart(Answer):
    """The next part of one text of a completion."""

    index: int
    """The number of the text: first all texts of the first prompt, then those of the second, and so on."""
    text: str
    """The next part of the text; with `echo`, the first part is the prompt."""
    logprobs: CompletionLogprobs | None
    """Log-probabilities of the tokens, if the request asks for them."""
    finish_reason: FinishReason | None
    """`stop` if a stop token or stop string ended the text, `length` if `max_tokens` did; null while it goes on."""


class CompletionChoice(CompletionPart):
    """One text of a completion."""

    text: str
    """The text; with `echo`, behind the prompt."""
    spectr: ChoiceReport | None = None
    """Steps and tokens of the text, if the request asks for them."""


class CompletionResponse(_Whole):
    """The response of `/v1/completions`."""

    object: Literal["text_completion"]
    """The kind of the response."""
    choices: list[CompletionChoice]
    """The texts."""


class CompletionChunk(_Chunk):
    """The data of an event, if `/v1/completions` is asked for a stream. After the last chunk comes `[DONE]`."""

    object: Literal["text_completion"]
    """The kind of the response."""
    choices: list[CompletionPart]
    """The next part of one text; empty in the last chunk."""


class TokenLogprob(Answer):
    """A token and its log-probability under the model's own distribution."""

    token: str
    """The text of the token."""
    logprob: float
    """The log-probability."""
    bytes: list[int]
    """The bytes of the token; a character may take several tokens."""


class PlaceLogprobs(TokenLogprob):
    """A generated token, with the likeliest tokens in its place."""

    top_logprobs: list[TokenLogprob]
    """The likeliest tokens in its place, as many as `top_logprobs` of the request says."""


class ChatLogprobs(Answer):
    """Log-probabilities of the tokens of an answer."""

    content: list[PlaceLogprobs]
    """The tokens of the answer, or of its next part."""
    refusal: None
    """Always null; OpenAI's clients expect the field."""


class CalledFunction(Answer):
    """A function that the model calls."""

    name: str
    """The function's name."""
    arguments: str
    """The arguments: a JSON object as a string, valid under the function's schema if `strict` was set."""


class MadeCall(Answer):
    """A call of a function. The client runs it and sends the result in a message with the role tool."""

    id: str
    """The id of the call, for the message with its result."""
    type: Literal["function"]
    """The kind of the tool."""
    function: CalledFunction
    """The function that is called."""


class CalledPart(Answer):
    """The next part of a function that the model calls."""

    name: str | None = None
    """The function's name; in the first part of a call only."""
    arguments: str
    """The next part of the arguments."""


class CallPart(Answer):
    """The next part of a call."""

    index: int
    """The number of the call in the answer, from 0."""
    id: str | None = None
    """The id of the call; in its first part only."""
    type: Literal["function"] | None = None
    """The kind of the tool; in the first part of a call only."""
    function: CalledPart
    """The next part of the function that is called."""


class ChatMessage(Answer):
    """The answer to a conversation."""

    role: Literal["assistant"]
    """Who speaks: the model."""
    content: str | None
    """The text of the answer; null if it has calls and no text."""
    tool_calls: list[MadeCall] | None = None
    """The functions that the model calls; absent if it calls none."""
    refusal: None
    """Always null; OpenAI's clients expect the field."""


class ChatDelta(Answer):
    """The next part of an answer."""

    role: Literal["assistant"] | None = None
    """Who speaks: the model; in the first part only."""
    content: str | None = None
    """The next part of the text; absent if it is empty, and null in the first part of an answer that begins with a
    call."""
    tool_calls: list[CallPart] | None = None
    """The next parts of calls; absent if there are none."""


class _ChatText(Answer):
    index: int
    """The number of the answer, from 0."""
    logprobs: ChatLogprobs | None
    """Log-probabilities of the tokens, if the request asks for them."""
    finish_reason: ChatFinishReason | None
    """`tool_calls` if the model ended the answer and called functions in it; otherwise `stop` if a stop token or stop
    string ended the text, which may have been within the arguments of a call, and `length` if `max_tokens` did; null
    while it goes on."""


class ChatChoice(_ChatText):
    """One answer."""

    message: ChatMessage
    """The answer."""
    spectr: ChoiceReport | None = None
    """Steps and tokens of the answer, if the request asks for them."""


class ChatPart(_ChatText):
    """The next part of one answer."""

    delta: ChatDelta
    """The next part."""


class ChatResponse(_Whole):
    """The response of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    """The kind of the response."""
    choices: list[ChatChoice]
    """The answers."""


class ChatChunk(_Chunk):
    """The data of an event, if `/v1/chat/completions` is asked for a stream. After the last chunk comes `[DONE]`."""

    object: Literal["chat.completion.chunk"]
    """The kind of the response."""
    choices: list[ChatPart]
    """The next part of one answer; empty in the last chunk."""
