"""Any OpenAI-compatible endpoint as somebody to compare with: asked for the same text, timed from here.

What is timed includes the network and the server's queue, and nothing is known of its target calls. A key, where one is
needed, is read from the environment variable SPECTR_ENDPOINT_KEY.
"""

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from spectr.bench.ask import Asked, Written, turns_of
from spectr.errors import ArgumentError, SpectrError

__all__ = ["Endpoint", "open_endpoint"]

_KEY = "SPECTR_ENDPOINT_KEY"
_PATIENCE = 600  # seconds for one text


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ArgumentError(f"--endpoint must be an address such as http://localhost:8000/v1, got {url!r}")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}"


def _call(url: str, body: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    """What the server answers, as JSON."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(_KEY):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=seconds) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode("utf-8", "replace")
        raise SpectrError(f"{url} answered {error.code}: {said or error.reason}; what was measured is kept") from None
    except (OSError, ValueError) as error:
        raise SpectrError(f"{url} did not answer as an OpenAI-compatible endpoint does: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and one of its models."""

    base: str  # ends in /v1
    model: str

    @property
    def name(self) -> str:
        """The host, for tables."""
        return urllib.parse.urlsplit(self.base).netloc

    def write(self, asked: Asked) -> Written:
        """One text, by chat completions, or by completions where plain text is to be continued."""
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": asked.temperature,
            "max_tokens": asked.request.max_new_tokens,
            "seed": asked.request.seed,
        }
        if asked.raw:
            body["prompt"] = asked.prompt.text
        else:
            body["messages"] = turns_of(asked.prompt)
        start = time.perf_counter()
        found = _call(f"{self.base}/{'completions' if asked.raw else 'chat/completions'}", body, _PATIENCE)
        seconds = time.perf_counter() - start
        try:
            choice = found["choices"][0]
            text = choice["text"] if asked.raw else choice["message"]["content"]
            return Written(text or "", int(found["usage"]["completion_tokens"]), seconds)
        except (KeyError, IndexError, TypeError) as error:
            raise SpectrError(
                f"{self.base} gave no text or no count of tokens (usage.completion_tokens): {error}"
            ) from None


def open_endpoint(url: str) -> Endpoint:
    """`URL`, or `URL#MODEL`; without a model, the first that the server names."""
    address, _, model = url.partition("#")
    base = _base(address)
    if not model:
        listed = _call(f"{base}/models", None, 30).get("data") or []
        if not listed:
            raise ArgumentError(f"{base} names no models; say which one is meant: --endpoint {address}#MODEL")
        model = str(listed[0]["id"])
    return Endpoint(base, model)
