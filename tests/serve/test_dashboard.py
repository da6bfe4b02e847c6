"""deploy/grafana.json is the output of tools/dashboard.py, and shows counters that the server has."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parents[2]


def tool() -> Any:
    """Import tools/dashboard.py, which is not in a package."""
    spec = spec_from_file_location("dashboard", ROOT / "tools" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_up_to_date() -> None:
    assert tool().FILE.read_text(encoding="utf-8") == tool().render(), "run python tools/dashboard.py"


def test_every_counter_of_a_panel_exists(client: httpx2.Client) -> None:
    """Every counter and label that a panel asks for is on the page that Prometheus reads."""
    found = client.post("/v1/completions", json={"prompt": "one two one two one", "max_tokens": 30, "temperature": 0})
    assert found.status_code == 200
    page = client.get("/metrics").text
    panels = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    names = set(re.findall(r"spectr:\w+", asked))
    assert len(names) > 12
    assert [name for name in names if not re.search(rf"^{name}[ {{]", page, re.MULTILINE)] == []
    for label in re.findall(r"by \((\w+)\)", asked):
        assert f'{label}="' in page
