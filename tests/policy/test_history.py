"""Histories that are updated in place equal histories that are built anew."""

import pytest
import torch

from spectr.errors import ArgumentError
from spectr.policy import History, Past
from spectr.policy.history import Text

PROMPTS = [[1, 2, 2], [], [7, 9]]
LIMITS = [9, 5, 7]
STEPS = [[[3, 3], [4], []], [[2], [4, 4, 4], [7]], [[], [], [0, 1, 2, 3]]]


def tables(history: History) -> list[list[object]]:
    counted = [history.generated, history.length, history.left]
    tensors = [history.seen, history.counts, *counted, history.tail(2), history.tail(4)]
    texts = [[token for token in row if token >= 0] for row in history.tokens.tolist()]
    return [*(tensor.tolist() for tensor in tensors), texts]


def rebuilt(history: History) -> History:
    """The same texts, committed at once to new tables."""
    prompts = history.prompt_length.tolist()
    cut = [(text[:prompt], text[prompt:]) for text, prompt in zip(history.texts, prompts, strict=True)]
    limits = (history.limit - history.prompt_length).tolist()
    fresh = History.of([prompt for prompt, _ in cut], history.vocabulary, limits=limits)
    fresh.commit([answer for _, answer in cut])
    return fresh


def test_commits_add_up_in_place() -> None:
    history = History.of(PROMPTS, 8, limits=LIMITS)  # 9 is a token that has no logit
    tables(history)
    places = [history.seen.data_ptr(), history.counts.data_ptr(), history.length.data_ptr()]
    for step in STEPS:
        history.commit(step)
        assert tables(history) == tables(rebuilt(history))
    assert history.texts == [[1, 2, 2, 3, 3, 2], [4, 4, 4, 4], [7, 9, 7, 0, 1, 2, 3]]
    assert history.counts[1].tolist() == [0, 0, 0, 0, 4, 0, 0, 0]
    assert places == [history.seen.data_ptr(), history.counts.data_ptr(), history.length.data_ptr()]
    assert history.version == 2  # since the tables were made


@pytest.mark.parametrize("asked_before", [True, False])
def test_copied_rows_grow_independently(asked_before: bool) -> None:
    history = History.of(PROMPTS, 8, padding=[[0], [], [0, 0]], limits=LIMITS)
    history.commit(STEPS[0])
    if asked_before:
        tables(history)
    history.copy_rows([2, 0], [0, 2])
    assert [host.padding for host in history.host] == [[0, 0], [], [0]]
    assert tables(history) == tables(rebuilt(history))
    history.commit([[5], [6], []])
    assert history.texts == [[7, 9, 5], [4, 6], [1, 2, 2, 3, 3]]
    assert tables(history) == tables(rebuilt(history))


def test_a_row_begins_anew() -> None:
    """With a longer text than there was room for, with more stop tokens, and with tokens generated before."""
    history = History.of(PROMPTS, 8, limits=LIMITS, stops=frozenset({1}))
    tables(history)
    history.commit(STEPS[1])
    text = Text([5] * 40, [6] * 60, 70, frozenset({2, 3, 4, 99}))
    history.put(1, [text, Text([3, 1], (), None)])
    assert tables(history)[:1] == tables(rebuilt(history))[:1]
    assert history.texts == [[1, 2, 2, 2], text.tokens, [3, 1]]
    assert history.generated.tolist() == [1, 60, 0]
    assert history.left.tolist()[:2] == [8, 10]
    assert history.counts[1].tolist() == [0] * 6 + [60, 0]
    assert [sorted(token for token in row if token >= 0) for row in history.stop_ids.tolist()] == [[1], [2, 3, 4], []]


def test_steps_on_the_device_alone() -> None:
    """Appending on the device equals committing on both sides; a window writes to the same memory."""
    history, alone = (History.of(PROMPTS, 8, limits=LIMITS) for _ in range(2))
    for one in (history, alone):
        tables(one)
    history.commit([[3, 3], [4], []])
    alone.window(2).append(torch.tensor([[3, 3], [4, 7]]), torch.tensor([2, 1]))
    assert tables(alone) == tables(history)
    assert alone.texts == PROMPTS


def test_room_for_more_rows_and_tokens() -> None:
    history = History.of(PROMPTS, 8, limits=LIMITS)
    history.commit(STEPS[0])
    before = tables(history)
    version = history.version
    history.make_room(5, 300)
    assert history.version > version
    assert (len(history), history.slots) == (5, 300)
    assert [table[:3] for table in tables(history)] == before
    assert history.texts[3:] == [[], []]
    history.commit([[1] * 200, [], [], [], []])
    assert history.length.tolist() == [205, 1, 2, 0, 0]


def test_inference_mode_may_end_in_between() -> None:
    history = History.of(PROMPTS, 8, limits=LIMITS)
    with torch.inference_mode():
        tables(history)
    history.commit(STEPS[0])
    with torch.inference_mode():
        history.put(1, [Text([5, 6], (), 9)])
        history.make_room(4, 200)
    history.commit([[1], [2], [3], []])
    assert tables(history) == tables(rebuilt(history))


def test_windows_end_where_the_path_ends() -> None:
    past = Past(History.of([[1, 2, 3], [4]], 8), torch.tensor([[[5, 6], [5, -1]], [[-1, -1], [7, -1]]]))
    assert past.lengths.tolist() == [[2, 1], [0, 1]]
    assert past.tail(3).tolist() == [[[3, 5, 6], [2, 3, 5]], [[-1, -1, 4], [-1, 4, 7]]]
    assert past.lists() == [[(5, 6), (5,)], [(), (7,)]]


def test_an_error_waits_until_a_token_comes_from_there() -> None:
    error = KeyError("no law")
    history = History.of([[1], [2]], 8)
    for tokens in ([[5], [5, 6, 7]], [[5, 6], [5, 7]], [[4, 6, 7], []]):
        history.host[0].defer((5, 6), error)
        history.commit(tokens)
    history.commit([[5, 6, 7], []])  # what was put off ends with its step
    for path, emitted in (((3,), [3, 4]), ((), [3])):
        history.host[1].defer(path, error)
        with pytest.raises(KeyError, match="no law"):
            history.commit([[], emitted])


def test_bad_rows() -> None:
    with pytest.raises(ArgumentError, match="padding must have a row per prompt, got 1 for 3"):
        History.of(PROMPTS, 8, padding=[[]])
    with pytest.raises(ArgumentError, match="limits must have a row per prompt, got 2 for 3"):
        History.of(PROMPTS, 8, limits=[1, 1])
    with pytest.raises(ArgumentError, match="a list of tokens per row, got 1 for 3 rows"):
        History.of(PROMPTS, 8).commit([[1]])
    with pytest.raises(ArgumentError, match="takes stops, limits and padding, got limit"):
        History.of(PROMPTS, 8, limit=[1])
