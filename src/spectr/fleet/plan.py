"""The plan of `spectr deploy`: a file with the model, the number of replicas, and their address."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from spectr.errors import ArgumentError
from spectr.registry import nearest
from spectr.serve.settings import Limits, ServerSettings

__all__ = ["FleetPlan", "Scaling", "read_plan"]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas there are. Where `most` is above `least`, it follows the queue: one more for every `queue`
    requests that a replica has beyond those, on average."""

    least: int = 1
    most: int = 1
    queue: float = 16.0  # requests that run or wait at a replica, on average
    up_delay: float = 10.0  # seconds that it must have been so before replicas are added
    down_delay: float = 300.0  # and before they are taken away

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ArgumentError(f"replicas must have 1 <= least <= most, got {self.least} and {self.most}")
        if min(self.queue, self.up_delay + 1, self.down_delay + 1) <= 0:
            raise ArgumentError("replicas.queue must be above 0, and the delays at least 0")


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """An application of replicas behind a router."""

    model: str
    name: str = "spectr"  # of the application, on a cluster that may have several
    served_name: str | None = None  # what clients call the model; None: as it is loaded
    drafter: str = "auto"
    rule: str = "race"
    device: str = "auto"
    dtype: str = "auto"
    nodes: int | None = None
    replicas: Scaling = field(default_factory=Scaling)
    cpus: float = 1.0  # of each replica
    gpus: float = 0.0
    routers: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: str | None = None
    insecure: bool = False
    running: int = 64  # texts that a replica runs at once
    queue: int = 256  # texts that wait at a replica
    request_time: float = 600.0
    drain_time: float = 30.0  # seconds for running requests where a replica is taken away; then another goes on
    event_ids: bool = True
    receipts: bool = True
    audit_share: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)  # variables of the replicas' processes
    revision: str = ""  # any text: another one makes replicas anew, for instance after files of the model changed

    def __post_init__(self) -> None:
        if wrong := [name for name, value in self.environment.items() if not isinstance(value, str)]:
            raise ArgumentError(f"environment must have texts as values; put that of {wrong[0]!r} in quotes")

    def settings(self, keys: tuple[str, ...]) -> ServerSettings:
        """The same for router and replicas."""
        limits = Limits(running=self.running, queue=self.queue, request_time=self.request_time,
                        drain_time=self.drain_time)  # fmt: skip
        return ServerSettings(
            self.host, self.port, self.served_name or self.model, keys, self.insecure, audit_share=self.audit_share,
            receipts=self.receipts, event_ids=self.event_ids, limits=limits,
        )  # fmt: skip

    @property
    def loading(self) -> dict[str, Any]:
        """Options of `spectr.load`."""
        found = {"drafter": self.drafter, "rule": self.rule, "device": self.device, "dtype": self.dtype}
        return {**found, "rows": self.running, **({} if self.nodes is None else {"nodes": self.nodes})}

    @property
    def digest(self) -> str:
        """A name for what the plan says."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:12]


def read_plan(path: Path) -> FleetPlan:
    """A plan from a file in YAML."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArgumentError(f"a plan must be a file in YAML, and {path} is not: {error}") from error
    if not isinstance(found, dict) or "model" not in found:
        raise ArgumentError(f"a plan must say which model, as in 'model: smollm2-135m', and {path} does not")
    scaling = found.get("replicas", 1)
    if isinstance(scaling, int) and not isinstance(scaling, bool):
        scaling = {"least": scaling, "most": scaling}
    replicas = _made(Scaling, scaling, "replicas.", path)
    plan: FleetPlan = _made(FleetPlan, {**found, "replicas": replicas}, "", path)
    return plan


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "str | None": (str, type(None)), "int": (int,), "int | None": (int, type(None)),
    "float": (int, float), "bool": (bool,), "dict": (dict,), "Scaling": (Scaling,),
}  # fmt: skip


def _made(kind: Any, given: Any, prefix: str, path: Path) -> Any:
    """A dataclass from what a file says, whose names and types are checked."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{prefix.rstrip('.')} in {path} must be a number or have fields, got {given!r}")
    known = {own.name: str(getattr(own.type, "__name__", own.type)) for own in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise ArgumentError(f"a plan has no {prefix}{name}; {nearest(str(name), list(known))}")
        wanted = _KINDS[known[name]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise ArgumentError(f"{prefix}{name} in {path} must be {known[name]}, got {value!r}")
    return kind(**given)
