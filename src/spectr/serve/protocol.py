"""The fields of request bodies, with OpenAI's names and vLLM's where OpenAI has none.

An unknown field is refused by name. So is one that OpenAI's interface knows and this server does not support: it would
change the answer, and is never ignored.
"""

import reprlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from spectr.registry import nearest
from spectr.serve.errors import ApiError

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationFields",
    "Message",
    "ResumeFields",
    "ResumedText",
    "SpeculationFields",
    "TokenizeRequest",
    "as_field_error",
]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "functions": ([],), "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
    "modalities": (["text"],), "best_of": (1,), "suffix": ("",), "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True, False), "metadata": ({},), "skip_special_tokens": (True,), "ignore_eos": (False,),
    "use_beam_search": (False,), "truncate_prompt_tokens": (), "reasoning_effort": (), "verbosity": (), "audio": (),
    "web_search_options": (), "chat_template": (), "chat_template_kwargs": ({},), "guided_json": (),
    "guided_regex": (), "guided_choice": (), "guided_grammar": (), "length_penalty": (1.0,), "bad_words": ([],),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "prompt_cache_key": (), "documents": (),
    "safety_identifier": (), "prompt_cache_retention": (), "include_stop_str_in_output": (False,),
}  # fmt: skip
"""Fields of OpenAI's and vLLM's interfaces that are not supported, with the values that ask for nothing."""

_USE_INSTEAD = {
    "guided_json": "use structured_outputs.json", "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice", "guided_grammar": "use structured_outputs.grammar",
    "best_of": "use n and choose by logprobs", "tools": "describe the tools in a message and ask for a json_schema",
    "functions": "describe them in a message and ask for a json_schema",
}  # fmt: skip


MOST_FIELDS = 64  # of one JSON object that is checked field by field: each unknown one would be an error to collect
MOST_TOKENS = 1 << 18  # of one list of token ids; the model's context is the narrower bound
MOST_PROMPTS = 1024  # and most texts for each; `Limits.texts` is the narrower bound
MOST_MESSAGES = 4096
MOST_PARTS = 1024  # of the content of one message
MOST_CHOICES = 1024
MOST_BIASES = 4096  # `Limits.bias_tokens` is the narrower bound
MOST_STOPS = 64
MOST_NODES = 64


class _Fields(BaseModel):
    """Takes the fields that are declared, of their types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_count(cls, given: Any) -> Any:
        """Refuse an object of very many fields before each of them becomes an error."""
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ApiError(400, f"an object must have at most {MOST_FIELDS} fields, got {len(given)}; "
                           "remove those that have no meaning here", code="too_many_fields")  # fmt: skip
        return given


class _Body(_Fields):
    """The body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, given: Any) -> Any:
        """Leave out fields that are not supported where their values ask for nothing."""
        if not isinstance(given, dict) or len(given) > MOST_FIELDS:
            return given
        return {
            name: value
            for name, value in given.items()
            if name in cls.model_fields
            or name not in _NEUTRAL
            or not (value is None or any(value == neutral for neutral in _NEUTRAL[name]))
        }


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


