"""Writes deploy/grafana.json, a dashboard for Grafana of the counters of `/metrics`. A test checks that the file is up
to date, and that the server has every counter that it names.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana.json"
_RATE = "[$__rate_interval]"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3  # Grafana's grid has 24 columns


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: its title, what it shows, its unit, and the queries of its curves by their names."""

    title: str
    description: str
    unit: str
    curves: dict[str, str]


def _per_second(counter: str) -> str:
    return f"sum(rate({counter}{_RATE}))"


def _quantiles(histogram: str) -> dict[str, str]:
    return {
        name: f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{_RATE})))"
        for name, share in (("median", 0.5), ("95 %", 0.95))
    }


_STEPS = _per_second("spectr:spec_decode_num_drafts_total")
_DRAFTED = _per_second("spectr:spec_decode_num_draft_tokens_total")
_ACCEPTED = _per_second("spectr:spec_decode_num_accepted_tokens_total")
_BY_DEPTH = "spectr:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = _per_second("spectr:generation_tokens_total")
PANELS = (
    Panel("Tokens per second", "Generated tokens and prompt tokens.", "short",
          {"generated": _GENERATED, "prompts": _per_second("spectr:prompt_tokens_total")}),
    Panel("Texts", "Texts that are generated, and texts that wait for a place.", "short",
          {"running": "sum(spectr:num_requests_running)", "waiting": "sum(spectr:num_requests_waiting)"}),
    Panel("Finished texts per second", "By the reason for which they ended.", "short",
          {"{{finished_reason}}": f"sum by (finished_reason) (rate(spectr:requests_total{_RATE}))"}),
    Panel("Time to the first token", "Waiting and prefill included.", "s",
          _quantiles("spectr:time_to_first_token_seconds")),
    Panel("Time per output token", "Of the tokens after the first.", "s",
          _quantiles("spectr:time_per_output_token_seconds")),
    Panel("Time of a request", "To the last token of all its texts, waiting included.", "s",
          _quantiles("spectr:e2e_request_latency_seconds")),
    Panel("Tokens per call", "Tokens that one call of the model adds to one text; 1 is plain decoding.", "short",
          {"tokens": f"{_GENERATED} / {_STEPS}"}),
    Panel("Accepted drafts", "Share of the drafted tokens that were accepted.", "percentunit",
          {"accepted": f"{_ACCEPTED} / {_DRAFTED}"}),
    Panel("Acceptance by depth", "Accepted drafts per call at each depth of the tree.", "short",
          {"depth {{position}}": f"sum by (position) (rate({_BY_DEPTH}{_RATE})) / scalar({_STEPS})"}),
    Panel("Cache", "Share of the cache in use, and of the prompt tokens that were found in it.", "percentunit",
          {"in use": "avg(spectr:kv_cache_usage_perc)",
           "prompt tokens found": f"{_per_second('spectr:prefix_cache_hits_total')} / "
                           f"{_per_second('spectr:prompt_tokens_total')}"}),
    Panel("Preemptions", "Texts that lost their place because memory was short, and continue later.", "short",
          {"texts": "sum(increase(spectr:num_preemptions_total[$__rate_interval]))"}),
    Panel("Ready", "Servers whose /ready answers 200.", "short",
          {"servers": "sum(spectr:ready)"}),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": at + 1, "type": "timeseries", "title": panel.title, "description": panel.description,
            "datasource": source,
            "gridPos": {"x": at % _COLUMNS * _WIDTH, "y": at // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + number), "datasource": source, "expr": expression, "legendFormat": name}
                for number, (name, expression) in enumerate(panel.curves.items())
            ],
        }
        for at, panel in enumerate(PANELS)
    ]  # fmt: skip
    choice = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "spectr", "uid": "spectr", "schemaVersion": 39, "editable": True, "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"}, "templating": {"list": [choice]}, "panels": panels,
    }  # fmt: skip


def render() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description="Write the dashboard for Grafana to deploy/grafana.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")
    if parser.parse_args().check:
        return int(FILE.read_text(encoding="utf-8") != render())
    FILE.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
