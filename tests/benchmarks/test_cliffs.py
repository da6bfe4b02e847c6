"""`benchmarks.cliffs` on a small model: every part really runs, and compares what it says."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cliffs import PARTS, Order, Trial, run, tables
from benchmarks.cliffs.__main__ import cliffs
from benchmarks.cliffs.compare import Case
from benchmarks.cliffs.many import random_request
from benchmarks.cliffs.parts import _headless_auto
from benchmarks.traffic.flow import Flow, flow
from spectr.engine import Engine
from spectr.lm import load
from spectr.policy import Policy


@pytest.fixture
def order(target: str, head: str, tmp_path: Path) -> Order:
    trial = Trial(tokens=4, rounds=1, requests=30, in_flight=4)
    return Order(tmp_path / "found.json", target, head, device="cpu", command="it", trial=trial)


def part(order: Order, name: str) -> dict[str, Any]:
    said = list[str]()
    found: dict[str, Any] = run(replace(order, only=(name,)), said.append)["parts"][name]
    assert found.get("left") == 0, said
    assert "error" not in found, said
    return found


def test_settings_against_the_same_without(order: Order) -> None:
    rows = {row["case"]: row for row in part(order, "settings")["rows"]}
    assert len(rows) == 12
    usual, filters = rows["drafts: usual settings"], rows["drafts: top-p and top-k"]
    assert "ratio" not in usual
    assert filters["against"] == "drafts: usual settings"
    assert filters["ratio"] == pytest.approx(filters["tokens_per_second"] / usual["tokens_per_second"])
    assert rows["drafts: a new temperature"]["against"] == "drafts: temperature 0.7"
    assert all(row["new_graphs"] == 0 for row in rows.values())  # there are none on a CPU
    assert {row["tokens_per_call"] for name, row in rows.items() if name.startswith("plain")} == {1.0}


def test_ratios_are_medians_of_rounds() -> None:
    engine: Any = None
    one, other = Case("one", engine, Any), Case("other", engine, Any, "one")  # type: ignore[arg-type]
    one.rounds = [{"tokens": 1, "tokens_per_second": rate} for rate in (10.0, 20.0, 40.0)]
    other.rounds = [{"tokens": 1, "tokens_per_second": rate} for rate in (30.0, 10.0, 40.0)]
    assert other._ratio(one, "tokens_per_second") == 1.0


def test_lookup_and_auto_against_plain_decoding(order: Order) -> None:
    rows = {row["case"]: row for row in part(order, "lookup")["rows"]}
    assert len(rows) == 8
    assert rows["greedy summary: lookup"]["tokens_per_call"] >= 1
    assert rows["without repetitions: lookup"]["ratio"] > 0
    found = part(order, "auto")
    assert len(found["rows"]) == 12
    ratios = [row["ratio"] for row in found["rows"] if "ratio" in row]
    assert min(ratios) == found["least_ratio"] <= found["mean_ratio"] <= max(ratios)


def test_edits_with_and_without_a_prediction(order: Order) -> None:
    rows = {row["case"]: row for row in part(order, "prediction")["rows"]}
    assert len(rows) == 6  # there is no room for the code
    usual, helped = rows["word in prose, T=0: without"], rows["word in prose, T=0: with"]
    assert "ratio" not in usual
    assert helped["against"] == "word in prose, T=0: without"
    assert helped["tokens_per_call"] > 0


def test_auto_without_a_trained_drafter(target: str) -> None:
    lm = load(target, "none", device="cpu")
    table: Any = lm.opened.target.model.get_input_embeddings()
    before = table.weight.clone()
    assert [drafter.name for drafter in _headless_auto(lm).drafters] == ["none", "lookup"]  # type: ignore[attr-defined]
    assert torch.equal(table.weight, before)


def test_many_requests(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()

    def counted(engine: Engine, given: Any, in_flight: int, delay: float, times: tuple[float, float]) -> Flow:
        found = flow(engine, given, in_flight, delay, times)
        asked.append((in_flight, len(found.results)))
        return found

    monkeypatch.setattr("benchmarks.cliffs.many.flow", counted)
    found = part(order, "many")
    most = order.trial.in_flight
    assert asked[:-15] == [(number, 1) for number in (1, 2, 4, 8) if number < most] + [(most, 1)]  # the warm-up
    assert asked[-15:] == [(most, 2)] * 15
    assert found["after"]["requests"] == 30
    assert found["growth"] == {"graphs": 0, "shapes": 0}
    assert len(found["looks"]) == 15


def test_random_requests_use_all_settings() -> None:
    chance = random.Random(0)
    made = [random_request(chance, 300) for _ in range(400)]
    usual = Policy()
    for name in ("temperature", "top_k", "top_p", "repetition_penalty", "logit_bias", "bad_words", "min_new_tokens"):
        assert any(getattr(request.policy, name) != getattr(usual, name) for request in made), name
    assert any(request.policy == usual for request in made)
    assert any(request.logprobs for request in made)
    assert any(request.stop_ids for request in made)
    assert {request.max_new_tokens for request in made} == {1, 2, 3, 4}


@pytest.mark.gpu
def test_every_part_runs_on_a_gpu(order: Order) -> None:
    said = list[str]()
    found = run(replace(order, device="cuda"), said.append)["parts"]
    assert all(part.get("left") == 0 and "error" not in part for part in found.values()), said
    rows = {row["case"]: row for row in found["settings"]["rows"]}
    assert rows["drafts: a new temperature"]["new_graphs"] == 0
    assert found["many"]["after"]["allocated_bytes"] > 0


@pytest.mark.slow
def test_the_command_measures_every_part(command: Callable[..., Any], order: Order) -> None:
    flags = ("--model", order.model, "--drafter", order.drafter, "--device", "cpu", "--out", str(order.out))
    sizes = ("--tokens", "6", "--rounds", "1", "--requests", "10", "--in-flight", "2")
    ran = command(cliffs, *flags, *sizes)
    assert ran.code == 0, ran.err
    assert {"settings", "lookup", "auto", "prediction", "many"} <= set(ran.out.split())
    found = json.loads(command(cliffs, *flags, *sizes, "--json").out)
    assert list(found["parts"]) == list(PARTS)
    titles = dict(tables(found))
    assert list(titles) == list(PARTS)
    assert all(len(row) == len(heads) for heads, rows in titles.values() for row in rows)
