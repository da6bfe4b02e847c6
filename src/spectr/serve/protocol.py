"""The fields of request bodies, with OpenAI's names and vLLM's where OpenAI has none.

The docstring below a field is its description in `/openapi.json` and in docs/http.md.

An unknown field is refused by name. So is one that OpenAI's interface knows and this server does not support: it would
change the answer, and is never ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spectr.serve.chat_fields import MOST_TOOLS, Content, Messages, NamedTool, Tool
from spectr.serve.errors import ApiError
from spectr.serve.fields import Body, Fields

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationFields",
    "ResumeFields",
    "ResumedText",
    "SamplingFields",
    "SpeculationFields",
    "TokenizeRequest",
]

MOST_TOKENS = 1 << 18  # of one list of token ids; the model's context is the narrower bound
MOST_PROMPTS = 1024  # and most texts for each; `Limits.texts` is the narrower bound
MOST_CHOICES = 1024
MOST_BIASES = 4096  # `Limits.bias_tokens` is the narrower bound
MOST_STOPS = 64
MOST_NODES = 64


def _short(given: Any) -> Any:
    """Refuse a long `logit_bias` before its entries are checked: a dictionary does not stop at its first error."""
    if isinstance(given, dict) and len(given) > MOST_BIASES:
        raise ApiError(400, f"logit_bias must have at most {MOST_BIASES} entries, got {len(given)}", "logit_bias",
                       "invalid_value")  # fmt: skip
    return given


Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[Token], Field(fail_fast=True, max_length=MOST_TOKENS)]
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MOST_PROMPTS)]
Bias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_short)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]


class StreamOptions(Fields):
    """Optional contents of a stream."""

    include_usage: bool | None = None
    """Include `usage`, for the whole request, in the last chunk. Default: false."""
    continuous_usage_stats: Literal[False] | None = None
    """Only false is supported: usage comes once, at the end."""
    event_ids: bool | None = None
    """Send an id with each event. A client that lost its connection sends the last id as the header `Last-Event-ID`,
    with the same body and seed, to get the rest. Default: as the server is configured, false unless it is part of a
    fleet."""


class JsonSchema(Fields):
    """A JSON schema as `response_format` carries it."""

    name: str | None = Field(None, max_length=64)
    """A name for the schema; accepted and not used."""
    description: str | None = None
    """A description of the schema; accepted and not used. The model does not see it."""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """The JSON schema that the text must satisfy; required if the type is `json_schema`."""
    strict: bool | None = None
    """Accepted and not used: the schema is always enforced."""


class ResponseFormat(Fields):
    """The form that the text must have, as OpenAI's clients ask for it."""

    type: Literal["text", "json_object", "json_schema"]
    """`text` for any text, `json_object` for any JSON object, `json_schema` for JSON that satisfies a schema."""
    json_schema: JsonSchema | None = None
    """The schema, if the type is `json_schema`."""


