"""`spectr deploy`: replicas of a model on Ray Serve, behind a router of ours."""

import hashlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectr.fleet.cluster import connected
from spectr.fleet.plan import FleetPlan, read_plan
from spectr.serve.run import check_address
from spectr.version import __version__

__all__ = ["deploy", "run_fleet"]

_PROXY_ROOM = 100_000  # requests that a router holds at once; replicas have bounds of their own


def deploy(plan: FleetPlan, keys: tuple[str, ...]) -> None:
    """Make what runs on the connected cluster what the plan says. Replicas that must change are replaced a few at a
    time, while the others answer; what runs is given time to end, and goes on elsewhere where that is too short."""
    from ray import serve

    settings = plan.settings(keys)
    check_address(settings)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": plan.host, "port": plan.port, "request_timeout_s": None},
        logging_config={"enable_access_log": False},
    )
    serve.run(_application(plan, settings), name=plan.name, route_prefix="/")


def _application(plan: FleetPlan, settings: Any) -> Any:
    from ray import serve

    from spectr.fleet.serving import ModelReplica, PrefixRouter, RouterIngress

    model = serve.deployment(
        ModelReplica,
        name="Model",
        **_scaling(plan),
        ray_actor_options={
            "num_cpus": plan.cpus,
            "num_gpus": plan.gpus,
            "runtime_env": {"env_vars": plan.environment},
        },
        max_ongoing_requests=plan.running + plan.queue,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=plan.drain_time,
        request_router_config={"request_router_class": PrefixRouter},
    )
    router = serve.deployment(
        serve.ingress()(RouterIngress),
        name="Router",
        num_replicas=plan.routers,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_PROXY_ROOM,
        graceful_shutdown_timeout_s=plan.drain_time,
    )
    parts = (plan.model, plan.loading, settings, plan.revision)
    return _named(router, settings).bind(_named(model, *parts).bind(*parts), settings)


def _named(deployment: Any, *parts: Any) -> Any:
    """A deployment with a version that says what its replicas are made from, so that Ray Serve replaces those that have
    another, and no others. Where Ray does not take versions any more, all are replaced."""
    version = hashlib.sha256(repr((__version__, *parts)).encode()).hexdigest()[:16]
    try:
        return deployment.options(version=version, _internal=True)
    except (TypeError, ValueError):
        return deployment


def _scaling(plan: FleetPlan) -> dict[str, Any]:
    """The number of replicas, as options of Ray Serve."""
    wanted = plan.replicas
    if wanted.least == wanted.most:
        return {"num_replicas": wanted.least}
    return {
        "autoscaling_config": {
            "min_replicas": wanted.least,
            "max_replicas": wanted.most,
            "target_ongoing_requests": wanted.queue,
            "upscale_delay_s": wanted.up_delay,
            "downscale_delay_s": wanted.down_delay,
        }
    }


def run_fleet(
    path: Path, address: str | None, read_keys: Callable[[Path | None], tuple[str, ...]], talk: Callable[[str], None]
) -> None:
    """Deploy a plan: on a cluster that runs, and be done; or on one of this process, until a signal ends it. SIGHUP
    reads the plan again."""
    plan = read_plan(path)
    with connected(address, plan.replicas.most + plan.routers, "spectr deploy"):
        if address is not None:
            _deployed(path, read_keys, talk)
            return
        ends, again = threading.Event(), threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
        signal.signal(signal.SIGHUP, lambda *_: again.set())
        _deployed(path, read_keys, talk)
        while not ends.wait(0.2):
            if again.is_set():
                again.clear()
                _deployed(path, read_keys, talk)


def _deployed(path: Path, read_keys: Callable[[Path | None], tuple[str, ...]], talk: Callable[[str], None]) -> None:
    plan = read_plan(path)
    keys = read_keys(None if plan.api_key_file is None else path.parent / plan.api_key_file)
    deploy(plan, keys)
    shown = f"[{plan.host}]" if ":" in plan.host else plan.host
    talk(f"serving {plan.served_name or plan.model} at http://{shown}:{plan.port}/v1 (plan {plan.digest})")
