"""`benchmarks.traffic` on a small model: requests really come and go, and what is counted is what happened."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.inflate.model import Size
from benchmarks.record import Circumstances, Record, measure
from benchmarks.traffic import Load, Order, run, tables
from benchmarks.traffic.__main__ import traffic
from benchmarks.traffic.cells import _lengths, bound
from benchmarks.traffic.flow import Flow, flow
from benchmarks.traffic.subject import CHOOSING, DEFAULT, PLAIN, WAYS, Subject, subject_of
from benchmarks.traffic.texts import Stream, Texts
from benchmarks.watch import Event, Watch
from spectr.engine import Request
from spectr.errors import ArgumentError
from spectr.policy import Policy

SMALL = Load(
    in_flight=(3,), prompt_tokens=(10, 40), output_tokens=(4, 12), minutes=0.01, prefills=4, static_texts=2,
    static_tokens=8, shared=64, repeats=1,
)  # fmt: skip


@pytest.fixture
def order(target: str, head: str, prompts: Path, tmp_path: Path) -> Order:
    return Order(tmp_path / "found.json", target, head, prompts=prompts, device="cpu", command="it", load=SMALL)


@pytest.fixture
def subject(order: Order) -> Subject:
    return subject_of(order, lambda _: None)


def test_no_two_prompts_begin_alike() -> None:
    words = [[at, at + 1, at + 2] for at in range(0, 30, 3)]
    texts = Texts(words, [[90, 91, 92]], seed=1)
    made = [texts.prompt(length) for length in range(9, 40) for _ in range(3)]
    assert [len(prompt) for prompt in made] == [length for length in range(9, 40) for _ in range(3)]
    assert all(prompt[-1] == 92 for prompt in made)
    assert len({tuple(prompt[:8]) for prompt in made}) == len(made)
    poor = Texts([[1]], [[2]], 0)
    poor.prompt(9)
    with pytest.raises(ArgumentError, match="no two prompts may begin alike"):
        poor.prompt(9)


def test_requests_are_spread_evenly_and_the_same_for_a_seed() -> None:
    load = replace(SMALL, prompt_tokens=(32, 2048), output_tokens=(16, 512), temperatures=(0.0, 0.7))

    def some() -> list[Request]:
        rng = random.Random(0)
        sentences = [[rng.randrange(300) for _ in range(20)] for _ in range(50)]
        stream = Stream(Texts(sentences, [[1, 2, 3]], 5), load)
        return [stream.next() for _ in range(64)]

    requests = some()
    assert [(r.prompt, r.seed, r.max_new_tokens, r.policy) for r in requests] == [
        (r.prompt, r.seed, r.max_new_tokens, r.policy) for r in some()
    ]
    for block in (requests[:16], requests[16:32]):
        lengths = sorted(len(request.prompt) for request in block)
        assert 32 <= lengths[0] < 42
        assert 1579 < lengths[-1] <= 2048
        assert sum(length < 256 for length in lengths) == 8  # the middle of the logarithmic scale
        assert sum(request.max_new_tokens < 91 for request in block) in (8, 9)
        assert sum(request.policy.temperature == 0 for request in block) == 8
    assert len({request.seed for request in requests}) == 64
    struck = Stream(Texts([[1]], [[2]], 5), replace(load, strikes_stops=True)).request([1], 9, 0.7)
    assert struck.policy == Policy(0.7, min_new_tokens=9)
    assert _lengths(load) == [153, 307, 614, 1228, 2048]


def test_what_is_counted() -> None:
    """Two requests of which the second begins before the time that counts and ends in it, and the third after."""
    requests = [Request([1], max_new_tokens=count) for count in (5, 4, 9)]
    log = [
        Event(0.5, 0, 1), Event(1.5, 0, 2), Event(2.0, 1, 1), Event(2.5, 0, 2), Event(2.5, 0, 0), Event(3.0, 1, 3),
        Event(3.0, 1, 0), Event(4.5, 2, 7),
    ]  # fmt: skip
    row = Flow(1.0, 4.0, log, [0.0, 1.5, 2.5], requests).row()
    assert (row["tokens"], row["seconds"], row["requests_ended"]) == (8, 3.0, 2)
    assert row["time_to_first_token"] == {"median": 0.5, "p95": 0.5, "count": 1}  # of the second alone
    assert row["time_per_output_token"] == {"median": pytest.approx((2 / 4 + 1 / 3) / 2), "p95": 0.5, "count": 2}
    assert row["output_tokens"] == 6


def test_bounds() -> None:
    prefill = {"seconds_per_output_token": 0.01, "seconds_per_output_token_with_steps": 0.03}
    found = bound(prefill, {"steady_tokens_per_second": 100.0}, 40.0)
    assert found["bound_tokens_per_second"] == pytest.approx(50)
    assert found["share_of_bound"] == pytest.approx(0.8)
    assert found["share_of_bound_with_steps"] == pytest.approx(1.6)
    assert bound(prefill, {}, 40.0)["share_of_bound"] is None


def test_requests_in_flight(subject: Subject) -> None:
    """Never more than asked for, as many as asked for most of the time, and each as long as it should be."""
    stream = subject.stream(3)
    given = iter([stream.next() for _ in range(10)])
    found = flow(subject.engine(DEFAULT), lambda: next(given, None), 3, 0.001, (0.0, 60.0))
    assert found.seconds < 60
    assert {n: len(result.tokens) for n, result in found.results.items()} == {
        n: request.max_new_tokens for n, request in enumerate(found.requests)
    }
    ends = {event.number: event.time for event in found.log if not event.tokens}
    for number, time in enumerate(found.submitted):
        running = [other for other in range(number + 1) if ends[other] > time]
        assert len(running) <= 3
    second = next(event.time for event in found.log if event.number == 1)
    assert second < ends[0]  # it did not wait for the first to end


def test_a_request_that_fails_ends_the_measurement(subject: Subject) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("a hook that fails")

    watch = Watch(subject.engine(PLAIN))
    watch.submit([Request([5, 6], policy=Policy(allowed=fail))])
    with pytest.raises(RuntimeError, match="a hook that fails"):
        watch.first_to_end()


INFLATED = Size(width=64, layers=5, heads=8, kv_heads=4, inner=80)


@pytest.mark.parametrize("size", [pytest.param(None, marks=pytest.mark.slow), INFLATED])
def test_all_ways_run_the_same_traffic(order: Order, size: Size | None) -> None:
    said = list[str]()
    found = run(replace(order, size=size, load=replace(SMALL, shared=0, ways=WAYS)), said.append)
    assert json.loads(order.out.read_text()) == found
    part = found["parts"]["in_flight_3"]
    assert part.get("left") == 0, said
    assert "error" not in part, said
    cells = part["cells"]
    assert list(cells) == ["plain", "default", "choosing"]
    for way in ("default", "choosing"):
        assert cells[way]["ratio_to_plain"] == cells[way]["tokens_per_second"] / cells["plain"]["tokens_per_second"]
    for cell in cells.values():
        assert cell["tokens"] > 0
        assert cell["reused_tokens"] == cell["prefill"]["reused_tokens"] == 0
        assert 4 <= cell["output_tokens"] <= 12
        assert cell["prefill"]["prompts"] == 4
        assert 0 < cell["share_of_bound"] <= cell["share_of_bound_with_steps"]
        assert cell["time_to_first_token"]["median"] <= cell["time_to_first_token"]["p95"]
        assert cell["static"]["steady_tokens_per_second"] > 0
    assert cells["plain"]["tokens_per_step_of_a_row"] == 1
    assert cells["default"]["tokens_per_step_of_a_row"] > 1
    assert cells["choosing"]["tokens_per_step_of_a_row"] >= 1  # it decodes without drafts where they do not pay off
    assert found["about"]["costs_of"] == (None if size is None else {"family": "llama", "width": 64, "layers": 5,
                                                                   "heads": 8, "kv_heads": 4, "inner": 80})  # fmt: skip
    ((title, (heads, rows)),) = tables(found)
    assert (title, len(rows)) == ("traffic", 3)
    assert all(len(row) == len(heads) for row in rows)


def test_a_way_that_does_not_exist_is_refused(command: Callable[..., Any], order: Order) -> None:
    """So is the choice between plain decoding and a drafter, if there is no drafter to choose."""
    ran = command(traffic, "--ways", "plain,chosing", "--out", str(order.out))
    assert (ran.code, "no way is called 'chosing'; did you mean choosing" in ran.err) == (2, True), ran.err
    with pytest.raises(ArgumentError, match="needs a drafter that makes no such choice itself, got 'none'"):
        subject_of(replace(order, drafter="none", load=replace(SMALL, ways=(PLAIN, CHOOSING))), lambda _: None)


def test_a_way_that_was_measured_before_an_interruption_is_kept(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[str]()

    def cell(_: Subject, way: str, __: int) -> dict[str, Any]:
        measured.append(way)
        if len(measured) == 2:
            raise RuntimeError("out of memory")
        return {"tokens_per_second": 5.0, "static": {}}

    monkeypatch.setattr("benchmarks.traffic.cells._cell", cell)
    only = replace(order, load=replace(SMALL, shared=0))
    failed = run(only, lambda _: None)["parts"]["in_flight_3"]
    assert (list(failed["cells"]), failed["left"], "out of memory" in failed["error"]) == (["plain"], 1, True)
    part = run(only, lambda _: None)["parts"]["in_flight_3"]
    assert measured == ["plain", "default", "default"]
    assert (part["cells"]["default"]["ratio_to_plain"], part["left"], "error" in part) == (1.0, 0, False)
    more = replace(only, load=replace(SMALL, shared=0, ways=WAYS))
    assert list(run(more, lambda _: None)["parts"]["in_flight_3"]["cells"]) == list(WAYS)
    assert measured.pop() == "choosing"  # the others are kept
    other = run(replace(only, again=True), lambda _: None)["parts"]["in_flight_3"]
    assert measured[3:] == ["plain", "default"]
    assert other["left"] == 0


def test_an_error_leaves_the_results_of_an_earlier_run(tmp_path: Path) -> None:
    record = Record(tmp_path / "found.json", {}, "benchmarks.traffic")
    how, counts = Circumstances("it", torch.device("cpu"), {"load": 1}, seconds=0.0), [1, 2]

    def part() -> Iterator[dict[str, Any]]:
        if not counts:
            raise RuntimeError("out of memory")
        yield {"left": counts.pop(), "rows": [7]}

    for _ in range(3):
        measure("it", part, how, record, lambda _: None)
    assert (record.parts["it"]["rows"], record.parts["it"]["left"]) == ([7], 1)
    assert record.parts["it"]["error"] == "RuntimeError: out of memory"
    assert not record.is_done("it")
    assert record.begun("it", {"load": 1})["left"] == 1
    assert record.begun("it", {"load": 2}) == {}


@pytest.mark.slow
def test_prompts_that_begin_alike(order: Order) -> None:
    said = list[str]()
    part = run(replace(order, only=("shared",)), said.append)["parts"]["shared"]
    assert part.get("left") == 0, said
    (second,), (samples,) = part["second"], part["samples"]
    assert second["reused"] == 64
    assert second["ratio"] > 0
    assert samples["reused"] == 7 * 63  # all but one sample, and all but the last token
    first, *later = part["conversation"]
    assert first["reused"] == 0
    assert all(turn["prompt"] - 80 < turn["reused"] < turn["prompt"] for turn in later)
    assert len(part["disturbed_conversation"]) == len(part["conversation"]) == 4


@pytest.mark.gpu
def test_traffic_on_a_gpu(order: Order) -> None:
    said = list[str]()
    found = run(replace(order, device="cuda"), said.append)["parts"]
    assert all(part.get("left") == 0 and "error" not in part for part in found.values()), said
    cells = found["in_flight_3"]["cells"]
    assert all(cell["graphs"]["before"] != [0] for cell in cells.values())
    assert all(cell["static"]["steady_tokens_per_second"] > 0 for cell in cells.values())


@pytest.mark.slow
def test_the_command_measures_each_part_once(
    command: Callable[..., Any], order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # a narrow terminal cuts no figure
    flags = ("--prompts", str(order.prompts), "--model", order.model, "--drafter", order.drafter, "--device", "cpu")
    sizes = ("--prompt-tokens", "10,40", "--output-tokens", "4,12", "--minutes", "0.01", "--prefills", "2")
    more = ("--static-texts", "1", "--static-tokens", "8", "--shared", "0", "--out", str(order.out))
    ran = command(traffic, *flags, *sizes, *more, "--in-flight", "1,2")
    assert ran.code == 0, ran.err
    assert "share" in ran.out
    assert "…" not in ran.out
    again = command(traffic, *flags, *sizes, *more, "--in-flight", "2", "--json")
    assert "everything is measured already" in again.err
    assert set(json.loads(again.out)["parts"]) == {"in_flight_1", "in_flight_2"}
    for wrong in (("--prompt-tokens", "40,10"), ("--inflate", "--size", "1,2")):
        assert command(traffic, *flags, *wrong).code == 2
