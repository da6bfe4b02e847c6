"""A client for OpenAI-compatible endpoints, used by `spectr bench run` and `spectr audit`.

If the server needs a key, it is read from the environment variable SPECTR_ENDPOINT_KEY.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from spectr.errors import ArgumentError, MissingExtraError, SpectrError

__all__ = ["EndpointClient", "turns_of"]

_KEY = "SPECTR_ENDPOINT_KEY"
_COMPLETIONS = ("/chat/completions", "/completions")


def turns_of(*texts: str) -> list[dict[str, str]]:
    """Return a conversation as endpoints and chat templates take it, beginning with the user."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def _base(url: str) -> str:
    """Return the address without `/completions`, and with `/v1` if it names only a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ArgumentError(f"an endpoint must be an address such as http://localhost:8000/v1, got {url!r}")
    path = parts.path.rstrip("/")
    for end in _COMPLETIONS:
        if path.endswith(end):
            return f"{parts.scheme}://{parts.netloc}{path.removesuffix(end)}"
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"


class EndpointClient:
    """A connection to one server. `url` is its address, with or without the path of its completions."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, timeout: float = 600.0) -> None:
        try:
            import httpx2
        except ImportError:
            raise MissingExtraError("httpx2", "endpoint", "asking an endpoint") from None
        self.base, self.is_chat = _base(url), url.rstrip("/").endswith(_COMPLETIONS[0])
        key = os.environ.get(_KEY)
        self._http = httpx2.Client(
            headers={**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})},
            timeout=timeout,
            limits=httpx2.Limits(max_keepalive_connections=0),  # no connection is kept after its answer
        )
        self._errors: tuple[type[Exception], ...] = (httpx2.HTTPError, httpx2.InvalidURL, ValueError)

    @property
    def host(self) -> str:
        """The server's name and port."""
        return urlsplit(self.base).netloc

    @property
    def address(self) -> str:
        """The address of the completions endpoint."""
        return f"{self.base}{_COMPLETIONS[0 if self.is_chat else 1]}"

    def models(self) -> list[str]:
        """Return the names of the models that the server lists."""
        return [str(model["id"]) for model in self._call("GET", "/models").get("data") or []]

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Request a completion and return the answer: of a conversation if the body has `messages`, otherwise of a
        prompt."""
        return self._call("POST", _COMPLETIONS[0 if "messages" in body else 1], body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self.base}{path}"
        try:
            answer = self._http.request(method, url, json=body)
            data = answer.json() if answer.is_success else None
        except self._errors as error:
            raise SpectrError(f"{url} must answer with JSON, and did not: {error}; is the server running?") from None
        if data is None:
            raise SpectrError(f"{url} answered {answer.status_code}: {answer.text[:500] or answer.reason_phrase}")
        if not isinstance(data, dict):
            raise SpectrError(f"{url} must answer with a JSON object, got {type(data).__name__}")
        return data
