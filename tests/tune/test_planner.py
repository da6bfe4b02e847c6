"""The planner: costs from steps, what follows from counts and costs, what is chosen; and the whole of it once."""

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.profile import Way
from spectr.engine import Engine, Job, Request
from spectr.errors import ArgumentError, MismatchError, UnknownNameError
from spectr.lm import LM
from spectr.models.target import Target
from spectr.tune.costs import CostTable, Curve, Drafting, Timed, Trio, call_curve, drafting_cost, time_steps
from spectr.tune.counts import Count, count_ways
from spectr.tune.grid import against_grid, grid_ways
from spectr.tune.measure import Speed, compare
from spectr.tune.planner import Expected, Found, Measured, choose, chosen, expect, profile_of, time_all, tune
from spectr.tune.progress import Progress
from spectr.tune.study import Study
from spectr.tune.ways import Bench, Reach, reach_for

SMALL = Reach((2, 3, 5, 9), (1, 2, 4), 3, (1.0, 1.5), (1, 2), 2, (1, 2), (1, 2))
QUIET = Progress()


@pytest.fixture(scope="module")
def study(lm: LM) -> Study:
    words = ("the quick brown fox", "tides rise and fall", "one two three", "over the lazy dog")
    return Study(tuple(tuple(lm.encode(text)) for text in words), tokens=24, repeats=1)


@pytest.fixture(scope="module")
def bench(lm: LM, folders: tuple[object, object]) -> Bench:
    return Bench(lm, (str(folders[1]), "lookup"), ("race", "optimal"), SMALL)


# Costs.


def test_curves() -> None:
    curve = Curve.of({1: 32.0, 2: 33.0, 4: 41.0, 8: 64.0})
    assert [curve(n) for n in (1, 3, 6, 12)] == [32, 37, 52.5, 87]
    assert Curve.of({3: 7.0})(100) == 7
    assert Curve.of({1: 5.0, 2: 3.0, 3: 4.0, 9: 1.0}, rising=True).points == (
        (1, 3.25),
        (2, 3.25),
        (3, 3.25),
        (9, 3.25),
    )


def test_costs_from_steps() -> None:
    """Made up: 10 + 2 n for a call, 3 for the first depth of a draft and 4 + beam for every other."""

    def step(beam: int, depth: int, nodes: int) -> Timed:
        drafting = 3.0 + (depth - 1) * (4.0 + beam)
        return Timed(Plan(drafts=beam, length=depth, nodes=nodes), nodes, drafting, 10.0 + 2 * nodes, 0.5)

    timed = [Timed(None, 1, 0.0, 12.0, 0.5), step(1, 1, 2), step(1, 4, 5), step(2, 4, 9), step(4, 4, 17)]
    cost, call = drafting_cost(timed), call_curve(timed)
    assert (cost(1, 1), cost(2, 3), cost(3, 2)) == (3, 15, 10)
    assert (call(1), call(7), call(33)) == (12, 24, 76)


def test_time_steps_takes_every_plan_as_often(net: PreTrainedModel, near: Target) -> None:
    plans = [Plan(drafts=1, length=1, nodes=2), Plan(drafts=2, length=3, nodes=6)]
    trio = Trio(Target(net), drafter("model", model=near, plan=plans[0]), spectr.rule("race"))
    found = time_steps(trio, plans, Job([Request([1, 2], 0, 9), Request([5], 1, 9)]), 3)
    assert [(one.plan, one.nodes) for one in found] == [(None, 1), (plans[0], 2), (plans[1], 6)]
    assert all(one.verifying > 0 and one.rest > 0 for one in found)


# Predictions and choices.

CPU = CostTable(
    1, Curve.of({1: 32.0, 2: 33.0, 4: 41.0, 8: 64.0, 16: 85.0, 32: 122.0}), 1.0,
    {
        ("auto", "race"): Drafting(7.0, Curve.of({1: 6.0, 8: 9.0})),
        ("auto", "optimal"): Drafting(9.0, Curve.of({1: 8.0})),
    },
    {("auto", "optimal"): Curve.of({1: 2.0, 4: 5.0})},
)  # fmt: skip


