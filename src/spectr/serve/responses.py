"""The fields of errors, and of responses that are no generated texts. `text_responses` has those.

The docstring below a field is its description in `/openapi.json` and in docs/http.md. `app` writes the responses; a
test holds them to these models.
"""

from typing import Literal

from spectr.serve.reports import Answer

__all__ = ["Alive", "DetokenizeResponse", "Error", "ModelCard", "ModelList", "Ready", "TokenizeResponse", "Versions"]


class ErrorDetails(Answer):
    """What is wrong with a request, or with the server."""

    message: str
    """What must hold, what was given and what to do, in words."""
    type: str
    """The kind of error, as OpenAI's clients know it, such as `invalid_request_error`."""
    param: str | None
    """The field that is wrong, with dots between the names of nested fields; null if no field is."""
    code: str | None
    """A short name of the error for programs, such as `context_length_exceeded`; null if it has none."""


class Error(Answer):
    """The body of every response with a status other than 200. In a stream that has begun, an event carries it."""

    error: ErrorDetails
    """What is wrong."""


class ModelCard(Answer):
    """The model of the server."""

    id: str
    """The model's name."""
    object: Literal["model"]
    """The kind of the object."""
    created: int
    """When the server was started, in seconds since 1970."""
    owned_by: Literal["spectr"]
    """Always spectr; OpenAI's clients expect the field."""
    max_model_len: int
    """The most tokens that a prompt and its text may have together."""


class ModelList(Answer):
    """The response of `/v1/models`."""

    object: Literal["list"]
    """The kind of the object."""
    data: list[ModelCard]
    """The server's only model."""


class TokenizeResponse(Answer):
    """The response of `/tokenize`."""

    tokens: list[int]
    """The ids of the tokens."""
    count: int
    """How many tokens there are."""
    max_model_len: int
    """The most tokens that a prompt and its text may have together."""
    token_strs: list[str] | None = None
    """The text of each token, if `return_token_strs` is true."""


class DetokenizeResponse(Answer):
    """The response of `/detokenize`."""

    prompt: str
    """The text of the tokens."""


class Alive(Answer):
    """The response of `/health`."""

    status: Literal["alive"]
    """Always alive: a server that is not does not respond."""


class Ready(Answer):
    """The response of `/ready`. The counts are there if the server checks itself (`--audit-share`)."""

    status: Literal["ready"]
    """Always ready: a server that is not responds with 503 and the reason."""
    steps: int | None = None
    """Steps that the engine made."""
    checked: int | None = None
    """Steps that were computed again and compared."""
    rows: int | None = None
    """Rows of those steps; a row is one text."""
    near_ties: int | None = None
    """Rows whose tokens differ from those of the check by rounding only."""
    violations: int | None = None
    """Rows with wrong tokens that rounding does not explain; one of them makes the server not ready."""
    skipped: int | None = None
    """Steps that were chosen for a check and not checked, because earlier checks had not finished."""
    seconds: float | None = None
    """Processor time that the checks took."""
    not_covered: int | None = None
    """Rows that cannot be checked, because the rule has no reference to compare with."""


class Versions(Answer):
    """The response of `/version`."""

    version: str
    """The version of spectr."""
    spectr: str
    """The version of spectr."""
    torch: str
    """The version of PyTorch."""
    transformers: str
    """The version of transformers."""