class StreamOptions(_Fields):
    """What a stream carries beside the text."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage of the whole request.")
    continuous_usage_stats: Literal[False] | None = None
    event_ids: bool | None = Field(
        None, description="Send ids with which a client that lost its connection can go on, by Last-Event-ID."
    )


class JsonSchema(_Fields):
    """A schema as `response_format` carries it."""

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Fields):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Fields):
    """The form that the text must have; give one of them."""

    json_: dict[str, Any] | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    regex: str | None = None
    grammar: str | None = Field(None, description="A grammar in GBNF; its first rule is `root`.")
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_CHOICES)] | None = None
    json_object: bool | None = None


class TextPart(BaseModel):
    """A part of a message. `_parts` bounds how many fields it has."""

    model_config = _Fields.model_config
    type: Literal["text"]
    text: str


def _parts(given: Any) -> Any:
    """Refuse parts that are many, or have many fields, before each is checked."""
    if isinstance(given, list) and (
        len(given) > MOST_PARTS or any(isinstance(part, dict) and len(part) > MOST_FIELDS for part in given)
    ):
        raise ApiError(400, f"a content must have at most {MOST_PARTS} parts of {MOST_FIELDS} fields", "content",
                       "invalid_value")  # fmt: skip
    return given


def _together(given: Any) -> Any:
    """Refuse messages that have too many parts together."""
    if not isinstance(given, list) or len(given) > MOST_MESSAGES:
        return given
    contents = [one.get("content") for one in given if isinstance(one, dict)]
    parts = sum(len(content) for content in contents if isinstance(content, list))
    if parts > MOST_MESSAGES:
        raise ApiError(400, f"messages must have at most {MOST_MESSAGES} parts together, got {parts}", "messages",
                       "invalid_value")  # fmt: skip
    return given


Content = str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_PARTS), BeforeValidator(_parts)]


class Prediction(_Fields):
    """A text that the answer will probably repeat. It saves time where it is right, and changes nothing else."""

    type: Literal["content"]
    content: Content


class ResumedText(_Fields):
    """What was generated of a text before its server was lost."""

    tokens: Tokens
    begun: bool = Field(description="Something of it was sent, be it without tokens.")
    finish_reason: Literal["stop", "length"] | None = Field(description="Why it ended; null: it has not.")


class ResumeFields(_Fields):
    """A stream that continues at this server: what was sent before, as a router knows it."""

    id: Annotated[str, Field(pattern=r"^(chat)?cmpl-[A-Za-z0-9]{1,64}$")]
    created: Annotated[int, Field(ge=0, lt=1 << 53)]
    fingerprint: Annotated[str, Field(max_length=128)]
    texts: Annotated[list[ResumedText], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]


class SpeculationFields(_Fields):
    """How speculation works for this one request. The distribution of the text does not depend on it; under the race,
    the text of a seed does not either."""

    rule: str | None = Field(None, description="The rule that accepts drafts, such as race, optimal or kseq.")
    drafter: str | None = Field(None, description="auto (the server's own), none, lookup or ngram.")
    nodes: Annotated[int, Field(ge=2, le=MOST_NODES)] | None = Field(None, description="Most nodes of a token tree.")
    trace: bool | None = Field(None, description="Report what each step added, and where its tokens came from.")
    statistics: bool | None = Field(None, description="Report also what each step accepted.")
    receipt: bool | None = Field(None, description="Report how to generate the same text again; on by default.")
    tokens: bool | None = Field(None, description="Report the ids of the tokens of each chunk or text.")
    resume: ResumeFields | None = Field(None, description="Continue a stream that broke off; needs the same seed.")


class GenerationFields(_Body):
    """What all requests for text have in common."""

    model: str | None = Field(None, description="The model's name; the only one by default.")
    n: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="Texts for each prompt.")
    seed: Seed | None = Field(
        None, description="The seed of the texts; by default a random one, which the answer reports."
    )
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(None, description="0 or -1: all tokens.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Bias | None = None
    stop: str | Annotated[list[str | Token], Field(fail_fast=True, max_length=MOST_STOPS)] | None = Field(
        None, description="Strings, or token ids, that end the text."
    )
    stop_token_ids: Annotated[list[Token], Field(fail_fast=True, max_length=MOST_STOPS)] | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prediction: Prediction | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    spectr: SpeculationFields | None = None


class CompletionRequest(GenerationFields):
    """The body of `/v1/completions`."""

    prompt: str | Tokens | Texts | Annotated[list[Tokens], Field(fail_fast=True, max_length=MOST_PROMPTS)]
    echo: bool | None = Field(None, description="Repeat the prompt before the text.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class Message(_Fields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


Messages = Annotated[
    list[Message], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES), BeforeValidator(_together)
]


class ChatRequest(GenerationFields):
    """The body of `/v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class TokenizeRequest(_Body):
    """The body of `/tokenize`: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(_Body):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: Tokens


_UNION_TAGS = (
    "str",
    "list[",
    "function-",
    "constrained-",
    "int",
    "float",
    "bool",
    "dict[",
    "lax-or-strict",
    "TextPart",
)


def as_field_error(error: ValidationError, known: type[BaseModel]) -> ApiError:
    """The first thing that is wrong with a body, in one sentence, with the name of the field."""
    errors = error.errors(include_url=False, include_context=False)
    first = next(
        (one for one in errors if one["type"] == "too_long"), errors[0]
    )  # of a union: the branch that was meant
    places = [str(part) for part in first["loc"] if not str(part).startswith(_UNION_TAGS)]
    param = ".".join(places)[:200] or None
    if first["type"] == "extra_forbidden":
        return _unknown(param or "", known)
    if first["type"] in ("json_invalid", "model_type", "model_attributes_type", "dict_type") and param is None:
        return ApiError(400, f"the body must be a JSON object: {first['msg']}", code="invalid_json")
    if first["type"] == "missing":
        return ApiError(400, f"{param} must be given, and is missing", param, "missing_field")
    return ApiError(400, f"{param}: {first['msg']}; got {_shown(first.get('input'))}", param, "invalid_value")


def _unknown(param: str, known: type[BaseModel]) -> ApiError:
    if param in _NEUTRAL:
        instead = _USE_INSTEAD.get(param, "leave it out")
        return ApiError(400, f"{param} is not supported by this server; {instead}", param, "unsupported_field")
    names = [field.alias or name for name, field in known.model_fields.items()]
    hint = nearest(param[:80], names) if "." not in param else "leave it out"
    return ApiError(400, f"there is no field {param!r}; {hint}", param, "unknown_field")


_REPR = reprlib.Repr()  # looks at the beginning of a value, not at all of it
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def _shown(value: Any) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
