"""Metrics of a router for Prometheus."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily

from spectr.fleet.replicas import Replicas

__all__ = ["RouterCounters"]


class _Loads:
    """Reports the load of each replica at the time when Prometheus reads the metrics."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def collect(self) -> Iterator[Any]:
        loads = self.replicas.loads
        yield GaugeMetricFamily("spectr:router_replicas", "Replicas that accept requests.", value=len(loads))
        family = GaugeMetricFamily("spectr:router_load", "Requests in flight to each replica.", labels=["replica"])
        for name, load in loads.items():
            family.add_metric([name], load)
        yield family


class RouterCounters:
    """All metrics of a router."""

    def __init__(self, replicas: Replicas) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Loads(replicas))
        self.calls = Counter("spectr:router_calls", "Requests sent to replicas.", registry=self.registry)
        self.failovers = Counter(
            "spectr:router_failovers", "Streams continued at another replica.", registry=self.registry
        )

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
