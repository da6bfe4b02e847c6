"""The examples of docs/serving.md run unchanged, except for the address of the server."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from spectr.lm import LM
from spectr.serve import ServerSettings
from spectr.serve.run import background

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
CURL = [
    block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if block.startswith("curl")
]
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def url(lm: LM) -> Any:
    with background(lm, ServerSettings(port=0, name="smollm2-135m")) as (url, _):
        yield url


@pytest.mark.parametrize("block", CURL)
def test_curl_examples_run(url: str, block: str) -> None:
    command = block.replace("http://127.0.0.1:8000", url)
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert '"finish_reason"' in ran.stdout
    assert '"error"' not in ran.stdout


@pytest.mark.parametrize("block", PYTHON)
def test_python_examples_run(url: str, block: str) -> None:
    pytest.importorskip("openai", reason="pip install openai")
    code = block.replace("http://127.0.0.1:8000", url)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_every_field_and_page_is_there(client: httpx2.Client) -> None:
    """The page mentions every endpoint, and every field of a chat request."""
    described = client.get("/openapi.json").json()
    pages = {path for path in described["paths"] if path.removesuffix("/{name}") not in PAGE}
    assert not pages
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert [
        name for name in fields if name not in ("model", "messages") and f"`{name}`" not in PAGE and name not in PAGE
    ] == []


@pytest.mark.slow
def test_the_command_replays(folder: Path, client: httpx2.Client, tmp_path: Path) -> None:
    """`spectr replay` reproduces the text of a saved response."""
    found = client.post("/v1/completions", json={"prompt": "one two", "max_tokens": 12}).text
    (tmp_path / "response.json").write_text(found, encoding="utf-8")
    flags = ["--model", str(folder), "--dtype", "float64", "--drafter", "none"]
    command = [sys.executable, "-m", "spectr", "replay", str(tmp_path / "response.json"), *flags]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    assert "the same tokens as in the receipt" in ran.stderr


def test_the_deployment_files_name_real_flags() -> None:
    root = Path(__file__).resolve().parents[2]
    known = set(re.findall(r"--[a-z][a-z-]+", (root / "docs" / "cli.md").read_text(encoding="utf-8")))
    commands = [
        line.split("spectr serve", 1)[1]
        for path in (root / "deploy").iterdir()
        for line in path.read_text(encoding="utf-8").splitlines()
        if "spectr serve" in line and not line.startswith("#")
    ]
    assert len(commands) == 2
    assert {flag for command in commands for flag in re.findall(r"--[a-z][a-z-]+", command)} <= known
