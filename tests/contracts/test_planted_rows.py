"""Comparing requests in a batch with the same requests alone detects every fault planted in the state of rows."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.asking import Stepped, TakesForEver, trace
from tests.contracts.ways import CHAINS, LONG, OTHER, PRUNED, WAYS, Way, asked, same

from spectr.draft.model import ModelDrafting
from spectr.engine import Engine, Request, Result
from spectr.engine.prefix import PrefixCache
from spectr.engine.rows import Rows
from spectr.engine.runner import LaunchedStep, StepRunner
from spectr.engine.state import RequestState
from spectr.errors import SpectrError
from spectr.models.target import Target
from spectr.policy import History, Policy, PolicyRows

EARLY, LATE = [WAYS[0], WAYS[4], WAYS[14]], [way for way in WAYS if way.late and way.name in ("none", "model")]


_CORRECT: set[Way] = set()


@pytest.fixture
def seen(
    build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> Callable[[Way, Callable[[], None]], bool]:
    """A function that returns whether a planted fault changes the eight requests in a batch, or makes them fail.

    Without a fault they do not change, which is checked once for each way.
    """

    def found(way: Way, plant: Callable[[], None]) -> bool:
        want = meant(way)
        if way not in _CORRECT:
            before = Stepped(build(way))
            same(before.finish([before.submit(request) for request in asked()]), want)
            _CORRECT.add(way)
        plant()
        after = Stepped(build(way), checks=False)
        try:
            results = after.finish([after.submit(request) for request in asked()], 60)
        except (IndexError, RuntimeError, SpectrError, TakesForEver):
            return True
        return [trace(result) for result in results] != [trace(result) for result in want]

    return found


Seen = Callable[[Way, Callable[[], None]], bool]


@pytest.mark.parametrize("way", LATE, ids=str)
def test_a_setting_that_leaks_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: logits edited for one row are used for all. Greedy decoding is the setting that other rows notice;
    most others change nothing where they are off."""
    leaky = lambda _self, _name, edited, _logits: edited  # noqa: E731
    assert seen(way, lambda: monkeypatch.setattr(PolicyRows, "_put_back", leaky))


SETTINGS = ["temperature", "repetition_penalty", "frequency_penalty", "min_new_tokens"]


@pytest.mark.parametrize(
    ("way", "setting"),
    [(way, setting) for setting in SETTINGS for way in EARLY] + [(way, "top_k") for way in LATE],
    ids=str,
)
def test_a_setting_of_the_neighbour_is_seen(
    way: Way, setting: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: each row has the setting of the row before it."""
    number = PolicyRows.number

    def shifted(rows: PolicyRows, name: str) -> torch.Tensor:
        return number(rows, name).roll(1) if name == setting else number(rows, name)

    assert seen(way, lambda: monkeypatch.setattr(PolicyRows, "number", shifted))


@pytest.mark.parametrize("way", [*EARLY, *LATE], ids=str)
def test_rows_that_do_not_move_are_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: requests move to the rows of ended ones, but their tensors do not."""
    stays = lambda before, *_: list(range(len(before)))  # noqa: E731
    assert seen(way, lambda: monkeypatch.setattr("spectr.engine.placement._compacted", stays))


@pytest.mark.parametrize("way", EARLY, ids=str)
@pytest.mark.parametrize("kind", [Target, History, PolicyRows, Rows], ids=lambda kind: kind.__name__)
def test_a_part_that_does_not_move_is_seen(way: Way, kind: type, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the state of one part does not move with the rows."""
    assert seen(way, lambda: monkeypatch.setattr(kind, "copy_rows", lambda *_: None))


@pytest.mark.parametrize("way", [*EARLY, *LATE], ids=str)
def test_a_seed_of_the_row_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a row uses its index as the seed instead of its request's seed."""
    put = Rows.put

    def by_number(rows: Rows, first: int, requests: list[Request], stops: frozenset[int]) -> None:
        put(rows, first, requests, stops)
        rows.seed[:] = torch.arange(len(rows))

    assert seen(way, lambda: monkeypatch.setattr(Rows, "put", by_number))


@pytest.mark.parametrize("way", LATE, ids=str)
def test_a_late_step_for_others_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a step is delivered to the requests that are in its rows now, not to those at its launch."""
    read = StepRunner.read

    def misread(runner: StepRunner, step: LaunchedStep) -> list[RequestState]:
        active = runner.placement.active
        now = [*active, *step.states[len(active) :]][: len(step.states)]
        return read(runner, replace(step, states=now))

    assert seen(way, lambda: monkeypatch.setattr(StepRunner, "read", misread))


def reused(stepped: Stepped) -> list[Any]:
    """Return the steps of a text that shares a prefix with a running one, in a row that had another text before."""
    stepped.finish([stepped.submit(Request(OTHER, row, 40)) for row in (1, 2)])
    running = stepped.submit(Request(LONG, 1, 60, Policy(0.7)))
    stepped.turn(2)
    (result,) = stepped.finish([stepped.submit(Request([*LONG, 7], 2, 40))])
    assert running.result(timeout=0).finish_reason == "length"
    assert result.reused > 30
    return [trace(result)]


@pytest.mark.parametrize("way", [Way("race", "model", PRUNED), Way("kseq", "model", CHAINS), WAYS[14]], ids=str)
def test_a_prefix_without_the_drafters_cache_is_seen(
    way: Way, build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: the target's cache of a prefix is copied, but the drafter's is not. Under the race the text does
    not depend on it, but the steps do."""
    want = reused(Stepped(build(way)))
    monkeypatch.setattr(ModelDrafting, "copy_rows", lambda *_: None)
    with suppress(RuntimeError):  # raised by a drafter that has read more than the text
        assert reused(Stepped(build(way), checks=False)) != want


@pytest.mark.parametrize("way", EARLY, ids=str)
def test_a_prefix_that_is_too_long_is_seen(
    way: Way, build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: one token too many counts as cached."""
    longest = PrefixCache.longest_match

    def longer(*given: Any, **options: Any) -> tuple[int, int]:
        row, count = longest(*given, **options)
        return row, count + (0 < count < len(LONG))

    shorter = Request([*LONG[:20], 7, 7, 7], 2, 40)
    stepped = Stepped(build(way))
    stepped.finish([stepped.submit(Request(LONG, 1, 9))])
    (right,) = stepped.finish([stepped.submit(shorter)])
    monkeypatch.setattr(PrefixCache, "longest_match", longer)
    stepped = Stepped(build(way), checks=False)
    stepped.finish([stepped.submit(Request(LONG, 1, 9))])
    (wrong,) = stepped.finish([stepped.submit(shorter)])
    assert (right.reused, wrong.reused) == (20, 21)
    assert trace(wrong) != trace(right)
