"""Lines of a batch file in OpenAI's format, and the lines of its results.

A request is `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": …}`. Its result has the response
to it, or an error that says what is wrong with the line. A result depends only on its request, the model and the time
at which the batch was started.
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

__all__ = [
    "BadLineError", "Line", "chunks", "error_result", "line_id", "parse_request", "read_lines", "response_result",
    "seed_of",
]  # fmt: skip

_BODIES: dict[str, type[CompletionRequest] | type[ChatRequest]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}
_FIELDS = ("custom_id", "method", "url", "body")
_MAX_ID = 512  # characters of a custom_id


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a batch file that is not blank."""

    number: int  # from 1
    text: str
    repeats: int | None = None  # number of an earlier line with the same custom_id


class BadLineError(ApiError):
    """A line is not a valid request, so that its result has an error and no response."""


def read_lines(path: Path) -> list[Line]:
    """Read the lines of a batch file. A byte that is not UTF-8 makes its line invalid, but not the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"a batch must be a file with one request per line: {error}") from error
    first_lines: dict[str, int] = {}  # by custom_id
    lines = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        text = raw.decode("utf-8", errors="replace").strip().removeprefix("\ufeff")
        if not text:
            continue
        custom_id = _custom_id(text)
        first = number if custom_id is None else first_lines.setdefault(custom_id, number)
        lines.append(Line(number, text, None if first == number else first))
    if not lines:
        raise ArgumentError(f"a batch must have at least one request, but {path} has none")
    return lines


def _json(text: str) -> Any:
    """Return the JSON value of a line, or None if the line is not valid JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, RecursionError):
        return None


def _custom_id(text: str) -> str | None:
    request = _json(text)
    custom_id = request.get("custom_id") if isinstance(request, dict) else None
    return custom_id if isinstance(custom_id, str) and 0 < len(custom_id) <= _MAX_ID else None


def seed_of(custom_id: str, salt: int = 0) -> int:
    """Return the seed of a request that has none: 53 bits of a hash of its `custom_id`, so that a rerun on any machine
    draws the same text.

    >>> seed_of("request-1") == seed_of("request-1"), seed_of("request-1") == seed_of("request-2")
    (True, False)
    """
    return int.from_bytes(sha256(f"{salt}\n{custom_id}".encode()).digest()[:8], "big") >> 11


def parse_request(line: Line, salt: int = 0) -> CompletionRequest | ChatRequest:
    """Return the body of a request, checked as the server checks it, with a seed. Raise a `BadLineError` if the line is
    not a valid request, and an `ApiError` if the server would refuse its body."""
    request = _json(line.text)
    if not isinstance(request, dict):
        raise BadLineError(400, f"line {line.number} must be a JSON object in UTF-8", code="invalid_json")
    for name in request:
        if name not in _FIELDS:
            raise BadLineError(400, f"line {line.number} has an unknown field {name[:80]!r}; "
                               f"{nearest(name[:80], list(_FIELDS))}", code="unknown_field")  # fmt: skip
    custom_id = _custom_id(line.text)
    if custom_id is None:
        raise BadLineError(400, f"line {line.number} must have a custom_id, a string of 1 to {_MAX_ID} characters",
                           code="invalid_custom_id")  # fmt: skip
    if line.repeats is not None:
        raise BadLineError(400, f"line {line.number} repeats the custom_id of line {line.repeats}; use each only once",
                           code="duplicate_custom_id")  # fmt: skip
    url = request.get("url")
    if request.get("method") != "POST" or not isinstance(url, str) or url not in _BODIES:
        raise BadLineError(400, f"line {line.number} must have the method POST and the url {' or '.join(_BODIES)}",
                           code="invalid_url")  # fmt: skip
    return _checked_body(request.get("body"), _BODIES[url], seed_of(custom_id, salt))


def _checked_body(
    value: Any, kind: type[CompletionRequest] | type[ChatRequest], seed: int
) -> CompletionRequest | ChatRequest:
    try:
        body = kind.model_validate(value)
    except ValidationError as error:
        raise as_field_error(error, kind) from error
    if body.stream:
        raise ApiError(400, "a batch does not support stream; leave it out", "stream", "unsupported_field")
    return body if body.seed is not None else body.model_copy(update={"seed": seed})


def line_id(line: Line) -> str:
    """Return an identifier for the result of a line, the same in every run."""
    return sha256(f"{line.number}\n{line.text}".encode()).hexdigest()[:24]


def response_result(line: Line, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a line that has a response. The response may be an error about the body of the request."""
    response = {"status_code": status, "request_id": f"req-{line_id(line)}", "body": body}
    return {"id": f"batch_req_{line_id(line)}", "custom_id": _custom_id(line.text), "response": response, "error": None}


def error_result(line: Line, error: BadLineError) -> dict[str, Any]:
    """Return the result of a line that is not a valid request."""
    details = {"code": error.code, "message": error.message}
    return {"id": f"batch_req_{line_id(line)}", "custom_id": _custom_id(line.text), "response": None, "error": details}


def chunks(lines: Sequence[Line], size: int) -> list[list[Line]]:
    """Split lines into groups of at most `size`."""
    return [list(lines[start : start + size]) for start in range(0, len(lines), size)]