def test_what_follows_from_counts_and_costs() -> None:
    assert expect(Way(), Count(1.0, {1: 1.0}), CPU) == Expected(Way(), 1.0, 33.0)
    race = expect(Way("auto", "race", 8, 3, 4), Count(1.9, {4: 1.0}), CPU)
    assert (race.seconds, race.block_efficiency) == (7 + 2 * 9 + 41 + 1, 1.9)
    coupled = expect(Way("auto", "optimal", 4, 2), Count(2.2, {9: 1.0}), CPU)
    assert coupled.seconds == pytest.approx(9 + 8 + 5 + CPU.call(9) + 1)
    varying = expect(Way("auto", "race", 1, 1), Count(1.5, {1: 0.5, 4: 0.5}), CPU)
    assert varying.seconds == 7 + 36.5 + 1


def told(way: Way, tokens_per_second: float) -> Measured:
    return Measured(Expected(way, 1.0, 1.0), 1, Speed(1000, 1000 / tokens_per_second, 1000, 900))


PLAIN, TWO, FOUR = told(Way(), 30), Way("auto", "race", 1, 1, 2), Way("auto", "race", 2, 2, 4)
COUPLED = Way("auto", "optimal", 1, 1)


@pytest.mark.parametrize(
    ("speeds", "wanted"),
    [
        ({TWO: 29, FOUR: 28}, Way()),
        ({TWO: 30.2, FOUR: 28}, Way()),  # too near to plain decoding to bother
        ({TWO: 36, FOUR: 33}, TWO),
        ({TWO: 33, FOUR: 36}, FOUR),
        ({TWO: 35.8, FOUR: 36}, TWO),  # as fast, and smaller
        ({TWO: 35.8, COUPLED: 36}, TWO),  # as fast, and the text is the seed's
        ({TWO: 33, COUPLED: 36}, COUPLED),
    ],
)
def test_choices(speeds: dict[Way, float], wanted: Way) -> None:
    assert choose([PLAIN, *(told(way, speed) for way, speed in speeds.items())]).expected.way == wanted


def test_one_rule_for_all_rows() -> None:
    """An engine has one: for the second number of rows another rule would be faster, and is not taken."""
    every = [Expected(way, 1.5, 40.0) for way in (TWO, FOUR, COUPLED)] + [Expected(Way(), 1.0, 33.0)]
    found = [
        Found(CPU, every, [PLAIN, told(TWO, 36), told(COUPLED, 33)]),
        Found(replace(CPU, rows=8), every, [PLAIN, told(FOUR, 34), told(COUPLED, 39)]),
    ]
    assert [one.expected.way for one in chosen(found)] == [TWO, FOUR]
    profile = profile_of(found, "mark", "cpu")
    assert (profile.rule, [profile.menu[choice.index] for choice in profile.choices]) == ("race", [TWO, FOUR])
    assert profile.at(1).rows == profile.at(4).rows == 1
    assert profile.at(5).rows == 8
    assert profile.choices[0].prospects[0].cost == 1


def test_the_best_on_paper_is_the_best_of_all(bench: Bench, study: Study) -> None:
    """Every pruned tree of the grid is generated and billed by a measured table: none beats what the planner takes."""
    name = bench.drafters[0]
    costs = replace(CPU, drafting={(name, "race"): CPU.drafting["auto", "race"]}, verdict={})
    ways = [way for way in bench.ways(name, "race") if way.spread == 1]
    counts = count_ways(Bench(bench.lm, (name,), ("race",), bench.reach), study, lambda _: None)
    bills = {}
    for way in ways:
        results = bench.engine(way).generate(study.all_at_once())
        emitted, steps = (sum(getattr(r.stats, what) for r in results) for what in ("emitted", "steps"))
        bills[way] = emitted / steps / expect(way, Count(1.0, {way.nodes or 1: 1.0}), costs).seconds
    best = max(ways, key=lambda way: expect(way, counts[way], costs).speed)
    assert bills[best] >= 0.95 * max(bills.values())
    assert len({way.nodes for way in ways}) == len(SMALL.sizes)


