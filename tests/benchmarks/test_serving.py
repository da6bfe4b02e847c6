"""`benchmarks.serving` on a small model: both ways run the same requests, and the part that lasts counts errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.__main__ import serving


@pytest.mark.slow
def test_the_command_compares_clients_with_the_engine(
    command: Callable[..., Any], target: str, head: str, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    flags = ["--prompts", str(prompts), "--model", target, "--drafter", head, "--device", "cpu", "--out", str(out)]
    sizes = ["--prompt-tokens", "10,40", "--output-tokens", "4,12", "--clients", "1,3", "--requests", "2"]
    ran = command(serving, *flags, *sizes, "--repeats", "2", "--soak-clients", "2", "--soak-minutes", "0.02")
    assert ran.code == 0, ran.err
    assert "× engine" in ran.out
    parts = json.loads(out.read_text())["parts"]
    assert set(parts) == {"clients_1", "clients_3", "soak_2"}
    for part in (parts["clients_1"], parts["clients_3"]):
        assert [len(runs) for runs in part["runs"].values()] == [2, 2]
        for alone, http in zip(*part["runs"].values(), strict=True):
            assert alone["tokens"] == http["tokens"]
            assert alone["errors"] == http["errors"] == 0
    assert parts["soak_2"]["errors"] == 0
    assert parts["soak_2"]["requests"] > 0
