"""Histories: kept up to date as if made anew."""

import pytest
import torch

from spectr.errors import ArgumentError
from spectr.policy import History, Past

PROMPTS = [[1, 2, 2], [], [7, 9]]
LIMITS = [9, 5, 7]
STEPS = [[[3, 3], [4], []], [[2], [4, 4, 4], [7]], [[], [], [0, 1, 2, 3]]]


def tables(history: History) -> list[list[object]]:
    counted = [history.generated, history.length, history.left]
    tensors = [history.seen, history.counts, *counted, history.tail(2), history.tail(4)]
    texts = [[token for token in row if token >= 0] for row in history.text_ids.tolist()]
    return [*(tensor.tolist() for tensor in tensors), texts]


def rebuilt(history: History) -> History:
    """The same texts, committed at once to fresh tables."""
    texts = zip(history.texts, history._prompts, strict=True)
    cut = [(text[:prompt], text[prompt:]) for text, prompt in texts]
    fresh = History([prompt for prompt, _ in cut], history.vocabulary, limits=history.limits)
    fresh.commit([answer for _, answer in cut])
    return fresh


def test_commits_add_up_in_place() -> None:
    history = History(PROMPTS, 8, limits=LIMITS)  # 9 is a token that has no logit
    tables(history)
    places = [history.seen.data_ptr(), history.counts.data_ptr(), history.generated.data_ptr()]
    for step in STEPS:
        history.commit(step)
        assert tables(history) == tables(rebuilt(history))
    assert history.texts == [[1, 2, 2, 3, 3, 2], [4, 4, 4, 4], [7, 9, 7, 0, 1, 2, 3]]
    assert history.counts[1].tolist() == [0, 0, 0, 0, 4, 0, 0, 0]
    assert places == [history.seen.data_ptr(), history.counts.data_ptr(), history.generated.data_ptr()]


@pytest.mark.parametrize("asked_before", [True, False])
def test_rows_are_taken_and_then_go_their_own_way(asked_before: bool) -> None:
    history = History(PROMPTS, 8, padding=[[0], [], [0, 0]], limits=LIMITS)
    history.commit(STEPS[0])
    if asked_before:
        tables(history)
    history.take_rows([2, 0, 2])
    assert history.padding == [[0, 0], [0], [0, 0]]
    assert tables(history) == tables(rebuilt(history))
    history.commit([[5], [6], []])
    assert history.texts == [[7, 9, 5], [1, 2, 2, 3, 3, 6], [7, 9]]
    assert tables(history) == tables(rebuilt(history))
    assert history.ids == [2, 0, 2]
    history.take_rows([])
    assert len(history) == 0
    assert history.seen.shape == (0, 8)


def test_inference_mode_may_end_in_between() -> None:
    history = History(PROMPTS, 8, limits=LIMITS)
    with torch.inference_mode():
        tables(history)
    history.commit(STEPS[0])
    with torch.inference_mode():
        history.take_rows([0])
    history.commit([[1]])
    assert tables(history) == tables(rebuilt(history))


def test_windows_end_where_the_path_ends() -> None:
    past = Past(History([[1, 2, 3], [4]], 8), torch.tensor([[[5, 6], [5, -1]], [[-1, -1], [7, -1]]]))
    assert past.lengths.tolist() == [[2, 1], [0, 1]]
    assert past.window(3).tolist() == [[[3, 5, 6], [2, 3, 5]], [[-1, -1, 4], [-1, 4, 7]]]
    assert past.lists() == [[(5, 6), (5,)], [(), (7,)]]


def test_a_doubt_waits_until_a_token_comes_from_there() -> None:
    error = KeyError("no law")
    history = History([[1], [2]], 8)
    with pytest.raises(KeyError):
        history.doubt(0, (), error)  # the next token comes from here for sure
    for tokens in ([[5], [5, 6, 7]], [[5, 6], [5, 7]], [[4, 6, 7], []]):
        history.doubt(0, (5, 6), error)
        history.commit(tokens)
    history.commit([[5, 6, 7], []])  # doubts end with their step
    history.doubt(1, (3,), error)
    with pytest.raises(KeyError, match="no law"):
        history.commit([[], [3, 4]])


def test_bad_rows() -> None:
    with pytest.raises(ArgumentError, match="padding must have a row per prompt, got 1 for 3"):
        History(PROMPTS, 8, padding=[[]])
    with pytest.raises(ArgumentError, match="limits must have a row per prompt, got 2 for 3"):
        History(PROMPTS, 8, limits=[1, 1])
    with pytest.raises(ArgumentError, match="a list of tokens per row, got 1 for 3 rows"):
        History(PROMPTS, 8).commit([[1]])
    with pytest.raises(ArgumentError, match="rows must lie in 0 to 2"):
        History(PROMPTS, 8).take_rows([3])
