"""The base of every request body, and errors that name a field. A body takes its declared fields and refuses others."""

import reprlib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from spectr.checks import requirement
from spectr.registry import nearest
from spectr.serve.errors import ApiError

__all__ = ["MOST_FIELDS", "Body", "Fields", "as_field_error"]

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "functions": ([],), "tool_choice": ("none",), "function_call": ("none",), "store": (False,),
    "modalities": (["text"],), "best_of": (1,), "suffix": ("",), "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True, False), "metadata": ({},), "skip_special_tokens": (True,), "ignore_eos": (False,),
    "use_beam_search": (False,), "truncate_prompt_tokens": (), "reasoning_effort": (), "verbosity": (), "audio": (),
    "web_search_options": (), "chat_template": (), "chat_template_kwargs": ({},), "guided_json": (),
    "guided_regex": (), "guided_choice": (), "guided_grammar": (), "length_penalty": (1.0,), "bad_words": ([],),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "prompt_cache_key": (), "documents": (),
    "background": (False,), "previous_response_id": (), "conversation": (), "reasoning": (), "max_tool_calls": (),
    "safety_identifier": (), "prompt_cache_retention": (), "include_stop_str_in_output": (False,),
}  # fmt: skip
"""Fields of OpenAI's and vLLM's interfaces that are not supported, with the values that ask for nothing."""

_USE_INSTEAD = {
    "guided_json": "use structured_outputs.json", "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice", "guided_grammar": "use structured_outputs.grammar",
    "best_of": "use n and choose by logprobs", "tools": "use /v1/chat/completions",
    "functions": "use tools", "function_call": "use tool_choice",
    "previous_response_id": "nothing is stored: send the whole conversation in input",
    "conversation": "nothing is stored: send the whole conversation in input",
}  # fmt: skip

_OTHER_NAMES = {
    "messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
    "response_format": "text", "logprobs": "include",
    "input": "messages", "max_output_tokens": "max_tokens", "text": "response_format",
}  # fmt: skip
"""Fields of `/v1/chat/completions` and of `/v1/responses`, with their names in the other one."""

MOST_FIELDS = 64  # of one JSON object that is checked field by field: each unknown one would be an error to collect


class Fields(BaseModel):
    """Takes the fields that are declared, of their types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_count(cls, given: Any) -> Any:
        """Refuse an object of very many fields before each of them becomes an error."""
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ApiError(400, f"an object must have at most {MOST_FIELDS} fields, got {len(given)}; "
                           "remove those that have no meaning here", code="too_many_fields")  # fmt: skip
        return given


class Body(Fields):
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


def _is_union_tag(part: str) -> bool:
    """Return whether a part of an error's place is the name of a type in a union, and not of a field."""
    is_plain = part in ("str", "int", "float", "bool", "TextPart", "NamedTool", "NamedFunctionTool")
    starts = ("list[", "dict[", "literal[", "item:", "function-", "constrained-", "lax-or-strict")
    return is_plain or part.startswith(starts)


def as_field_error(error: ValidationError, known: type[BaseModel]) -> ApiError:
    """The first thing that is wrong with a body, in one sentence, with the name of the field."""
    errors = error.errors(include_url=False)
    first = _meant(errors)
    param = ".".join(_places(first))[:200] or None
    if first["type"] == "extra_forbidden":
        return _unknown(param or "", known)
    if param is None and first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return ApiError(400, f"the body must be a JSON object, got {_shown(first.get('input'))}", code="invalid_json")
    if first["type"] == "missing":
        return ApiError(400, f"{param} must be given, and is missing", param, "missing_field")
    same = [first] if first["type"] == "too_long" else [one for one in errors if _places(one) == _places(first)]
    return ApiError(400, f"{param} {_must(same, known)}, got {_got(first)}", param, "invalid_value")


def _places(error: Any) -> list[str]:
    """Return the names and numbers that lead to the value that an error is about."""
    return [str(part) for part in error["loc"] if not _is_union_tag(str(part))]


def _meant(errors: list[Any]) -> Any:
    """Return the first error; of a value that fits no type of a union, that of the type which fits furthest."""
    if (long := next((one for one in errors if one["type"] == "too_long"), None)) is not None:
        return long
    places = _places(errors[0])
    branches = [(_places(one)[len(places) :], one) for one in errors if _places(one)[: len(places)] == places]
    return max(branches, key=lambda branch: (len(branch[0]), [int(p) for p in branch[0] if p.isdecimal()]))[1]


def _must(errors: list[Any], known: type[BaseModel]) -> str:
    """Return what must hold of a value, from its errors: one for each type of a union. A value of one of the types is
    out of its bounds."""
    bound = next((one for one in errors if not one["type"].endswith(("_type", "_parsing"))), None)
    found = list(dict.fromkeys(requirement(one["type"], one.get("ctx", {})) for one in [bound or errors[0], *errors]))
    if bound is not None or None in found:
        return f"must {found[0]}" if found[0] else f"is not valid: {(bound or errors[0])['msg']}"
    kinds = [str(words).removeprefix("be ") for words in found]
    items = _items(known, _places(errors[0]))
    return "must be " + " or ".join(f"{kind}{items}" if kind == "a list" else kind for kind in kinds)


def _items(known: type[BaseModel], places: list[str]) -> str:
    """Return what the entries of a list must be, if it is a field of the body and they are objects."""
    field = known.model_fields.get(places[0]) if len(places) == 1 else None
    item = None if field is None else next(_models(field.annotation), None)
    if item is None:
        return ""
    return " of objects with " + " and ".join(name for name, one in item.model_fields.items() if one.is_required())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the kinds of objects that an annotation mentions."""
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        yield from _models(part)


def _got(error: Any) -> str:
    """Return what was given: the number of entries or characters if that is wrong, else the value."""
    value = error.get("input")
    if error["type"].endswith(("too_long", "too_short")) and hasattr(value, "__len__"):
        return str(len(value))
    return _shown(value)


def _unknown(param: str, known: type[BaseModel]) -> ApiError:
    if param in _NEUTRAL:
        instead = _USE_INSTEAD.get(param, "leave it out")
        return ApiError(400, f"{param} is not supported by this server; {instead}", param, "unsupported_field")
    names = [field.alias or name for name, field in known.model_fields.items()]
    hint = nearest(param[:80], names) if "." not in param else "leave it out"
    if (other := _OTHER_NAMES.get(param)) in names:
        hint = f"use {other}"
    return ApiError(400, f"there is no field {param!r}; {hint}", param, "unknown_field")


_REPR = reprlib.Repr()  # looks at the beginning of a value, not at all of it
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def _shown(value: Any) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
