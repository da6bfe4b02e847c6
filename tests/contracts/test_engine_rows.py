"""A request has the same steps alone, in a batch, when it joins late, and in a row that another request used before.

Models are float64, so that texts are exactly equal. Under the race the text is that of plain decoding with any drafter;
under a coupling rule it is that of the same plan alone. The steps are the same under both.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.asking import LetterReader, Stepped
from tests.contracts.ways import LONG, OTHER, PRUNED, RACES, WAYS, Way, asked, same, ways

import spectr
from spectr.draft import drafter
from spectr.engine import Engine, Handle, Request, Result
from spectr.models.target import Target
from spectr.policy import Policy


def test_the_requests_say_what_they_should(meant: Callable[[Way], list[Result]]) -> None:
    """The requests of these tests are suitable: every setting changes the text, and texts end for different reasons."""
    results = meant(WAYS[0])
    assert [result.finish_reason for result in results] == ["length"] * 6 + ["stop"] * 2
    assert min(len(result.tokens) for result in results) > 8
    assert results[7].text.endswith("dbk.")
    free = [replace(request, policy=Policy(), stop_ids=frozenset(), reader=None) for request in asked()]
    plain = [result.tokens for result in _fresh(free)]
    assert all(result.tokens != text for result, text in zip(results[1:], plain[1:], strict=True))


def _fresh(requests: list[Request]) -> list[Result]:
    from tests.tiny import llama

    return Engine(Target(llama(3, layers=3)), drafter("none"), spectr.rule("race")).generate(requests)


# Requests in a batch.


@ways("race-light-late")
def test_a_batch_gives_the_same_steps(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """A batch gives every request the steps that it has alone, in any order."""
    want, engine = meant(way), build(way)
    same(engine.generate(asked()), want)
    same(engine.generate(asked()[::-1]), want[::-1])


@ways("optimal-feature-late")
def test_requests_that_join_late(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Requests that join one after the other, while others run and end, have the same steps."""
    want = meant(way)
    for pause in (1, 3):
        stepped, handles = Stepped(build(way)), list[Handle]()
        for request in asked():
            handles.append(stepped.submit(request))
            stepped.turn(pause)
        same(stepped.finish(handles), want)


