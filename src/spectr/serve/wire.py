"""Connections: uvicorn's HTTP protocol, with bounds on what a client can hold without sending a proper request. What is
refused before there is a request has an answer in the form of all other errors, unless another answer is being sent."""

import asyncio
import json
import logging
import secrets
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spectr.serve.errors import ApiError
from spectr.serve.settings import Limits

__all__ = ["MOST_HEADER_BYTES", "bounded_protocol"]

MOST_HEADER_BYTES = 64 << 10  # of one request
_OVERHEAD = 8  # bytes on the wire for each byte of a body that is sent in small chunks, at most
_Base: Any = HttpToolsProtocol  # its attributes are not annotated for subclasses
_LOG = logging.getLogger("spectr.serve")


def _response(error: ApiError, name: str) -> bytes:
    """An error as a whole HTTP response, which closes the connection."""
    body = json.dumps(error.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close",
               "x-request-id": name, **error.headers}  # fmt: skip
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


class _Bounded(_Base):  # type: ignore[misc]
    """Closes connections whose headers are too long or too slow, whose client does not read what it is sent, and those
    that send a request before the last one is answered: behind such a request a disconnect would not be seen."""

    limits: Limits

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._headers_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_reading_headers = True
        self._bytes = 0  # received of the headers, or of the body, that is being read

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or refuse it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(ApiError(503, f"this server has {self.limits.connections} connections, as many as it takes; "
                                  "retry later", code="too_many_connections", wait=5))  # fmt: skip
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop("_headers_timer")
        self._stop("_write_timer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and check how many there are."""
        before = self._is_reading_headers
        self._bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if before != self._is_reading_headers:
            self._bytes = 0
        most = MOST_HEADER_BYTES if self._is_reading_headers else _OVERHEAD * self.limits.body_bytes + MOST_HEADER_BYTES
        if self._bytes > most and self._is_reading_headers:
            self._refuse(ApiError(431, f"the headers of a request must have at most {MOST_HEADER_BYTES} bytes",
                                  code="headers_too_large"))  # fmt: skip
        elif self._bytes > most:
            self._refuse(ApiError(413, f"a body must have at most {self.limits.body_bytes} bytes, and its chunks not "
                                  "many times as many", code="body_too_large"))  # fmt: skip
        elif self._is_idle:
            self._await_headers()
        else:
            self._stop("_headers_timer")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_reading_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, unless it comes after the body."""
        if self._is_reading_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start a request whose headers are complete."""
        self._is_reading_headers = False
        if not self._is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.abort()
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has been received completely."""
        super().on_message_complete()
        self._is_reading_headers = True
        self._bytes = 0

    def on_response_complete(self) -> None:
        """An answer was written. If the connection closes after it, the client has `write_time` to read it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_writing_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long."""
        self._close()

    def pause_writing(self) -> None:
        """The client reads less than it is sent."""
        super().pause_writing()
        self._start_writing_timer()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop("_write_timer")

    def _unsupported_upgrade_warning(self) -> None:
        """Answer a request with an Upgrade header as if it had none, and close: what follows cannot be parsed."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request; uvicorn calls this."""
        self._refuse(ApiError(400, "the bytes that were sent are not a request of HTTP/1.1", code="invalid_http"))

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Cancel the request that is being read, answer with an error and close the connection. Where an answer has
        begun, only close: an error in the middle of it could be taken for a part of it."""
        if not self._is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self._is_idle and self.cycle.response_started:
            self.transport.abort()
            return
        name = f"req-{secrets.token_hex(12)}"
        _LOG.info("%s %s %s", name, error.status, error.code)
        self.transport.write(_response(error, name))
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._start_writing_timer()

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self.limits.header_time, self._give_up_headers)

    def _give_up_headers(self) -> None:
        """Close a connection on which no whole request came in time; one that began is answered."""
        if self._bytes:
            self._refuse(ApiError(408, f"the headers of a request must arrive within {self.limits.header_time:g} "
                                  "seconds", code="timeout"))  # fmt: skip
        else:
            self._close()

    def _start_writing_timer(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_time, self.transport.abort)

    def _stop(self, name: str) -> None:
        if (timer := getattr(self, name)) is not None:
            timer.cancel()
            setattr(self, name, None)


def bounded_protocol(given: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""

    class Bounded(_Bounded):
        limits = given

    return Bounded
