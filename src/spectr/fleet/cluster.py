"""Connects to a running Ray cluster, or starts one on this machine for the duration of a command.

A cluster that is started here has no dashboard, and refuses clients that do not have its token. Ray always listens on
all network addresses of a machine, so that only the token keeps others out.
"""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spectr.errors import ArgumentError, MissingExtraError

__all__ = ["connected", "import_ray"]

_STORE = 256 << 20  # bytes of shared memory; workers exchange only texts


def import_ray(purpose: str) -> Any:
    """Import and return Ray, or raise an error that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
        import ray.serve
    except ImportError as error:
        raise MissingExtraError(error.name or "ray", "ray", purpose) from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


@contextmanager
def connected(address: str | None, workers: int, purpose: str) -> Iterator[Any]:
    """Connect to the cluster at `address`, or start one that is shut down after the block. Yield the `ray` module."""
    _authenticate(is_new=address is None)  # Ray reads these variables when it is imported
    ray = import_ray(purpose)
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address is None:
            cpus = max(os.cpu_count() or 1, workers + 1)  # each worker takes one, and so does the driver
            ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise ArgumentError(f"cannot start a Ray cluster on this machine: {error}") from error
        raise ArgumentError(f"--address must be that of a running Ray cluster, got {address!r}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _authenticate(*, is_new: bool) -> None:
    """Turn on token authentication, and create a token for a new cluster. Environment variables that are already set
    take precedence."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if is_new and mode == "token" and not has_token:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # inherited by the processes of the cluster
