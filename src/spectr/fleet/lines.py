"""The lines of a batch file in OpenAI's format, and the lines of its results.

A request is `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": …}`. A result carries the
response to it, or says what is wrong with its line. A result depends on its request and on the model alone, but for the
time at which the batch was begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from spectr.errors import ArgumentError
from spectr.registry import nearest
from spectr.serve.errors import ApiError
from spectr.serve.fields import as_field_error
from spectr.serve.protocol import ChatRequest, CompletionRequest

__all__ = ["BadLineError", "Line", "chunks", "failed", "line_id", "parsed", "read_lines", "responded", "seed_of"]

_BODIES: dict[str, type[CompletionRequest] | type[ChatRequest]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}
_FIELDS = ("custom_id", "method", "url", "body")
_MOST_ID = 512  # characters of a custom_id


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank."""

    number: int  # from 1
    text: str
    repeats: int | None = None  # an earlier line with the same custom_id


class BadLineError(ApiError):
    """A line that is no request: there is nothing to respond to."""


def read_lines(path: Path) -> list[Line]:
    """The lines of a batch file. A byte that is not UTF-8 spoils its line, not the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"a batch must be a file of requests, one on a line: {error}") from error
    firsts: dict[str, int] = {}
    found = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        text = raw.decode("utf-8", errors="replace").strip().removeprefix("\ufeff")
        if not text:
            continue
        name = _name(text)
        first = number if name is None else firsts.setdefault(name, number)
        found.append(Line(number, text, None if first == number else first))
    if not found:
        raise ArgumentError(f"a batch must have at least one request, and {path} has none")
    return found


def _object(text: str) -> Any:
    """The JSON of a line; None if it is none."""
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return None


def _name(text: str) -> str | None:
    found = _object(text)
    name = found.get("custom_id") if isinstance(found, dict) else None
    return name if isinstance(name, str) and 0 < len(name) <= _MOST_ID else None


def seed_of(custom_id: str, salt: int = 0) -> int:
    """The seed of a request that gives none: 53 bits of a hash of its name, so that a rerun elsewhere draws the same.

    >>> seed_of("request-1") == seed_of("request-1"), seed_of("request-1") == seed_of("request-2")
    (True, False)
    """
    return int.from_bytes(sha256(f"{salt}\n{custom_id}".encode()).digest()[:8], "big") >> 11


def parsed(line: Line, salt: int = 0) -> CompletionRequest | ChatRequest:
    """The body that a line sends, checked as the server checks it, with a seed. Raises a `BadLineError` for a line that
    is no request, and an `ApiError` for a body that the server would refuse."""
    found = _object(line.text)
    if not isinstance(found, dict):
        raise BadLineError(400, f"line {line.number} must be a JSON object in UTF-8", code="invalid_json")
    for name in found:
        if name not in _FIELDS:
            raise BadLineError(400, f"line {line.number} has an unknown field {name[:80]!r}; "
                               f"{nearest(name[:80], list(_FIELDS))}", code="unknown_field")  # fmt: skip
    name = _name(line.text)
    if name is None:
        raise BadLineError(400, f"line {line.number} must have a custom_id, a string of 1 to {_MOST_ID} characters",
                           code="invalid_custom_id")  # fmt: skip
    if line.repeats is not None:
        raise BadLineError(400, f"line {line.number} repeats the custom_id of line {line.repeats}; give each once",
                           code="duplicate_custom_id")  # fmt: skip
    url = found.get("url")
    if found.get("method") != "POST" or not isinstance(url, str) or url not in _BODIES:
        raise BadLineError(400, f"line {line.number} must have the method POST and a url of {' or '.join(_BODIES)}",
                           code="invalid_url")  # fmt: skip
    return _body(found.get("body"), _BODIES[url], seed_of(name, salt))


def _body(given: Any, kind: type[CompletionRequest] | type[ChatRequest], seed: int) -> CompletionRequest | ChatRequest:
    try:
        made = kind.model_validate(given)
    except ValidationError as error:
        raise as_field_error(error, kind) from error
    if made.stream:
        raise ApiError(400, "a batch has no streams; leave stream out", "stream", "unsupported_field")
    return made if made.seed is not None else made.model_copy(update={"seed": seed})


def line_id(line: Line) -> str:
    """A name for what comes of a line: the same in every run."""
    return sha256(f"{line.number}\n{line.text}".encode()).hexdigest()[:24]


def responded(line: Line, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a line that has an answer, which may be that its body is wrong."""
    response = {"status_code": status, "request_id": f"req-{line_id(line)}", "body": body}
    return {"id": f"batch_req_{line_id(line)}", "custom_id": _name(line.text), "response": response, "error": None}


def failed(line: Line, error: BadLineError) -> dict[str, Any]:
    """The result of a line that is no request."""
    told = {"code": error.code, "message": error.message}
    return {"id": f"batch_req_{line_id(line)}", "custom_id": _name(line.text), "response": None, "error": told}


def chunks(lines: Sequence[Line], size: int) -> list[list[Line]]:
    """Lines in groups of at most `size`."""
    return [list(lines[start : start + size]) for start in range(0, len(lines), size)]
