"""Starts a server, handles signals, drains it and ends it."""

import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any, Protocol

import uvicorn

from spectr.errors import ArgumentError
from spectr.lm import LM
from spectr.serve.app import build_app
from spectr.serve.service import Service
from spectr.serve.settings import ServerSettings
from spectr.serve.wire import bounded_protocol

__all__ = ["Served", "background", "bind", "check_address", "exclude_from_collection", "serve", "server_of", "url_of"]

_LOG = logging.getLogger("spectr.serve")


def check_address(settings: ServerSettings) -> None:
    """Refuse an address that other machines can reach if there are no keys and `insecure` is not set."""
    if settings.keys or settings.insecure or _is_loopback(settings.host):
        return
    raise ArgumentError(
        f"host {settings.host!r} can be reached from other machines and no API key was given; give --api-key-file or "
        "SPECTR_API_KEYS, use --host 127.0.0.1, or give --insecure if everybody may use this server"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(settings: ServerSettings) -> socket.socket:
    """The socket that the server will listen on: a port that is taken is noticed before a model is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        made.close()
        raise ArgumentError(
            f"the server must be able to listen on {settings.host}:{settings.port}: {error}; choose another --port or "
            "--host"
        ) from error
    return made


class Served(Protocol):
    """What runs behind an application."""

    is_draining: bool

    @property
    def settings(self) -> ServerSettings:
        """How it is reached and what it may do."""
        ...

    def end(self) -> None:
        """Answer all requests that run with an error."""
        ...


class _Server(uvicorn.Server):
    """Drains at the first signal: requests that run continue, new ones get 503. The second signal ends the server."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Served,
        talk: Callable[[str], None],
        listens: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self.service, self.talk, self.listens = service, talk, listens
        self.signal: int | None = None
        self.deadline: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `listens`."""
        await super().startup(sockets)
        with suppress(OSError):
            self.listens()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Remember a signal. It may arrive at any line of the program, so that nothing else is done here."""
        if self.signal is not None:
            self.should_exit = self.force_exit = True
        self.signal = sig

    async def on_tick(self, counter: int) -> bool:
        """Begin and end the drain. uvicorn calls this ten times a second and ends if it returns true."""
        if self.signal is not None and self.deadline is None:
            self.service.is_draining = True
            self.deadline = time.monotonic() + self.service.settings.limits.drain_time
            with suppress(OSError):  # nobody may read what the server says any more
                self.talk(f"{signal.Signals(self.signal).name}: finishing what runs; again to stop at once")
        if self.deadline is not None and not self.should_exit:
            is_late = time.monotonic() > self.deadline
            if is_late:
                self.service.end()
            self.should_exit = not self.server_state.tasks or is_late
        return await super().on_tick(counter)


def server_of(
    app: Any, service: Served, talk: Callable[[str], None], listens: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """A server for an application, which drains at a signal."""
    limits = service.settings.limits
    config = uvicorn.Config(
        app, log_config=None, access_log=False, http=bounded_protocol(limits), ws="none", lifespan="off",
        server_header=False, proxy_headers=False,
        timeout_keep_alive=max(1, round(limits.idle_time)), timeout_graceful_shutdown=1,
    )  # fmt: skip
    return _Server(config, service, talk, listens)


def url_of(listener: socket.socket) -> str:
    """The address of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def exclude_from_collection() -> None:
    """Exclude everything that exists now from garbage collection. Looking through the modules and the model of this
    process takes half a second, in which no request is answered, and finds nothing."""
    gc.collect()
    gc.freeze()


def serve(
    settings: ServerSettings, load: Callable[[], LM], talk: Callable[[str], None], started: Callable[[str], None]
) -> None:
    """Load a model and serve it until a signal ends the process. `started` gets the address."""
    check_address(settings)
    listener = bind(settings)
    try:
        service = Service(load(), settings)
        talk("warming up")
        service.warm_up()
        exclude_from_collection()
        server = server_of(build_app(service), service, talk, lambda: started(url_of(listener)))
        server.run([listener])
        service.close()
    finally:
        listener.close()
        gc.unfreeze()  # otherwise libraries report what is not collected at exit as leaks


@contextmanager
def background(lm: LM, settings: ServerSettings) -> Iterator[tuple[str, Service]]:
    """A server in a thread of this process, as long as the block runs: its address, and the service behind it."""
    check_address(settings)
    listener = bind(settings)
    service = Service(lm, settings)
    service.warm_up()
    server = server_of(build_app(service), service, lambda _: None)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield url_of(listener), service
    finally:
        server.should_exit = True
        thread.join(10)
        service.close()
        listener.close()
