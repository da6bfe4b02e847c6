"""The capacity model fits what was measured, and the simulation of whole fleets agrees with it."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.conftest import Command

from benchmarks.capacity import H200, ModelSize, Replica, Traffic, calibrated, measurements, traffic_cells
from benchmarks.fleet import Fleet, Load, expected, fleet, simulate
from spectr.errors import ArgumentError

LARGE = ModelSize(weights=70e9, layers=80, width=8192, kv_width=2 * 8 * 128)


def test_costs_fit_the_measured_steps() -> None:
    """44 steps of 1 to 256 rows: half of them within 5 %, all within 25 %; no cost is negative."""
    costs = calibrated()
    errors = [abs(error) for error in costs.errors]
    assert len(errors) == len(measurements()) == 44
    assert statistics.median(errors) < 0.05
    assert max(errors) < 0.25
    assert min(costs.launches, costs.depth, costs.flop, costs.row, costs.row_depth) > 0
    assert costs.reading > costs.flop
    assert 300e12 < 1 / costs.flop < 990e12  # operations a second: below what the device can do at best


@pytest.mark.parametrize("rows", [1, 8, 64, 128])
def test_plain_decoding_has_the_measured_speed(rows: int) -> None:
    plain = Replica(drafts=False)
    (measured,) = [m for m in measurements() if m["rows"] == rows and m["nodes"] == 1]
    assert rows * plain.speed(rows) == pytest.approx(1e3 * rows / measured["steady_ms_per_step"], rel=0.1)


@pytest.mark.parametrize("cell", traffic_cells(), ids=lambda cell: f"{cell['drafter']}-{cell['in_flight']}")
def test_measured_traffic_is_what_the_model_says(cell: dict[str, Any]) -> None:
    """Requests that come and go on one GPU, against the estimate, which was fitted to steps and prompts apart. For one
    request at a time with drafts it says far too much, as the documentation does, too."""
    replica = Replica(drafts=cell["drafter"] != "none")
    traffic = Traffic(1.0, cell["prompt_tokens"], cell["output_tokens"])
    ratio = replica.in_flight(cell["in_flight"], traffic) / cell["tokens_per_second"]
    is_miss = cell["in_flight"] == 1 and cell["drafter"] != "none"
    assert 1.5 < ratio < 2.0 if is_miss else 0.75 < ratio < 1.3


def test_a_model_that_does_not_fit_is_sharded() -> None:
    """70 billion weights in 16 bits need two of these GPUs; more ranks shorten a step by less than their number."""
    ranks = {count: Replica(LARGE, ranks=count) for count in (1, 2, 4)}
    assert ranks[1].most_rows(4096) == 0
    assert 0 < ranks[2].most_rows(4096) <= ranks[4].most_rows(4096)
    assert ranks[4].step(8) < ranks[2].step(8) < 2 * ranks[4].step(8)
    traffic = Traffic(1.0, 1000, 300)
    assert ranks[1].most_requests(traffic) == 0
    small = Replica()
    assert small.over(4).most_requests(traffic) < 4 * small.most_requests(traffic)  # replicas give more than shards


def test_too_much_traffic_is_refused() -> None:
    with pytest.raises(ArgumentError, match="add replicas"):
        Replica().under(Traffic(100.0, 1000, 300))


@pytest.mark.parametrize("router", ["random", "two", "prefix"])
@pytest.mark.parametrize("count", [1, 10, 100])
def test_the_simulation_agrees_with_the_estimate(count: int, router: str) -> None:
    """At about half of what the replicas bear. Random routing loads them unevenly, which the estimate leaves out."""
    load = Load(6.0 * count)
    hits, meant = expected(Replica(), count, load, router)
    found = simulate(Replica(), count, load, router, max(20.0, 6000 / load.rate))
    assert found.lost == found.moved == 0
    assert found.rows == pytest.approx(meant.rows, rel=0.25)
    assert found.seconds_per_token == pytest.approx(meant.seconds_per_token, rel=0.3)
    assert found.first_token == pytest.approx(meant.first_token, rel=0.4)
    assert found.hits == pytest.approx(hits, abs=0.15)  # a ring does not deal out beginnings evenly


def test_requests_in_flight_are_rate_times_time() -> None:
    """Little's law holds in the simulation, which does not use it."""
    load = Load(24.0)
    made = Fleet(Replica(), 4, load, "two", seed=3)
    made.run(200.0)
    stays = [asked.ended - asked.arrived for asked in made.asked if asked.ended is not None]
    found = made.found(200.0, 0.0)
    assert found.rows * 4 == pytest.approx(len(made.asked) / 200.0 * statistics.fmean(stays), rel=0.03)


def test_routing_by_beginning_finds_more_of_them() -> None:
    load = Load(120.0)
    found = {name: simulate(Replica(), 20, load, name, 20.0) for name in ("two", "prefix")}
    assert found["prefix"].hits > found["two"].hits + 0.2
    assert found["prefix"].first_token < 0.8 * found["two"].first_token


@pytest.mark.parametrize("router", ["two", "prefix"])
def test_a_thousand_replicas_that_fail_lose_nothing(router: str) -> None:
    """Every request ends with all its tokens; those of a failed replica have gone on elsewhere."""
    load = Load(4000.0, life=60.0, restart=5.0)
    found = simulate(Replica(), 1000, load, router, 5.0)
    assert found.moved > 50
    assert found.lost == 0
    assert found.requests > 10_000


def test_requests_pile_up_where_there_are_too_many() -> None:
    found = [simulate(Replica(), 2, Load(rate), "two", 60.0) for rate in (10.0, 80.0)]
    assert found[1].first_token > 20 * found[0].first_token


def test_the_command_writes_its_cases(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "fleet.json"
    ran = command(fleet, "--replicas", "1,3", "--requests", "300", "--seconds", "5", "--out", str(out))
    assert ran.code == 0
    cases = json.loads(out.read_text())["cases"]
    assert [(case["replicas"], case["router"]) for case in cases] == [
        (1, "two"), (1, "prefix"), (3, "two"), (3, "prefix"),
    ]  # fmt: skip
    assert "3 replicas" in ran.err
    assert command(fleet, "--routers", "nearest").code == 2


def test_the_gpu_is_the_one_that_was_measured() -> None:
    about = json.loads((Path(__file__).parents[2] / "benchmarks" / "inflate_h200.json").read_text())
    assert about["about"]["device"] == H200.name
    assert about["parts"]["bandwidth"]["bytes_per_second"] == pytest.approx(H200.bandwidth, rel=0.01)