class StructuredOutputs(Fields):
    """The form that the text must have. Give exactly one of the fields; each has at most 64 KiB."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    """A JSON schema that the text must satisfy, as an object or as a string."""
    regex: str | None = None
    """A regular expression that must match the whole text."""
    grammar: str | None = None
    """A grammar in GBNF; the text must match its rule `root`."""
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_CHOICES)] | None = None
    """The strings of which the text must be one."""
    json_object: bool | None = None
    """True: the text must be a JSON object."""


class Prediction(Fields):
    """A text that the answer will probably repeat. It saves time where it is right, and changes nothing else."""

    type: Literal["content"]
    """The kind of the prediction; `content` is the only one."""
    content: Content
    """The predicted text, as a string or in parts."""


class ResumedText(Fields):
    """What was generated of a text before its server was lost."""

    tokens: Tokens
    """The ids of the tokens that were generated."""
    begun: bool
    """Whether any chunk of the text was sent, even one without tokens."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    """Why the text ended; null if it has not."""


class ResumeFields(Fields):
    """A stream that continues at this server: what was sent before, as a router knows it."""

    id: Annotated[str, Field(pattern=r"^(chat)?cmpl-[A-Za-z0-9]{1,64}$")]
    """The `id` of the response that broke off; the continuation has the same."""
    created: Annotated[int, Field(ge=0, lt=1 << 53)]
    """The `created` of the response that broke off, in seconds since 1970."""
    fingerprint: Annotated[str, Field(max_length=128)]
    """The `system_fingerprint` of the response that broke off; it must be this server's."""
    texts: Annotated[list[ResumedText], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
    """What was sent of each text, in the order of their indices."""


class SpeculationFields(Fields):
    """How speculation works for this one request. The distribution of the text does not depend on it; under the race,
    the text of a seed does not either."""

    rule: str | None = None
    """The rule that accepts drafts, such as race, optimal or kseq; it must be lossless. Default: the server's own."""
    drafter: str | None = None
    """The drafter: auto (the server's own), none, lookup or ngram. Default: auto."""
    nodes: Annotated[int, Field(ge=2, le=MOST_NODES)] | None = None
    """The most nodes of a token tree, the root included. Default: as the drafter chooses."""
    trace: bool | None = None
    """Report what each step added, where its tokens came from and which tree was drafted. Default: false."""
    statistics: bool | None = None
    """Report also how many tokens each step drafted and accepted. Default: false."""
    receipt: bool | None = None
    """Report everything that is needed to generate the texts again. Default: as the server is configured, true unless
    it was started with `--no-receipts`."""
    tokens: bool | None = None
    """Report the token ids of each chunk, or of each text. Default: false."""
    resume: ResumeFields | None = None
    """Continue a stream that broke off at another server; a router fills this in. It needs `stream` and the seed."""


class SamplingFields(Body):
    """What all requests for text have in common."""

    model: str | None = None
    """The model's name; another name is refused with 404. Default: the server's only model."""
    seed: Seed | None = None
    """The seed of the texts: the same request with the same seed gives the same texts. Default: a random seed, which
    the response reports as `spectr.seed`."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Divides the logits; 0 is greedy decoding. Default: the model's `generation_config`, or else 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the fewest likeliest tokens whose probabilities sum to at least this; 1 keeps all. Default: the model's
    `generation_config`, or else 1."""
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    """Keep this many of the likeliest tokens; 0 or -1 keeps all. Default: the model's `generation_config`, or else
    0."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Keep tokens that are at least this many times as likely as the likeliest token; 0 keeps all. Default: the model's
    `generation_config`, or else 0."""
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Keep the most typical tokens (surprise closest to the entropy) whose probabilities sum to at least this; 1 keeps
    all. Default: the model's `generation_config`, or else 1."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Subtracted once from the logit of each token that was generated before. Default: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Subtracted from the logit of a token once for each time that it was generated before. Default: 0."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Divides positive logits, and multiplies negative ones, of the tokens of the prompt and the text; 1 changes
    nothing. Default: the model's `generation_config`, or else 1."""
    logit_bias: Bias | None = None
    """Values to add to the logits of tokens, by token id written as a string; at most 1,024 entries. Default: none."""
    stop: str | Annotated[list[str | Token], Field(fail_fast=True, max_length=MOST_STOPS)] | None = None
    """A string, or at most 16 strings or token ids, that end the text. A stop string has 1 to 1,024 characters and is
    not part of the text. The model's own stop tokens end it as well. Default: none."""
    stop_token_ids: Annotated[list[Token], Field(fail_fast=True, max_length=MOST_STOPS)] | None = None
    """Token ids that end the text, besides the model's own stop tokens. Default: none."""
    min_tokens: Count | None = None
    """No stop token is generated before so many tokens. Default, and what 0 means: the model's `generation_config`, or
    else 0."""
    stream: bool | None = None
    """Send the texts as server-sent events while they are generated; one event may carry several tokens. Default:
    false."""
    structured_outputs: StructuredOutputs | None = None
    """The form that the text must have, as vLLM's clients ask for it; not together with a `response_format`, or a
    `text.format`, other than text. Default: any text."""
    prediction: Prediction | None = None
    """A text that the answer will probably repeat; it is drafted from and changes only the speed. It needs the rule
    race or match. Default: none."""
    user: Annotated[str, Field(max_length=512)] | None = None
    """The user on whose behalf the request is made; accepted and not used."""
    spectr: SpeculationFields | None = None
    """How speculation works for this request, and what the response reports of it."""


class GenerationFields(SamplingFields):
    """What completions and conversations have in common."""

    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    """How many texts to generate for each prompt. One request gets at most `--max-texts` texts (64 unless the server
    is configured otherwise). Default: 1."""
    max_tokens: Count | None = None
    """The most tokens to generate for each text, at least 1; prompt and text must fit into the context. 0 is allowed
    for a completion with `echo` only. Default: what remains of the context after the prompt."""
    stream_options: StreamOptions | None = None
    """Optional contents of a stream; allowed if `stream` is true."""
    response_format: ResponseFormat | None = None
    """The form that the text must have, as OpenAI's clients ask for it. Default: any text."""


class CompletionRequest(GenerationFields):
    """The body of `/v1/completions`."""

    prompt: str | Tokens | Texts | Annotated[list[Tokens], Field(fail_fast=True, max_length=MOST_PROMPTS)]
    """The text to continue, as a string or as token ids, or a list of several. No chat template is applied."""
    echo: bool | None = None
    """Repeat the prompt before the text. Default: false."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Report the log-probability of each token, and those of this many of the likeliest tokens in its place (0: of the
    token alone), under the model's own distribution, before temperature, filters and penalties. Default: none."""


class ChatRequest(GenerationFields):
    """The body of `/v1/chat/completions`."""

    messages: Messages
    """The conversation so far. The model's chat template turns it into a prompt."""
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    """Functions that the model may call. Its chat template must show them, and write calls as JSON objects.
    Default: none."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """`auto`: the answer is text, calls of functions, or both. `required`: it is at least one call. `none`: it is text,
    and the functions are not shown to the model. An object with a function's name: it is one call of this function.
    Default: `auto` if there are tools."""
    parallel_tool_calls: bool | None = None
    """False: the answer has at most one call. Default: true."""
    max_completion_tokens: Count | None = None
    """OpenAI's newer name for `max_tokens`; if both are given they must be equal."""
    logprobs: bool | None = None
    """Report the log-probability of each token under the model's own distribution, before temperature, filters and
    penalties. Default: false."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """How many of the likeliest tokens in the place of each token to report as well; it needs `logprobs`. Default:
    0."""


class TokenizeRequest(Body):
    """The body of `/tokenize`: give either a prompt or messages."""

    model: str | None = None
    """The model's name; another name is refused with 404. Default: the server's only model."""
    prompt: str | None = None
    """A text to turn into tokens."""
    messages: Messages | None = None
    """A conversation to turn into tokens by the model's chat template."""
    add_special_tokens: bool = True
    """Add the special tokens that the tokenizer puts around a text, such as a beginning-of-text token. Applies to a
    prompt; the chat template decides for messages."""
    return_token_strs: bool | None = None
    """Return the text of each token as well. Default: false."""


class DetokenizeRequest(Body):
    """The body of `/detokenize`."""

    model: str | None = None
    """The model's name; another name is refused with 404. Default: the server's only model."""
    tokens: Tokens
    """The ids of the tokens to turn into text, each below the size of the vocabulary."""