def test_predicted_block_efficiency(bench: Bench) -> None:
    """Within 5 % of what other seeds of the same prompts give: for rules that couple laws, and for the race."""
    prompts = tuple((token, token + 1, token + 2) for token in range(5, 65, 2))
    study = Study(prompts, tokens=40)
    counts = count_ways(bench, study, lambda _: None)
    name = bench.drafters[0]
    for way in (
        Way(name, "optimal", 1, 1),
        Way(name, "optimal", 2, 2),
        Way(name, "race", 2, 3, 5),
        Way(name, "race", 1, 1, 3),
    ):
        results = bench.engine(way).generate(study.batches(len(prompts), 10_000)[0])
        emitted, steps = (sum(getattr(r.stats, what) for r in results) for what in ("emitted", "steps"))
        assert counts[way].block_efficiency == pytest.approx(emitted / steps, rel=0.05), way


# Everything once: figures are not judged here, since they are timed.


def test_all_of_it(bench: Bench, study: Study) -> None:
    sentences: list[str] = []
    found = tune(bench, replace(study, rows=(1, 2), tokens=12), Progress(sentences.append))
    assert [one.costs.rows for one in found] == [1, 2]
    for one in found:
        assert one.measured[0].expected.way == Way()
        assert 4 <= len(one.measured) <= 6
        assert {(e.way.drafter, e.way.rule) for e in one.expected if not e.way.plain} == set(bench.pairs)
        assert one.expected == sorted(one.expected, key=lambda e: -e.speed)
        assert all(m.speed.tokens_per_second > 0 for m in one.measured)
    assert list(bench.left_out) == ["lookup with optimal"]
    assert any("plain decoding" in sentence for sentence in sentences)
    verdict = against_grid(bench, replace(study, tokens=8), found[0], QUIET)
    assert set(verdict.first) == {Way(), *grid_ways(bench)}
    assert {way.nodes for way in grid_ways(bench) if way.drafter == bench.drafters[0]} == {None, 2, 3}
    assert Way() in verdict.final
    assert verdict.choice in verdict.final
    assert 0 < verdict.ratio <= 1


def test_a_drafter_without_trees_is_billed_by_calls_of_every_size(lm: LM, study: Study) -> None:
    bench = Bench(lm, ("lookup",), ("race",), SMALL)
    costs = time_all(bench, study, 1)
    assert [place for place, _ in costs.call.points] == [1, 2, 3, 5, 9]
    assert costs.drafting["lookup", "race"](2, 4) == costs.drafting["lookup", "race"].first


def test_speeds_keep_the_least_of_each_step(bench: Bench, study: Study) -> None:
    engines = [bench.engine(Way()), bench.engine(Way("lookup"))]
    once, thrice = (compare(engines, study.batches(1, 0), repeats, QUIET) for repeats in (1, 3))
    assert [one.emitted for one in once] == [one.emitted for one in thrice]
    assert once[0].block_efficiency == 1
    assert once[0].tokens == once[0].emitted - len(study.prompts)  # first steps wait for the prompt


def test_what_is_refused(lm: LM) -> None:
    with pytest.raises(ArgumentError, match="must be lossless, 'lenience' is not"):
        Bench(lm, ("lookup",), ("lenience",), SMALL)
    with pytest.raises(UnknownNameError, match="did you mean race"):
        Bench(lm, ("lookup",), ("rase",), SMALL)
    with pytest.raises(ArgumentError, match="name a drafter"):
        Bench(lm, ("none",), ("race",), SMALL)
    with pytest.raises(MismatchError, match="no rule fits a drafter: rule 'kseq' reads the law"):
        Bench(lm, ("lookup",), ("kseq",), SMALL)
    with pytest.raises(ArgumentError, match="must differ"):
        Study(((1, 2), (1, 2)))
    with pytest.raises(ArgumentError, match="at least one prompt"):
        Study(())


def test_the_reach_of_a_gpu_is_wider() -> None:
    few, many = reach_for(torch.device("cpu")), reach_for(torch.device("cuda"))
    assert max(few.sizes) < max(many.sizes)


def test_engines_of_ways(bench: Bench) -> None:
    name = bench.drafters[0]
    assert bench.engine(Way()).drafter.name == "none"
    assert bench.engine(Way("lookup", "race", 1, 3, 4)).drafter.nodes == 4
    assert bench.engine(Way(name, "race", 2, 3, 5, 1.5)).drafter.name == "adaptive"
    assert bench.engine(Way(name, "optimal", 2, 2)).drafter.siblings == "iid"
    assert Engine is type(bench.engine(Way(name, "race", 2, 3, 5)))
