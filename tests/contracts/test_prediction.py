"""Predictions are drafted and never change the text under the race, and their counts are the correctly predicted
tokens.

Models are float64, so that texts are exactly equal. A wrong prediction does not change the text, but it changes what is
accepted; so these tests compare steps and counts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.asking import EndReader, LetterReader, Stepped, trace
from tests.contracts.conftest import SIZE, Make
from tests.late import run_as_on_a_gpu
from tests.predicting import KINDS, counted, edited
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import adaptive
from spectr.draft.prediction import PredictionDrafting, Predictions
from spectr.engine import Engine, Handle, Request, Result
from spectr.errors import ArgumentError, MismatchError
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.verify import RULES

PRUNED = Plan(drafts=3, length=4, nodes=10)
LONG = [3, 4, 5, 3, 4, 6, 1, 2, 3, 4, 5, 3, 4, 6, 8, 9] * 2
NAMES = ["none", "lookup", "random", "ngram", "model", "early_exit", "feature", "blockwise", "mixed", "short"]
WAYS = [("race", name) for name in NAMES] + [("match", name) for name in ("none", "lookup", "model", "mixed")]
Build = Callable[..., Engine]


def some(cases: list[tuple[str, str]], names: str, every: int) -> pytest.MarkDecorator:
    """Parametrize a test with all cases; one in `every` is in the quick tier."""
    marked = [pytest.param(*case, marks=() if at % every == 0 else pytest.mark.slow) for at, case in enumerate(cases)]
    return pytest.mark.parametrize(names.split(), marked)


def plain() -> list[Request]:
    """Return seven requests without a prediction, no two of which have the same settings."""
    penalties: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    return [
        Request([3, 4, 5, 3, 4, 5, 3], 1, 40),
        Request([1], 2, 33, Policy(0)),
        Request([2, 2, 2, 2], 3, 36, Policy(0.7, top_k=5)),
        Request(LONG, 4, 30, Policy(0.9, top_p=0.8, min_p=0.05)),
        Request([5, 6, 5, 6, 5], 5, 44, Policy(**penalties)),
        Request([3, 3], 6, 23, Policy(0.8, logit_bias={2: 3.0}, bad_words=[[7], [3, 4]]), stop_ids=frozenset({9})),
        Request([8, 1, 8], 8, 44, Policy(0.6), reader=LetterReader("dbk")),
    ]


@pytest.fixture
def build(net: PreTrainedModel, makers: dict[str, Make]) -> Build:
    """A function that makes an engine with a drafter under a rule."""

    def made(name: str = "none", rule: str = "race", **options: Any) -> Engine:
        return Engine(Target(net), makers[name](PRUNED), spectr.rule(rule), **options)

    return made


_TEXTS: list[Result] = []


@pytest.fixture
def texts(build: Build) -> list[Result]:
    """The results of the requests without predictions."""
    if not _TEXTS:
        _TEXTS.extend(build().generate(plain()))
    return list(_TEXTS)


@pytest.fixture
def asked(texts: list[Result]) -> list[Request]:
    """The same requests with a different kind of prediction each."""
    return [
        replace(request, prediction=edited(result.tokens, kind, SIZE))
        for request, result, kind in zip(plain(), texts, KINDS, strict=True)
    ]


def outcome_of(result: Result) -> Any:
    """Return the steps, statistics and counts of a result."""
    return trace(result), result.stats.accepted_prediction_tokens, result.stats.rejected_prediction_tokens


_KNOWN: dict[Any, list[Result]] = {}


def alone(build: Build, rule: str, name: str, requests: list[Request]) -> list[Result]:
    """Return the results of requests, each run in its own engine. They are remembered, since many tests need them."""
    key = (rule, name, *((r.seed, tuple(r.prompt), tuple(r.prediction)) for r in requests))
    if key not in _KNOWN:
        engines = [Stepped(build(name, rule)) for _ in requests]
        _KNOWN[key] = [e.finish([e.submit(request)])[0] for e, request in zip(engines, requests, strict=True)]
    return list(_KNOWN[key])


def same(found: list[Result], want: list[Result]) -> None:
    for at, (one, other) in enumerate(zip(found, want, strict=True)):
        assert (at, one.tokens, one.finish_reason, one.text) == (at, other.tokens, other.finish_reason, other.text)
        assert (at, outcome_of(one)) == (at, outcome_of(other))


def fresh(requests: list[Request]) -> list[Request]:
    """Return the requests with new readers."""
    return [replace(r, reader=None if r.reader is None else LetterReader("dbk")) for r in requests]


# Texts.


@some([(name, kind) for name in NAMES for kind in KINDS], "name kind", 4)
def test_the_text_is_that_without_a_prediction(name: str, kind: str, build: Build, texts: list[Result]) -> None:
    """Every kind of prediction leaves the texts of a batch unchanged, with every drafter and setting; a correct one
    saves steps."""
    requests = [
        replace(request, prediction=edited(result.tokens, kind, SIZE))
        for request, result in zip(plain(), texts, strict=True)
    ]
    found = build(name).generate(requests)
    assert [(r.tokens, r.finish_reason, r.text) for r in found] == [(r.tokens, r.finish_reason, r.text) for r in texts]
    if kind == "right":
        assert sum(len(r.steps) for r in found) < 0.3 * sum(len(r.tokens) for r in texts)
    if kind == "wrong" and name == "none":
        assert sum(len(r.steps) for r in found) > 0.9 * sum(len(r.tokens) for r in texts)


@pytest.mark.parametrize("kind", ["right", "brief", "swapped", "wrong"])
def test_a_drafter_that_selects(net: PreTrainedModel, makers: dict[str, Make], texts: list[Result], kind: str) -> None:
    """An adaptive drafter learns only from steps without a predicted branch, and is idle while all rows have one.

    When the branch ends, it drafts the rest of the text, although it has not read the tokens before.
    """
    seen = list[tuple[int, int, float, float]]()
    made = adaptive([drafter("none"), makers["model"](PRUNED)], lambda _: 1)
    watched = replace(made, observe=lambda *step: seen.append(step), select=lambda _: 1)
    engine = Engine(Target(net), watched, spectr.rule("race"))
    requests = [replace(r, prediction=edited(t.tokens, kind, SIZE)) for r, t in zip(plain(), texts, strict=True)]
    for request, text in zip(requests, texts, strict=True):
        seen.clear()
        (result,) = engine.generate(fresh([request]))
        assert result.tokens == text.tokens
        assert len(seen) < len(result.steps)
        assert max([tokens for _, _, tokens, _ in seen], default=0) <= 5  # its depth and a bonus
        if kind == "right":
            assert not seen
        if kind == "wrong" and len(text.tokens) > 20:
            assert len(seen) > 0.7 * len(result.steps)
            assert result.stats.accepted > 10
    found = engine.generate(fresh(requests))
    assert [result.tokens for result in found] == [result.tokens for result in texts]


@some(WAYS, "rule name", 5)
def test_a_batch_gives_the_same_steps_and_counts(rule: str, name: str, build: Build, asked: list[Request]) -> None:
    """Steps and counts in a batch equal those alone; requests without a prediction are not affected."""
    want, without = alone(build, rule, name, fresh(asked)), alone(build, rule, name, plain())
    engine = build(name, rule)
    same(engine.generate(fresh(asked)), want)
    same(engine.generate(fresh(asked)[::-1]), want[::-1])
    both = engine.generate([*plain(), *fresh(asked)])
    same(both[:7], without)
    same(both[7:], want)
    assert len(engine.scheduler.lanes) == 2


@pytest.mark.parametrize(("rows", "pause"), [(3, 1), (8, 2)])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@some([("race", n) for n in ("none", "lookup", "model", "feature")] + WAYS[-2:-1], "rule name", 3)
def test_joined_late_and_in_the_rows_of_others(
    rule: str, name: str, late: bool, rows: int, pause: int, build: Build, asked: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Steps and counts stay the same when requests join while others run, end and are cancelled, in rows that were used
    before, also with steps that are read late as on a GPU."""
    want = alone(build, rule, name, fresh(asked))
    if late:
        run_as_on_a_gpu(monkeypatch)
    stepped = Stepped(build(name, rule, rows=rows))
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 3, 0, 5, 1, 4, 2]):
        handles, others = list[Handle](), list[Handle]()
        for at in order:
            handles.append(stepped.submit(fresh(asked)[at]))
            others.append(stepped.submit(replace(asked[0], seed=50 + at, prediction=[at] * 9)))
            stepped.turn(pause)
            if at % 2:
                others[-1].cancel()
        same(stepped.finish(handles), [want[at] for at in order])


