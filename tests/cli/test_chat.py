"""`spectr chat`, `spectr doctor`, `spectr generate --trace` and `spectr bench step`, with the real default model."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Spectr = Callable[..., Any]


def test_a_conversation_in_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spectr", "chat", "--max-new-tokens", "6", "--temperature", "0", "--system", "Brief."],
        input="Hello.\n\nAgain.\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert len(done.stdout.strip().splitlines()) >= 2
    first, second = [line for line in done.stderr.splitlines() if "not read again" in line]
    assert ", 0 tokens not read again" in first
    assert ", 0 tokens not read again" not in second


def test_doctor(spectr: Spectr) -> None:
    ran = spectr("doctor", "--model", "smollm2-135m", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["packages"]["torch"]
    assert found["model"]["weights, float32"] == "513.1 MiB"
    assert found["advice"] == []
    shown = spectr("doctor")
    assert "packages torch" in shown.out
    bad = spectr("doctor", "--model", "nowhere")
    assert bad.code == 1
    assert "must be a catalog name or a folder" in bad.err


def test_doctor_says_what_is_missing(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectr.models.doctor._version", lambda name: "5.1.0" if name == "transformers" else None)
    ran = spectr("doctor")
    assert ran.code == 1
    assert "transformers must be at least 5.17, found 5.1.0" in ran.err
    assert "torch must be at least 2.11, found None" in ran.err


def test_trace_colours_tokens(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = spectr("generate", "ha ha ha ha ha ha", "--raw", "--temperature", "0", "--max-new-tokens", "10")
    monkeypatch.setenv("FORCE_COLOR", "1")
    traced = spectr("generate", "ha ha ha ha ha ha", "--raw", "--temperature", "0", "--max-new-tokens", "10", "--trace")
    assert "\x1b[" in traced.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", traced.out).startswith(plain.out.rstrip("\n"))
    assert "correction" in traced.out


def test_trace_as_json(spectr: Spectr) -> None:
    found = json.loads(spectr("generate", "ha ha ha ha", "--raw", "--max-new-tokens", "6", "--trace", "--json").out)
    assert [token for step in found["steps"] for token in step["tokens"]] == found["tokens"]
    assert {"accepted", "corrected"} <= set(found["steps"][0])


def test_bench_step(spectr: Spectr) -> None:
    ways = "none,lookup,early_exit:3@2"
    ran = spectr("bench", "step", "--tokens", "8", "--repeats", "1", "--texts", "1", "--drafters", ways, "--json")
    results = json.loads(ran.out)["results"]
    assert set(results) == {"transformers", *ways.split(",")}
    assert results["lookup"]["least_speedup"] == min(results["lookup"]["speedup_by_prompt"])
    assert results["none"]["tokens_per_call"] == 1
    assert results["transformers"]["ratio_to_transformers"] == 1
    assert all(row["ms_per_token"] > 0 for row in results.values())
