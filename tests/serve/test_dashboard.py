"""deploy/grafana.json is the output of tools/dashboard.py, and shows counters that the server has."""

import json
import re
from collections.abc import Callable
from types import ModuleType

import httpx2
import pytest


@pytest.fixture(scope="module")
def tool(generator: Callable[[str], ModuleType]) -> ModuleType:
    return generator("dashboard")


def test_the_file_is_up_to_date(tool: ModuleType) -> None:
    assert tool.FILE.read_text(encoding="utf-8") == tool.render(), "run python tools/dashboard.py"


def test_every_counter_of_a_panel_exists(tool: ModuleType, client: httpx2.Client) -> None:
    """Every counter and label that a panel asks for is on the page that Prometheus reads."""
    found = client.post("/v1/completions", json={"prompt": "one two one two one", "max_tokens": 30, "temperature": 0})
    assert found.status_code == 200
    page = client.get("/metrics").text
    panels = json.loads(tool.FILE.read_text(encoding="utf-8"))["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    names = set(re.findall(r"spectr:\w+", asked))
    assert len(names) > 12
    assert [name for name in names if not re.search(rf"^{name}[ {{]", page, re.MULTILINE)] == []
    for label in re.findall(r"by \((\w+)\)", asked):
        assert f'{label}="' in page