def test_a_resumed_text_has_the_same_rest(build: Build, asked: list[Request], texts: list[Result]) -> None:
    """A text that is continued from any position with the same seed has the same rest, and its prediction is used."""
    requests, want = list[Request](), list[list[int]]()
    for request, result in zip(asked, texts, strict=True):
        for cut in {1, 7, len(result.tokens) // 2, len(result.tokens) - 1}:
            requests.append(replace(request, generated=result.tokens[:cut], reader=None))
            want.append(result.tokens[cut:])
    found = build("lookup").generate(requests)
    assert [result.tokens[: len(rest)] for result, rest in zip(found, want, strict=True)] == want
    whole = [replace(r, generated=t.tokens[:15], prediction=t.tokens) for r, t in zip(asked, texts, strict=True)]
    found = build().generate(fresh(whole))
    assert sum(len(result.steps) for result in found) < 0.35 * sum(len(result.tokens) for result in found)


def test_the_beginning_of_another_text(build: Build, texts: list[Result]) -> None:
    """A request that shares a prefix with a running or ended one copies its cache, but not its prediction."""
    first, second = plain()[3], replace(plain()[3], seed=77)
    stepped = Stepped(build("model"))
    (right,) = alone(build, "race", "none", [second])
    want = alone(build, "race", "model", [replace(second, prediction=right.tokens)])
    for prediction in (texts[3].tokens, [9] * 70):
        handle = stepped.submit(replace(first, prediction=prediction))
        stepped.turn(2)
        found = stepped.finish([stepped.submit(replace(second, prediction=right.tokens))])
        same(found, want)
        assert found[0].reused > 20
        assert handle.result(timeout=0).tokens == texts[3].tokens


def test_hooks_and_gaps(build: Build, texts: list[Result]) -> None:
    """Predictions also work for requests with hooks or with optimality gaps, which have their own lanes."""
    hooked = [replace(plain()[0], policy=Policy(allowed=lambda text: [t for t in range(SIZE) if t != text[-1]]))]
    (meant,) = build().generate(hooked)
    engine = build("model")
    with_hook = replace(hooked[0], prediction=edited(meant.tokens, "changed", SIZE))
    gap = replace(plain()[0], optimality_gap=True, prediction=edited(texts[0].tokens, "changed", SIZE))
    found = engine.generate([with_hook, gap, plain()[0]])
    assert [result.tokens for result in found] == [meant.tokens, texts[0].tokens, texts[0].tokens]
    assert found[1].stats.optimality_gap is not None
    assert found[0].stats.accepted_prediction_tokens > 10
    assert len(engine.scheduler.lanes) == 3


def test_a_reference_with_a_source() -> None:
    """Predictions also work for encoder-decoder models, whose prompt is their start token."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(3)
    config = T5Config(
        vocab_size=SIZE, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    engine = Engine(Target(T5ForConditionalGeneration(config).double().eval()), drafter("none"), spectr.rule("race"))
    request = Request([0], 3, 40, source=[4, 5, 6])
    (meant,) = engine.generate([request])
    (found,) = engine.generate([replace(request, prediction=meant.tokens)])
    assert found.tokens == meant.tokens
    assert len(found.steps) <= 4


# Counts.


@pytest.mark.parametrize("name", ["none", "lookup", "model"])
def test_what_is_counted(name: str, build: Build, asked: list[Request]) -> None:
    """Predicted tokens that occur in the text where they were predicted count as accepted, whether they were drafted or
    not; tokens of other drafts do not count."""
    found = build(name).generate(fresh(asked))
    for request, result in zip(asked, found, strict=True):
        stats, prediction = result.stats, list(request.prediction)
        assert stats.accepted_prediction_tokens == counted(result, prediction, list(request.prompt), [])
        assert stats.accepted_prediction_tokens + stats.rejected_prediction_tokens == len(prediction)
    assert found[0].stats.rejected_prediction_tokens == 0  # the whole prediction was right
    accepted = [result.stats.accepted_prediction_tokens for result in found]
    assert min(accepted[1:4]) > 10


def test_drafts_of_the_drafter_are_not_counted(build: Build, texts: list[Result]) -> None:
    """Accepted tokens of the drafter do not count as predicted tokens."""
    (result,) = build("model").generate([replace(plain()[0], prediction=edited(texts[0].tokens, "wrong", SIZE))])
    assert result.stats.accepted_prediction_tokens < 5
    assert result.stats.accepted > 20


def test_a_prediction_that_says_nothing_is_none(build: Build) -> None:
    """Without a prediction both counts are 0, although drafts are accepted."""
    (result,) = build("model").generate([plain()[0]])
    assert result.stats.accepted > 0
    assert result.stats.accepted_prediction_tokens == result.stats.rejected_prediction_tokens == 0


def test_a_prediction_counts_once(build: Build) -> None:
    """A prediction counts once even if the text repeats it; its tokens beyond the end of the text are rejected."""
    loop = Policy(allowed=lambda text: [(text[-1] + 1) % 4])
    (twice,) = build().generate([Request([3], 1, 32, loop, prediction=[0, 1, 2, 3, 0, 1, 2, 3])])
    assert twice.tokens == [0, 1, 2, 3] * 8
    assert (twice.stats.accepted_prediction_tokens, twice.stats.rejected_prediction_tokens) == (8, 0)
    assert len(twice.steps) < 10
    ends = EndReader(lambda tokens: tokens.index(3) + 1 if 3 in tokens else None)
    request = Request([3], 1, 32, loop, prediction=[0, 1, 2, 3, 0, 1, 2, 3])
    for cut in (replace(request, reader=ends), replace(request, max_new_tokens=4)):
        (result,) = build().generate([cut])
        assert result.tokens == [0, 1, 2, 3]
        assert (result.stats.accepted_prediction_tokens, result.stats.rejected_prediction_tokens) == (4, 4)


def test_counts_grow_with_the_text(build: Build, texts: list[Result]) -> None:
    handle = build().submit(replace(plain()[0], prediction=texts[0].tokens))
    seen = [handle.so_far.stats.accepted_prediction_tokens for _ in handle]
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen) > 2


# Tokens for the next step only.


def test_tokens_that_are_given_between_steps(build: Build, texts: list[Result]) -> None:
    """Tokens that are given to a row before a step are drafted in that step, and do not count as a prediction."""
    stepped = Stepped(build("lookup"))
    requests = [replace(request, prediction=[0]) for request in plain()[:3]]
    handles = [stepped.submit(request) for request in requests]
    stepped.turn()
    (lane,) = stepped.scheduler.lanes.values()
    drafting = lane.memory.drafting
    assert isinstance(drafting, PredictionDrafting)
    while lane.active:
        for row, state in enumerate(lane.active):
            at = [handle._delivery for handle in handles].index(state.delivery)
            drafting.set_next_tokens(row, texts[at].tokens[len(state.text) - len(requests[at].prompt) :])
        stepped.turn()
    found = stepped.finish(handles)
    assert [result.tokens for result in found] == [result.tokens for result in texts[:3]]
    assert max(len(result.steps) for result in found) <= 5
    assert max(result.stats.accepted_prediction_tokens for result in found) <= 1  # these tokens were not a prediction


# Refused requests.


def test_rules_that_read_draft_laws_refuse_it(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """Rules that need draft distributions refuse a prediction and accept a request without one."""
    for name in RULES:
        rule = spectr.rule(name)
        draws = rule.card.draws or rule.card.siblings[0]
        plan = Plan(draws, drafts=1, length=2) if draws != "race" else PRUNED
        engine = Engine(Target(net), makers["model"](plan), rule)
        request = Request([1], 1, 4, prediction=[2, 3])
        if name in ("race", "match"):
            assert len(engine.generate([request])[0].tokens) == 4
            continue
        with pytest.raises(MismatchError, match="a prediction is drafted without a draft distribution"):
            engine.submit(request)
        assert len(engine.generate([replace(request, prediction=())])[0].tokens) == 4


def test_tokens_that_are_none_are_refused(build: Build) -> None:
    """Predicted tokens outside the vocabulary are refused."""
    for token in (SIZE, -1):
        with pytest.raises(ArgumentError, match=f"tokens of a prediction must lie in 0 … 11, got \\[{token}\\]"):
            build().submit(Request([1], prediction=[2, token]))


# Planted faults that these tests must detect.


_CORRECT: set[str] = set()
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("lookup", "model")]  # see the same faults


@pytest.fixture
def seen(build: Build, asked: list[Request]) -> Callable[[str, Callable[[], None]], bool]:
    """A function that returns whether a planted fault changes the steps of requests in rows that were used before.

    Without a fault it does not, which is checked once for each drafter.
    """

    def run(name: str) -> list[Any]:
        stepped = Stepped(build(name, rows=4))
        stepped.finish([stepped.submit(request) for request in fresh(asked)[::-1]])
        return [outcome_of(result) for result in stepped.finish([stepped.submit(request) for request in fresh(asked)])]

    def found(name: str, plant: Callable[[], None]) -> bool:
        want = [outcome_of(result) for result in alone(build, "race", name, fresh(asked))]
        if name not in _CORRECT:
            assert run(name) == want
            _CORRECT.add(name)
        plant()
        after = run(name)
        assert [_text(one) for one in after] == [_text(one) for one in want]
        return after != want

    return found


Seen = Callable[[str, Callable[[], None]], bool]


def _text(one: Any) -> list[int]:
    """Return the tokens in a value of `outcome_of`."""
    (steps, *_), *_ = one
    return [token for step in steps for token in step[0]]


@pytest.mark.parametrize("name", ["none", *MORE])
def test_the_reference_of_a_neighbour_is_seen(name: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: each row reads the prediction of the row before it."""

    def leaky(predictions: Predictions, place: torch.Tensor, count: int) -> torch.Tensor:
        rows = len(place)
        at = (place[:, None] + torch.arange(count)).clamp_max(predictions.tokens.shape[1] - 1)
        return predictions.tokens[:rows].roll(1, 0).gather(1, at)

    assert seen(name, lambda: monkeypatch.setattr(Predictions, "_read", leaky))


@pytest.mark.parametrize("name", ["none", MORE[-1]])
def test_a_stale_reference_is_seen(name: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a row keeps its prediction for later requests."""
    put = Predictions.put

    def stale(predictions: Predictions, row: int, tokens: Any, after: int) -> None:
        if not predictions._sizes[row]:
            put(predictions, row, tokens, after)

    assert seen(name, lambda: monkeypatch.setattr(Predictions, "put", stale))


@pytest.mark.parametrize("name", ["none", MORE[-1]])
@pytest.mark.parametrize("table", ["tokens", "size", "since", "place"])
def test_a_table_that_does_not_move_is_seen(name: str, table: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: one table of the predictions does not move with its rows."""
    copy_rows = Predictions.copy_rows

    def stays(predictions: Predictions, sources: list[int], targets: list[int]) -> None:
        before = getattr(predictions, table).clone()
        copy_rows(predictions, sources, targets)
        getattr(predictions, table).copy_(before)

    assert seen(name, lambda: monkeypatch.setattr(Predictions, "copy_rows", stays))


@pytest.mark.parametrize("name", ["none", MORE[-1]])
def test_a_place_that_was_left_is_seen(name: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a row begins at the position that the previous request had reached in its prediction."""
    put = Predictions.put

    def left(predictions: Predictions, row: int, tokens: Any, after: int) -> None:
        place = int(predictions.place[row])
        put(predictions, row, tokens, after)
        predictions.place[row] = min(place, len(tokens)) if tokens else place

    assert seen(name, lambda: monkeypatch.setattr(Predictions, "put", left))
