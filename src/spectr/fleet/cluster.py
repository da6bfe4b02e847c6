"""A Ray cluster: one that runs already, or one on this machine for as long as a command runs.

The cluster of a command has no dashboard, and refuses clients without its token. Ray always listens on all addresses of
a machine: the token is what keeps others out.
"""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spectr.errors import ArgumentError, MissingExtraError

__all__ = ["connected", "needs_ray"]

_STORE = 256 << 20  # bytes of shared memory for what workers pass on: texts


def needs_ray(purpose: str) -> Any:
    """Ray, or an error that says how to get it."""
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
    """Ray, connected to the cluster at an address, or to one that is started here and ended after the block."""
    _authenticate(is_new=address is None)  # before the import, which reads it
    ray = needs_ray(purpose)
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if address is None:
            cpus = max(os.cpu_count() or 1, workers + 1)  # each worker takes one, and so does the driver
            ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=_STORE, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"there must be a Ray cluster at {address or 'this machine'}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _authenticate(*, is_new: bool) -> None:
    """Turn token authentication on, and make a token for a new cluster. Variables that an operator set stay."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if is_new and mode == "token" and not has_token:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # inherited by the processes of the cluster
