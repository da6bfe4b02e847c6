"""`spectr deploy`: runs replicas of a model on Ray Serve, behind the router of spectr."""

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

_ROUTER_REQUESTS = 100_000  # maximum number of requests in a router; the replicas have limits of their own


def deploy(plan: FleetPlan, keys: tuple[str, ...]) -> None:
    """Bring the connected cluster to the state that the plan describes.

    Replicas that must change are replaced a few at a time while the others answer. A replica that is replaced has
    `drain_time` to finish its requests; streams that take longer continue at another replica."""
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
        max_ongoing_requests=_ROUTER_REQUESTS,
        graceful_shutdown_timeout_s=plan.drain_time,
    )
    arguments = (plan.model, plan.loading, settings, plan.revision)
    return _versioned(router, settings).bind(_versioned(model, *arguments).bind(*arguments), settings)


def _versioned(deployment: Any, *arguments: Any) -> Any:
    """Return a deployment whose version is a hash of the arguments of its replicas, so that Ray Serve replaces only
    replicas of other versions. If Ray no longer accepts versions, every update replaces all replicas."""
    version = hashlib.sha256(repr((__version__, *arguments)).encode()).hexdigest()[:16]
    try:
        return deployment.options(version=version, _internal=True)
    except (TypeError, ValueError):
        return deployment


def _scaling(plan: FleetPlan) -> dict[str, Any]:
    """Return the number of replicas as options of Ray Serve."""
    scaling = plan.replicas
    if scaling.least == scaling.most:
        return {"num_replicas": scaling.least}
    return {
        "autoscaling_config": {
            "min_replicas": scaling.least,
            "max_replicas": scaling.most,
            "target_ongoing_requests": scaling.queue,
            "upscale_delay_s": scaling.up_delay,
            "downscale_delay_s": scaling.down_delay,
        }
    }


def run_fleet(
    path: Path, address: str | None, read_keys: Callable[[Path | None], tuple[str, ...]], talk: Callable[[str], None]
) -> None:
    """Deploy the plan in the file `path`. Given the address of a running cluster, deploy to it and return. Without one,
    start a cluster and run it until SIGTERM or Ctrl-C, and read the plan again on SIGHUP."""
    plan = read_plan(path)
    with connected(address, plan.replicas.most + plan.routers, "spectr deploy"):
        if address is not None:
            _deploy_file(path, read_keys, talk)
            return
        stop, reload = threading.Event(), threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGHUP, lambda *_: reload.set())
        _deploy_file(path, read_keys, talk)
        while not stop.wait(0.2):
            if reload.is_set():
                reload.clear()
                _deploy_file(path, read_keys, talk)


def _deploy_file(path: Path, read_keys: Callable[[Path | None], tuple[str, ...]], talk: Callable[[str], None]) -> None:
    plan = read_plan(path)
    keys = read_keys(None if plan.api_key_file is None else path.parent / plan.api_key_file)
    deploy(plan, keys)
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    talk(f"serving {plan.served_name or plan.model} at http://{host}:{plan.port}/v1 (plan {plan.digest})")
