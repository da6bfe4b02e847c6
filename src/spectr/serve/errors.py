"""Errors that clients get, in the form that OpenAI's clients read."""

import asyncio
from collections.abc import Mapping
from typing import Any

import torch

from spectr.errors import LawError, NoRoomError, SpectrError

__all__ = ["STATUSES", "ApiError", "as_api_error"]

STATUSES = {
    400: "A field is missing, unknown, out of its range or not supported; `param` names it.",
    401: "A key is needed, and none or a wrong one was given.",
    403: "The address of the server is not one it answers under.",
    404: "There is no such model or page.",
    405: "The page does not take this method.",
    408: "The headers or the body of the request did not arrive in time.",
    409: "The stream cannot be resumed here: the model, rule or text differs.",
    413: "The body of the request is too large.",
    415: "The body of the request is not JSON.",
    431: "The headers of the request are too large.",
    429: "Too many requests, of this key or of all; `Retry-After` says when to retry.",
    500: "The server failed.",
    503: "The server is starting, stopping, or short of memory.",
    504: "The text took longer than a request may take.",
}
"""Statuses other than 200, and what they mean."""

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_LONGEST = 600  # characters of a message


class ApiError(Exception):
    """An error with a status, a message and a code for the client."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, wait: float | None = None
    ) -> None:
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"  # it may repeat what was sent
        super().__init__(message)
        self.status, self.message, self.code, self.wait = status, message, code, wait
        self.param = param if param is None else param[:200]

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _KINDS.get(self.status, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> Mapping[str, str]:
        """When to retry, and which kind of authentication is needed."""
        found = {} if self.wait is None else {"Retry-After": str(max(1, round(self.wait)))}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def as_api_error(error: BaseException) -> ApiError:
    """Any error as one for clients. Messages that are not known to be harmless are not passed on."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NoRoomError | torch.OutOfMemoryError | MemoryError):
        return ApiError(503, f"there is not enough memory for this request now: {error}", code="out_of_memory", wait=10)
    if isinstance(error, LawError):
        return ApiError(500, str(error), code="broken_distribution")
    if isinstance(error, SpectrError):
        return ApiError(400, str(error))
    if isinstance(error, asyncio.TimeoutError):
        return ApiError(504, "the text took longer than a request may take; lower max_tokens", code="timeout")
    return ApiError(500, "the server failed to answer; its log says why", code="internal_error")
