"""Counters for Prometheus: speculation, latencies, and the load of the engine."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from spectr.engine.metrics import Stats
from spectr.serve.admission import Admission
from spectr.serve.service import Service

__all__ = ["ServerMetrics"]

disable_created_metrics()  # type: ignore[no-untyped-call]
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class _Speculation:
    """Counters of speculation under one prefix."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"{prefix}:spec_decode_num_{name}", what, labels, registry=registry)

        self.drafts = counter("drafts", "Steps: target calls.")
        self.drafted = counter("draft_tokens", "Draft tokens that were scored.")
        self.accepted = counter("accepted_tokens", "Draft tokens that were accepted.")
        self.by_position = counter("accepted_tokens_per_pos", "Draft tokens accepted at each depth.", "position")

    def add(self, stats: Stats) -> None:
        self.drafts.inc(stats.steps)
        self.drafted.inc(stats.drafted)
        self.accepted.inc(stats.accepted)
        for depth, kept in enumerate(stats.kept):
            self.by_position.labels(str(depth)).inc(kept)


class _Now:
    """The load of the engine when Prometheus reads it."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self.service, self.admission = service, admission

    def collect(self) -> Iterator[Any]:
        load = self.service.lm.engine.load
        gauges = {
            "num_requests_running": ("Texts that take part in steps.", load.running + load.prefilling),
            "num_requests_waiting": ("Texts that wait for a place.", self.admission.waiting + load.waiting),
            "kv_cache_usage_perc": ("Share of the cache that holds texts.", load.tokens / max(1, load.slots)),
            "ready": (
                "Whether the server accepts requests and the self-audit has found no violation.",
                float(self.service.is_ready),
            ),
        }
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(f"spectr:{name}", what, value=value)
        yield CounterMetricFamily(
            "spectr:num_preemptions", "Preemptions of texts because memory was short.", value=load.preemptions
        )
        for name, value in self.service.audit_counts.items():
            yield CounterMetricFamily(
                f"spectr:audit_{name}", "Steps recomputed by the self-audit, by outcome.", value=value
            )


class ServerMetrics:
    """All counters and histograms of a server."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_Now(service, admission))
        names = ["spectr", *(["vllm"] if service.settings.vllm_names else [])]
        self._speculation = [_Speculation(name, registry) for name in names]
        self.prompt_tokens = Counter("spectr:prompt_tokens", "Tokens of prompts.", registry=registry)
        self.reused_tokens = Counter("spectr:prefix_cache_hits", "Prompt tokens found in the cache.", registry=registry)
        self.generated = Counter("spectr:generation_tokens", "Tokens generated.", registry=registry)
        self.requests = Counter("spectr:requests", "Texts by how they ended.", ["finished_reason"], registry=registry)
        self.first = Histogram(
            "spectr:time_to_first_token_seconds",
            "Until the first token of a text.",
            registry=registry,
            buckets=_SECONDS,
        )
        self.per_token = Histogram(
            "spectr:time_per_output_token_seconds", "Time per output token.", registry=registry, buckets=_FRACTIONS
        )
        self.whole = Histogram(
            "spectr:e2e_request_latency_seconds",
            "Until the last token of a request.",
            registry=registry,
            buckets=_SECONDS,
        )

    def speculated(self, stats: Stats) -> None:
        """Count the drafted and accepted tokens of one text."""
        for counters in self._speculation:
            counters.add(stats)
        self.generated.inc(stats.emitted)

    def page(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self.registry)
