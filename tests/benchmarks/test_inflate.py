"""`benchmarks.inflate` on a small model made a little larger: every part really runs, and files are kept."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.inflate import PARTS, Grid, Order, run, tables
from benchmarks.inflate.__main__ import inflate
from benchmarks.inflate.clock import Pace, joined, pace_of
from benchmarks.inflate.costs import _tree
from benchmarks.inflate.model import Size
from benchmarks.inflate.pair import build
from benchmarks.inflate.speed import _batched
from benchmarks.limit import bounded
from benchmarks.watch import Event
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError, UnknownNameError
from spectr.verify import rule

LARGE = Size(width=64, layers=5, heads=8, kv_heads=4, inner=80)
SIZES = ("--width", "64", "--layers", "5", "--heads", "8", "--kv-heads", "4", "--inner", "80")
SMALL = Grid(
    nodes=(1, 64, 128), contexts=(16, 32), tree=9, depth=2, race=(4, 9), depths=(2, 3), chains=(2,), texts=2,
    tokens=10, rows=(1, 5), row_nodes=(4,), peer_tokens=20, repeats=2,
)  # fmt: skip


@pytest.fixture
def order(target: str, head: str, prompts: Path, tmp_path: Path) -> Order:
    return Order(
        tmp_path / "found.json", target, head, prompts=prompts, size=LARGE, device="cpu", command="it", grid=SMALL
    )


def parts(order: Order, *only: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = run(replace(order, only=only, **changes), lambda _: None)["parts"]
    return found


@pytest.mark.slow
def test_every_part_runs(order: Order) -> None:
    said = list[str]()
    found = run(order, said.append)
    assert list(found["parts"]) == list(PARTS)
    assert all(part["left"] == 0 and "error" not in part for part in found["parts"].values()), said
    assert json.loads(order.out.read_text()) == found
    assert found["about"]["texts_of"] == Path(order.model).name
    assert found["about"]["costs_of"]["width"] == 64
    titles = dict(tables(found))
    assert list(titles) == list(PARTS)
    assert all(len(row) == len(heads) for heads, rows in titles.values() for row in rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_part_runs_on_a_gpu(order: Order) -> None:
    said = list[str]()
    found = run(replace(order, device="cuda"), said.append)["parts"]
    assert all(part["left"] == 0 and "error" not in part for part in found.values()), said
    assert [f"{row['way']}: {row['error']}" for row in found["speed"]["rows"] if "error" in row] == []
    assert found["memory"]["beside_bytes"] > 0


@pytest.mark.slow
def test_bandwidth_and_calls(order: Order) -> None:
    found = parts(order, "bandwidth", "calls")
    floor, calls = found["bandwidth"], found["calls"]
    net = build(order, lambda _: None).large.target.model
    every = sum(weights.numel() for weights in net.parameters())
    assert floor["weight_bytes"] == 4 * (every - 300 * 64)  # all but the embedding table
    assert floor["floor_ms"] == pytest.approx(1e3 / floor["plain_limit_tokens_per_second"])
    assert [(row["context"], row["nodes"]) for row in calls["rows"]] == [(c, n) for c in (16, 32) for n in (1, 64, 128)]
    ancestors, depth = _tree(6, torch.device("cpu"))
    assert depth.tolist() == [[0, 1, 1, 2, 2, 2]]
    assert ancestors[0].nonzero()[-3:].tolist() == [[5, 0], [5, 2], [5, 5]]
    assert all(row["ms"] > 0 and row["over_floor"] > 1 for row in calls["rows"])
    assert [row["context"] for row in calls["doubling"]] == [16, 32]


@pytest.mark.slow
def test_the_pieces_of_a_step(order: Order) -> None:
    (usual, asked) = parts(order, "step")["step"]["rows"]
    assert (usual["nodes"], usual["depth"], asked["depth"]) == (9, 5, 2)
    for row in (usual, asked):
        assert set(row["pieces_ms"]) == {"draft", "topology", "target", "policy_and_rule", "keep"}
        assert min(row["pieces_ms"].values()) > 0
        assert row["other_ms"] == row["step_ms"] - row["pieces_ms"]["target"]
        native = row["with_native_drafter"]
        assert native["step_ms"] == row["step_ms"] - row["pieces_ms"]["draft"] + native["draft_ms"]


@pytest.mark.slow
def test_speed_counts_what_was_written(order: Order) -> None:
    rows = {row["way"]: row for row in parts(order, "speed")["speed"]["rows"]}
    methods = ["plain", "speculative", *["topk"] * 2, *["kseq"] * 2, *["path_block"] * 2, *["race"] * 4]
    assert [row["method"] for row in rows.values()] == methods
    assert all(row["texts"] == 2 and "error" not in row for row in rows.values())
    plain = rows["plain"]
    assert plain["tokens_per_call"] == plain["ratios"]["plain"] == 1.0
    assert plain["tokens_per_second"] == pytest.approx(1e3 / plain["ms_per_step"])
    for row in rows.values():
        assert set(row["ratios"]) == {"plain", "speculative", "topk", "kseq"}
        assert row["nodes"] <= 9
        assert 1 <= row["tokens_per_call"] <= row.get("depth", 0) + 1


def test_both_sides_write_the_same(order: Order) -> None:
    """So what is accepted on the large side is what is accepted on the small one."""
    pair, texts = build(order, lambda _: None), []
    for side in (pair.small, pair.large):
        made = Engine(side.target, side.drafter(None), rule("race"), pair.stops)
        texts.append(made.generate([Request(pair.prompts[0], 3, 30)])[0].tokens)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_rows(order: Order) -> None:
    found = parts(order, "rows")
    assert [(row["rows"], row["nodes"]) for row in found["rows"]["results"]] == [(1, 1), (1, 4), (5, 1), (5, 4)]
    assert [row["rows"] for row in found["rows"]["best"]] == [1, 5]
    assert all(row["tokens_per_call"] >= 1 for row in found["rows"]["results"])
    assert [row["texts"] for row in found["rows"]["results"]] == [2, 2, 5, 5]


def test_rows_that_have_ended_do_not_count() -> None:
    """Plain decoding gives a token to every row that goes on, however many do."""
    entrant: Any = SimpleNamespace(row=lambda: {"texts": 1, **joined([Pace([0.0, 0.5, 1.0], [4, 4, 2], [4, 4, 2])])})
    found = _batched(4, entrant)
    assert (found["rows_going"], found["tokens_per_call"]) == (3, 1)
    assert found["tokens_per_second"] == found["steady_tokens_per_second"] == 8  # four rows, two steps a second


@pytest.mark.slow
def test_memory_and_peers(order: Order) -> None:
    found = parts(order, "memory", "peers")
    assert found["memory"]["beside_bytes"] is None
    assert found["memory"]["cache_bytes"] > 0
    peers = found["peers"]["rows"]
    assert len(peers) == 3
    assert all("error" not in row and row["tokens_per_second"] > 0 for row in peers)
    assert not any(row["compiled"] for row in peers)  # transformers does so on a GPU alone
    assert peers[0]["tokens"] == 9  # of ten, the first starts the clock
    assert peers[1]["tokens_per_call"] > 4  # the assistant is the same model, small


@pytest.mark.slow
def test_what_is_done_is_kept(order: Order) -> None:
    first = parts(order, "bandwidth")
    second = parts(order, "bandwidth", "memory")
    assert second["bandwidth"] == first["bandwidth"]
    assert set(second) == {"bandwidth", "memory"}
    third = parts(order, "bandwidth", again=True, command="again")
    assert third["bandwidth"]["command"] == "again"
    assert third["memory"] == second["memory"]


@pytest.mark.slow
def test_time_and_failures_leave_the_rest(order: Order) -> None:
    cut = parts(order, "calls", minutes=1e-9)["calls"]
    assert (len(cut["rows"]), cut["left"]) == (1, 5)
    far = replace(SMALL, contexts=(10_000,))
    found = parts(order, "calls", "bandwidth", grid=far)
    assert "must fit into the model's 768 positions" in found["calls"]["error"]
    assert found["bandwidth"]["left"] == 0
    assert "error" not in parts(order, "calls")["calls"]  # what failed is tried again


def test_what_is_refused(order: Order) -> None:
    with pytest.raises(UnknownNameError, match="did you mean speed"):
        parts(order, "sped")
    with pytest.raises(ArgumentError, match="can only grow"):
        parts(order, "bandwidth", size=Size(64, 2, 8, 4, 80))
    with pytest.raises(MismatchError, match="only a trained feature head"):
        parts(order, "bandwidth", drafter="lookup")
    parts(order, "bandwidth")
    with pytest.raises(ArgumentError, match="measured with another costs_of"):
        parts(order, "bandwidth", size=replace(LARGE, layers=6))
    order.out.write_text("{}")
    with pytest.raises(ArgumentError, match=r"was not written by benchmarks\.inflate"):
        parts(order, "bandwidth")
    order.prompts.write_text("\n")
    order.out.unlink()
    with pytest.raises(ArgumentError, match="at least one prompt"):
        parts(order, "bandwidth")


@pytest.mark.slow
def test_the_command_measures_each_part_once(command: Callable[..., Any], order: Order) -> None:
    flags = ("--prompts", str(order.prompts), "--model", order.model, "--drafter", order.drafter, *SIZES)
    where = ("--device", "cpu", "--out", str(order.out), "--repeats", "2")
    ran = command(inflate, *flags, *where, "--only", "bandwidth,memory", "--tokens", "6")
    assert ran.code == 0, ran.err
    assert "texts of target, costs of family llama, width 64" in ran.out
    assert "floor ms" in ran.out
    again = command(inflate, *flags, *where, "--only", "bandwidth", "--json")
    assert "everything is measured already" in again.err
    assert set(json.loads(again.out)["parts"]) == {"bandwidth", "memory"}
    failed = command(inflate, *flags, *where, "--only", "calls", "--contexts", "10000")
    assert failed.code == 1
    assert "calls, failed: ArgumentError" in failed.out


def test_joined_paces_add_up() -> None:
    found = joined([Pace([0.0, 1.0, 2.0, 5.0], [9, 2, 4, 3]), Pace([7.0], [2])])
    assert (found["tokens"], found["steps"], found["seconds"]) == (9, 3, 5.0)
    assert (found["tokens_per_second"], found["steady_tokens_per_second"]) == (9 / 5, 3.0)
    assert joined([])["tokens"] == 0
    with pytest.raises(TimeoutError, match="timed out"), bounded(0.01):
        time.sleep(5)


def test_rounds_count_while_all_rows_run() -> None:
    """From the round in which the third of three requests has begun to the one in which the first has ended."""
    log = [
        Event(0.0, 0, 1), Event(0.1, 1, 2),
        Event(1.0, 0, 3), Event(1.1, 1, 1), Event(1.2, 2, 1),
        Event(2.0, 2, 4), Event(2.1, 0, 1), Event(2.2, 0, 0), Event(2.3, 1, 1),
        Event(3.0, 2, 1), Event(3.1, 1, 1),
    ]  # fmt: skip
    assert pace_of(log, 3, 1) == Pace([1.0, 2.0], [5, 6], [3, 3])
    assert pace_of(log, 3, 2) == Pace([1.0, 2.0, 3.0], [5, 6, 2], [3, 3, 2])
    assert pace_of(log, 4, 1) == Pace()
