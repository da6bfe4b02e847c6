"""Middleware that checks request ids, hosts and keys, and bounds the size and time of a body. It wraps the whole
application, which does not see a request that is refused here."""

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import Any

from spectr.serve.errors import ApiError, as_api_error
from spectr.serve.settings import ServerSettings

__all__ = ["OPEN_PATHS", "Gate", "Keys"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version", "/openapi.json"})
"""Pages that need no key; those of the playground do not either."""

_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOG = logging.getLogger("spectr.serve")


class Keys:
    """The API keys of a server. A request is compared with all of them in constant time."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, given: str | None) -> str | None:
        """A name for the key that was given, from which it cannot be read; None for a wrong key."""
        digest = sha256((given or "").encode("utf-8", "surrogateescape")).digest()
        found = None
        for place, own in enumerate(self._digests):
            if hmac.compare_digest(digest, own):
                found = f"key-{place}"
        return found if self._digests else "all"


def _check_single(headers: list[tuple[bytes, bytes]]) -> None:
    """Refuse security-relevant headers that are given twice: a proxy may have read the other one."""
    names = [name for name, _ in headers]
    for name in (b"host", b"authorization", b"content-length", b"content-type"):
        if names.count(name) > 1:
            raise ApiError(400, f"the header {name.decode()} must be given once, got {names.count(name)}",
                           code="repeated_header")  # fmt: skip


def _check_coding(version: str, headers: dict[str, str]) -> None:
    """Refuse chunks in HTTP/1.0, which does not have them: a proxy may take them for the next request."""
    if version == "1.0" and "transfer-encoding" in headers:
        raise ApiError(400, "Transfer-Encoding needs HTTP/1.1, got HTTP/1.0; send Content-Length",
                       code="invalid_http")  # fmt: skip


def _check_upgrade(headers: dict[str, str]) -> None:
    """Refuse a body with an Upgrade header: the parser does not read it."""
    if "upgrade" in headers and "upgrade" in headers.get("connection", "").lower():
        raise ApiError(400, "this server speaks HTTP/1.1 only; send the request without the header Upgrade",
                       code="upgrade_not_supported")  # fmt: skip


class Gate:
    """An ASGI application that lets requests through to another."""

    def __init__(
        self,
        app: Any,
        settings: ServerSettings,
        open_paths: frozenset[str] = OPEN_PATHS,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.app, self.settings, self.open_paths, self.count = app, settings, open_paths, count
        self.keys = Keys(settings.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = _Exchange(headers, send)
        scope.setdefault("state", {}).update(request_id=exchange.id, began=time.monotonic())
        try:
            _check_single(scope["headers"])
            _check_coding(scope["http_version"], headers)
            tenant = scope["state"]["tenant"] = self._identified(scope["path"], headers)
            if scope["method"] == "POST":
                self.count(tenant)
                _check_upgrade(headers)
            await self.app(scope, self._bounded(headers, receive), exchange.send)
        except Exception as error:
            found = as_api_error(error)
            if found.status >= 500 and not isinstance(error, ApiError):
                _LOG.exception("request %s failed", exchange.id)
            await exchange.refuse(found)
        finally:
            tenant = scope["state"].get("tenant", "-")
            _LOG.info(
                "%s %s %s %s %.0f ms %s",
                exchange.id,
                scope["method"],
                repr(scope.get("raw_path", scope["path"].encode())[:200]),
                exchange.status,
                exchange.age * 1e3,
                tenant,
            )

    def _identified(self, path: str, headers: dict[str, str]) -> str:
        """The name of the client's key; an error if the client is not allowed."""
        host = re.sub(r":\d+$", "", headers.get("host", "")).lower()
        if not self.keys and not self.settings.insecure and host not in _OWN_HOSTS:
            raise ApiError(
                403, f"this server answers to localhost only, and was called {host[:80]!r}; start it with API keys "
                "to be reached under other names", code="wrong_host",
            )  # fmt: skip
        if path in self.open_paths or path.startswith("/play/"):
            return "-"
        kind, _, key = headers.get("authorization", "").partition(" ")
        tenant = self.keys.tenant(key.strip() if kind.lower() == "bearer" else None)
        if tenant is None:
            raise ApiError(
                401, "an API key must be given as a header, Authorization: Bearer KEY, and "
                + ("this one is not known" if key else "none was"), code="invalid_api_key",
            )  # fmt: skip
        return tenant

    def _bounded(self, headers: dict[str, str], receive: Receive) -> Receive:
        """`receive` with bounds on the size and the time of a body."""
        limits = self.settings.limits
        too_large = ApiError(413, f"a body must have at most {limits.body_bytes} bytes", code="body_too_large")
        if (
            headers.get("content-length", "0").isdecimal()
            and int(headers.get("content-length", "0")) > limits.body_bytes
        ):
            raise too_large
        got, is_whole, deadline = 0, False, time.monotonic() + limits.body_time

        async def bounded() -> Message:
            nonlocal got, is_whole
            if is_whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise ApiError(408, f"a body must arrive within {limits.body_time:g} seconds", code="timeout") from None
            got += len(message.get("body", b""))
            if got > limits.body_bytes:
                raise too_large
            is_whole = not message.get("more_body", False)
            return message

        return bounded


class _Exchange:
    """One request: its id, and the status of its answer."""

    def __init__(self, headers: dict[str, str], send: Send) -> None:
        given = headers.get("x-request-id", "")
        self.id = given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        self.status, self._send, self._start = 0, send, time.monotonic()
        self._is_complete = False

    @property
    def age(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self._start

    async def send(self, message: Message) -> None:
        """Pass an answer on, with the id of the request."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        await self._send(message)
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error. If an answer has begun, raise it instead, which closes the connection."""
        if self._is_complete:
            return
        if self.status:
            raise error
        body = json.dumps(error.body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