@ways("race-light", "kseq-model-late")
def test_cancelled_requests_do_not_affect_others(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    want, gone = meant(way), {0: 2, 4: 2, 6: 3, 1: 5}
    stepped = Stepped(build(way))
    handles = [stepped.submit(request) for request in asked()]
    for turn in range(8):
        stepped.turn()
        for row, when in gone.items():
            if when == turn:
                handles[row].cancel()
    results = stepped.finish(handles)
    left = [row for row in range(8) if row not in gone]
    same([results[row] for row in left], [want[row] for row in left])
    reasons = [results[row].finish_reason for row in gone]
    assert reasons[:2] == ["cancelled"] * 2
    assert all(
        reason == "cancelled" or reason == want[row].finish_reason for row, reason in zip(gone, reasons, strict=True)
    )


@ways("race-lookup")
def test_requests_wait_for_rows(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """With more requests than rows, requests wait for a row and then have the same steps."""
    want, engine = meant(way), build(way, rows=2)
    same(engine.generate(asked()), want)
    (lane,) = engine.scheduler.lanes.values()
    assert len(lane.memory) == 2


@ways("optimal-feature")
def test_prompts_read_in_chunks(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill in chunks does not change steps, with and without other rows that decode."""
    want = meant(way)
    monkeypatch.setattr("spectr.engine.lane._IDLE_CHUNKS", 2)
    stepped, handles = Stepped(build(way).with_parts(chunk=5)), list[Handle]()
    for request in asked():
        handles.append(stepped.submit(request))
        stepped.turn(2)
    same(stepped.finish(handles), want)
    same(build(way).with_parts(chunk=5).generate(asked()), want)


@ways("kseq-model", "race-lookup-late")
def test_a_repeated_prompt_is_prefilled_once(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """Requests with the same prompt share its prefill and have the steps that they have alone."""
    requests = [Request(LONG, seed, 8 + seed, Policy(0.8)) for seed in range(6)]
    found = build(way).generate(requests)
    same(found, alone(way, requests, "copies"))
    assert [result.reused for result in found] == [0] + [len(LONG) - 1] * 5


@pytest.mark.parametrize("name", [name for name in RACES if name != "none"])
def test_a_continued_text_has_the_same_rest(
    name: str, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """A text that is continued from any position with the same seed has the same rest.

    Penalties, minimum lengths, limits and stop strings count the tokens before. This holds for the race, whose noise is
    keyed by positions.
    """
    way = Way("race", name, PRUNED)
    requests, want = list[Request](), list[tuple[list[int], str | None]]()
    for request, result in zip(asked(), meant(way), strict=True):
        for cut in {1, 2, 7, len(result.tokens) // 2, len(result.tokens) - 1}:
            given = result.tokens[:cut]
            fed = None if request.reader is None else LetterReader("dbk")
            if fed is not None:
                fed.feed(given)
            requests.append(replace(request, generated=given, reader=fed))
            want.append((result.tokens[cut:], result.finish_reason))
    found = build(way).generate(requests)
    assert [(result.tokens, result.finish_reason) for result in found] == want


# Rows that other requests used before.


@ways("race-eagle3-late")
def test_rows_are_reused(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Requests have the same steps in rows that hold the caches of other texts, in any order."""
    want, engine = meant(way), build(way, rows=5)
    others = [Request([row, *LONG, row], row, 30, Policy(0.5, presence_penalty=1.0)) for row in range(3)]
    order = [5, 0, 7, 2, 6, 1, 4, 3]
    for _ in range(2):
        engine.generate(others)
        requests = asked()
        same(engine.generate([requests[row] for row in order]), [want[row] for row in order])


@ways("optimal-light")
def test_a_prefix_of_an_ended_text_is_reused(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """A request that shares a prefix with an ended text reuses its cache in target and drafter, and has the same steps
    as in a new engine."""
    stepped = Stepped(build(way))
    firsts = [Request(LONG, seed, 20, Policy(0.7)) for seed in (1, 2, 3)]  # some of them end in the middle of a draft
    said = [result.tokens for result in alone(way, firsts, "firsts")]
    seconds = [
        *(Request([*LONG, *text, 7, 7, 1], 2, 12) for text in said),  # continues the whole text
        Request([*LONG, *said[0][:9], 7, 7, 1], 2, 12),  # differs within the text
        Request([*LONG[:20], 9, 9], 3, 12, Policy(0, repetition_penalty=1.2)),  # differs within the prompt
        Request(LONG, 1, 20, Policy(0.7)),  # repeats the first request
    ]
    want = alone(way, seconds, "seconds")
    for second, other in zip(seconds, want, strict=True):
        stepped.finish([stepped.submit(request) for request in [*firsts, Request([1, 2, 3], 5, 3)]])
        found = stepped.finish([stepped.submit(second)])
        same(found, [other])
        assert found[0].reused > 8


@ways("race-model-late", "optimal-ngram")
def test_a_prefix_of_a_running_text_is_reused(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """A request that shares a prefix with a running text copies its cache into a row that another text used before."""
    running, others = Request(LONG, 1, 40, Policy(0.7)), [Request(OTHER, row, 9 * row) for row in (1, 2, 3)]
    said = alone(way, [running], "runs")[0].tokens
    joins = [Request([*LONG[:30], row], 9 + row, 14, Policy(frequency_penalty=0.2 * row)) for row in range(3)]
    joins += [Request([*LONG, *said[:row]], 9 + row, 14) for row in (9, 12, 15)]
    want = alone(way, [running, *joins], "running")
    stepped = Stepped(build(way))
    stepped.finish([stepped.submit(request) for request in others])
    handles = [stepped.submit(running)]
    stepped.turn(2)
    for join in joins:
        handles.append(stepped.submit(join))
        stepped.turn()
    found = stepped.finish(handles)
    same(found, want)
    assert all(result.reused >= 29 for result in found[1:])


@ways("optimal-feature-late")
def test_memory_grows_while_others_run(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """Steps stay the same while the memory grows for longer texts and for more requests than before."""
    requests = [Request([3, 4, 5], 1, 40), *(Request([row, 1], row, 12) for row in range(5)), Request(LONG, 2, 160)]
    want = alone(way, requests, "room")
    stepped, handles = Stepped(build(way)), list[Handle]()
    for request in requests:
        handles.append(stepped.submit(request))
        stepped.turn()
    same(stepped.finish(handles), want)
