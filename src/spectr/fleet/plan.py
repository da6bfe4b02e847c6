"""The plan of `spectr deploy`: a YAML file with the model, the number of replicas and the address to serve at."""

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
    """The number of replicas. If `most` is above `least`, it is adjusted between them so that each replica has about
    `queue` requests."""

    least: int = 1
    most: int = 1
    queue: float = 16.0  # target number of requests, running or waiting, per replica
    up_delay: float = 10.0  # seconds that the load must be above the target before replicas are added
    down_delay: float = 300.0  # seconds that it must be below the target before replicas are removed

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ArgumentError(f"replicas must have 1 <= least <= most, got least={self.least} and most={self.most}")
        if min(self.queue, self.up_delay + 1, self.down_delay + 1) <= 0:
            raise ArgumentError(
                f"replicas must have queue > 0, up_delay >= 0 and down_delay >= 0, got queue={self.queue}, "
                f"up_delay={self.up_delay} and down_delay={self.down_delay}"
            )


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What to deploy: replicas of a model behind a router."""

    model: str
    name: str = "spectr"  # of the application; a cluster may run several
    served_name: str | None = None  # the name that clients use for the model; None: the same as `model`
    drafter: str = "auto"
    rule: str = "race"
    device: str = "auto"
    dtype: str = "auto"
    nodes: int | None = None
    replicas: Scaling = field(default_factory=Scaling)
    cpus: float = 1.0  # per replica
    gpus: float = 0.0  # per replica
    routers: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: str | None = None
    insecure: bool = False
    running: int = 64  # maximum number of texts that a replica generates at once
    queue: int = 256  # maximum number of texts that wait at a replica
    request_time: float = 600.0  # seconds
    drain_time: float = 30.0  # seconds in which a replica that is removed may finish requests; others continue the rest
    event_ids: bool = True
    receipts: bool = True
    audit_share: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)  # environment variables of the replicas
    revision: str = ""  # any text; changing it replaces all replicas, for instance after files of the model changed

    def __post_init__(self) -> None:
        if wrong := [name for name, value in self.environment.items() if not isinstance(value, str)]:
            raise ArgumentError(f"environment must have strings as values; put the value of {wrong[0]!r} in quotes")

    def settings(self, keys: tuple[str, ...]) -> ServerSettings:
        """Return the server settings, which the router and the replicas share."""
        limits = Limits(running=self.running, queue=self.queue, request_time=self.request_time,
                        drain_time=self.drain_time)  # fmt: skip
        return ServerSettings(
            self.host, self.port, self.served_name or self.model, keys, self.insecure, audit_share=self.audit_share,
            receipts=self.receipts, event_ids=self.event_ids, limits=limits,
        )  # fmt: skip

    @property
    def loading(self) -> dict[str, Any]:
        """The options for `spectr.load`."""
        options = {"drafter": self.drafter, "rule": self.rule, "device": self.device, "dtype": self.dtype}
        return {**options, "rows": self.running, **({} if self.nodes is None else {"nodes": self.nodes})}

    @property
    def digest(self) -> str:
        """A short hash of the plan's contents."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:12]


def read_plan(path: Path) -> FleetPlan:
    """Read a plan from a YAML file."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArgumentError(f"a plan must be a file in YAML, but {path} could not be read: {error}") from error
    if not isinstance(content, dict) or "model" not in content:
        raise ArgumentError(f"a plan must say which model to serve, as in 'model: smollm2-135m', but {path} does not")
    scaling = content.get("replicas", 1)
    if isinstance(scaling, int) and not isinstance(scaling, bool):
        scaling = {"least": scaling, "most": scaling}
    replicas = _checked(Scaling, scaling, "replicas.", path)
    plan: FleetPlan = _checked(FleetPlan, {**content, "replicas": replicas}, "", path)
    return plan


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "str | None": (str, type(None)), "int": (int,), "int | None": (int, type(None)),
    "float": (int, float), "bool": (bool,), "dict": (dict,), "Scaling": (Scaling,),
}  # fmt: skip


def _checked(kind: Any, values: Any, prefix: str, path: Path) -> Any:
    """Create a dataclass of class `kind` from the values in a file, after checking their names and types."""
    if not isinstance(values, Mapping):
        raise ArgumentError(f"{prefix.rstrip('.')} in {path} must be a number or a mapping, got {values!r}")
    type_names = {entry.name: str(getattr(entry.type, "__name__", entry.type)) for entry in fields(kind)}
    for name, value in values.items():
        if name not in type_names:
            raise ArgumentError(f"a plan has no field {prefix}{name}; {nearest(str(name), list(type_names))}")
        allowed = _TYPES[type_names[name]]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ArgumentError(f"{prefix}{name} in {path} must be {type_names[name]}, got {value!r}")
    return kind(**values)
