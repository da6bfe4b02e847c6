"""Users' functions on a small tree: processors, the hook `allowed`, settings that leave no token, and errors."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.policy.small_tree import (
    ANSWERS,
    LOGITS,
    NODES,
    PADDING,
    PROMPTS,
    STOPS,
    TEXTS,
    V,
    check,
    past,
)
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from spectr.errors import ArgumentError
from spectr.policy import History, Past, Policy, PolicyRows


def padded(row: int, text: list[int]) -> Tensor:
    return torch.tensor([PADDING[row] + text])


def last_seen(ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that depends on the length, the first and the last token of the text."""
    return scores + ids[:, -1:] * torch.arange(V) / 7 - ids[:, :1] + ids.shape[1] * torch.eye(V)[3]


@pytest.mark.parametrize(
    "processors",
    [
        [last_seen],
        [NoRepeatNGramLogitsProcessor(2), last_seen],
        LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5), last_seen]),
        [LogitsProcessorList([last_seen, RepetitionPenaltyLogitsProcessor(1.5)])],
    ],
)
def test_processors_see_the_whole_text_with_padding(processors: list[Callable[[Tensor, Tensor], Tensor]]) -> None:
    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        scores = logits[None]
        for processor in processors:
            scores = processor(padded(row, text), scores)
        return scores[0]

    check(Policy(processors=processors), plain)


def test_processors_come_once_per_length_and_after_the_others() -> None:
    calls = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        calls.append((ids.shape, scores.isinf()[:, 7].all().item()))
        return scores

    Policy(0, bad_words=[[7]], processors=[spy])(LOGITS, past())
    lengths = [len(PADDING[row]) + len(TEXTS[row][node]) for row, node in NODES]
    assert sorted(calls) == sorted(((lengths.count(n), n), True) for n in set(lengths))


@pytest.mark.parametrize(
    ("processor", "found"), [(lambda _, scores: scores[:, :3], r"\(1, 3\)"), (lambda _ids, _scores: None, "None")]
)
def test_a_processor_must_give_logits_of_the_same_shape(processor: Any, found: str) -> None:
    """It is the error of the row that the processor was called for."""
    known, rows = past(), PolicyRows.of([Policy(processors=[processor]), Policy()], V)
    assert torch.equal(rows(LOGITS, known), LOGITS)
    known.history.host[1].commit([5])
    with pytest.raises(ArgumentError, match=rf"must return logits of the shape they get, \(1, 12\), got {found}"):
        known.history.host[0].commit([5])


def after(text: list[int]) -> set[int]:
    """A simple grammar: a token at most three away from the last one, or 4."""
    return {4} | {token for token in range(V) if abs(token - text[-1]) <= 3}


def as_mask(text: list[int]) -> Tensor:
    return torch.tensor([token in after(text) for token in range(V)])


def test_tokens_that_processors_force_share_the_whole_probability() -> None:
    """Infinite logits have no softmax, which under most rules ended the step of all rows."""

    def force(_: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(-1, torch.tensor([1, 4]), torch.inf)

    for temperature in (1.0, 0.5, 1e-5):
        law = Policy(temperature, processors=[force])(LOGITS, past()).softmax(-1)
        assert torch.equal(law, torch.eye(V)[[1, 4]].mean(0).expand(law.shape))
    greedy = Policy(0, processors=[force])(LOGITS, past())
    assert greedy.argmax(-1).unique().tolist() == [1]


@pytest.mark.parametrize(
    "hook",
    [after, as_mask, lambda text: torch.tensor(sorted(after(text))), lambda text: as_mask(text).numpy()],
)
def test_the_mask_hook(hook: Callable[[list[int]], Tensor]) -> None:
    """Logits of a node below a token that was not allowed are unchanged, since no text gets there."""

    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        start = len(PROMPTS[row]) + len(ANSWERS[row])
        possible = all(text[place] in after(text[:place]) for place in range(start, len(text)))
        return logits.masked_fill(~as_mask(text), -torch.inf) if possible else logits

    check(Policy(allowed=hook), plain)
    check(Policy(allowed=lambda _: None), lambda _row, _text, logits: logits)


def test_a_hook_is_called_once_and_only_for_texts_it_allowed() -> None:
    asked = []

    def hook(text: list[int]) -> list[int]:
        asked.append(tuple(text))
        return [token for token in after(text) if token != 4]

    policy, known = Policy(allowed=hook), past()
    first = policy(LOGITS, known)
    assert torch.equal(policy(LOGITS, known), first)
    assert len(asked) == len(set(asked))
    assert not any(4 in text[7:] for text in asked)
    known.history.commit([[2], [5]])
    policy(LOGITS[:, :1], replace(known, paths=known.paths[:, :1]))
    assert asked[-2:] == [(*TEXTS[0][0], 2), (5, 5)]


def test_a_hook_is_not_called_beyond_the_end() -> None:
    history = History.of([[1]], V, stops=STOPS)
    asked: list[list[int]] = []
    policy = Policy(allowed=asked.append)
    policy(LOGITS[:1, :2], Past(history, torch.tensor([[[10, -1], [10, 3]]])))
    assert asked == []


def test_an_error_of_the_users_code_stays_as_it_is() -> None:
    known = past()
    Policy(allowed=lambda _: (int(word) for word in ["a"]))(LOGITS, known)
    with pytest.raises(ValueError, match="invalid literal for int"):
        known.history.commit([[0], []])


@pytest.mark.parametrize(("answer", "message"), [
    ([V], "ids from 0 to 11"), ([True] * 3, "masks of 12 tokens"), (["yes"], "token ids, a mask"),
    (5, "token ids, a mask"), ([5.7], "token ids, a mask"), (torch.ones(V), "token ids, a mask"),
])  # fmt: skip
def test_answers_of_a_hook_are_checked(answer: Any, message: str) -> None:
    known = past()
    Policy(allowed=lambda _: answer)(LOGITS, known)
    with pytest.raises(ArgumentError, match=f"allowed must return {message}"):
        known.history.commit([[0], []])


@pytest.mark.parametrize(
    "policy",
    [
        Policy(allowed=lambda _: []),
        Policy(allowed=lambda _: [10], min_new_tokens=20),
        Policy(processors=[lambda _, scores: torch.full_like(scores, -torch.inf)]),
        Policy(processors=[lambda _, scores: scores * torch.nan]),
        Policy(logit_bias=dict.fromkeys(range(9), -math.inf), bad_words=[[9]], min_new_tokens=20),
        Policy(logit_bias=dict.fromkeys(range(1, V), -math.inf), bad_words=[[4, 2, 4, 0]]),
        Policy(suppress_tokens=range(9), bad_words=[[9]], min_length=20),
        Policy(suppress_tokens=[0, *range(5, V)], no_repeat_ngram_size=1),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_settings_that_leave_no_token(policy: Policy, temperature: float) -> None:
    """The logits are unchanged there, and the place is reported; other rows are not affected."""
    policy = replace(policy, temperature=temperature)
    rows, known = PolicyRows.of([policy, Policy(temperature)], V), past()
    dead = rows.leave_none(LOGITS, known)
    assert dead[0, 0]
    assert not dead[1].any()
    plain = Policy(temperature)(LOGITS)
    shaped = rows(LOGITS, known)
    assert torch.equal(shaped[dead], plain[dead])
    assert torch.equal(shaped[1], plain[1])


def test_no_text_needed_to_see_that_no_token_is_left() -> None:
    with pytest.raises(ArgumentError, match="must leave at least one token"):
        Policy(logit_bias=dict.fromkeys(range(6), -math.inf), bad_words=[[t] for t in range(5, V)])(LOGITS)


def test_a_row_that_excludes_every_token_is_left_alone() -> None:
    """The settings do not depend on the text, and it is no error of the other row."""
    rows, known = PolicyRows.of([Policy(suppress_tokens=range(V)), Policy()], V), past()
    assert torch.equal(rows(LOGITS, known), LOGITS)
    dead = rows.leave_none(LOGITS, known)
    assert dead.all(-1).tolist() == [True, False]


def test_a_draft_without_allowed_tokens_is_no_error() -> None:
    """Draft tokens that a processor excludes, or that end the text, may have no allowed token after them."""

    def grammar(ids: Tensor, scores: Tensor) -> Tensor:
        """Counts upwards, and ends with 10."""
        wrong = torch.arange(V)[None] != ids[:, -1:] + 1
        broken = (ids[:, 1:] != ids[:, :-1] + 1).any(-1, keepdim=True) | (ids[:, -1:] == 10)
        return scores.masked_fill(wrong | broken, -torch.inf)

    history = History.of([[7]], V, stops=STOPS)
    paths = torch.tensor([[[-1, -1, -1, -1], [8, -1, -1, -1], [3, -1, -1, -1], [8, 3, 4, -1], [8, 9, 10, 3]]])
    shaped = Policy(processors=[grammar])(LOGITS[:1, :5], Past(history, paths))
    assert shaped[0, :2].argmax(-1).tolist() == [8, 9]
    assert torch.equal(shaped[0, 2:], LOGITS[0, 2:5])


def test_a_hook_for_each_row_follows_its_row() -> None:
    rows = PolicyRows.of([Policy(allowed=lambda _: [3]), Policy(), Policy(allowed=lambda _: [5])], V)
    history = History.of([[1], [1], [1]], V)
    past = Past(history, torch.zeros(3, 1, 0, dtype=torch.int64))
    logits = LOGITS[:1, :1].expand(3, 1, V)
    shaped = rows(logits, past)[:, 0]
    assert shaped.isfinite().sum(-1).tolist() == [1, V, 1]
    for one in (rows, history):
        one.copy_rows([2, 0], [0, 2])
    assert rows(logits, past)[::2].argmax(-1).tolist() == [[5], [3]]


def none_after(path: list[int]) -> Callable[[list[int]], list[int] | None]:
    return lambda text: [] if text[-len(path) :] == path else None


def lost_after(path: list[int]) -> Callable[[list[int]], list[int] | None]:
    def hook(text: list[int]) -> list[int] | None:
        return {}[tuple(text)] if text[-len(path) :] == path else None

    return hook


def broken_after(path: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        if any(row[-len(path) :] == path for row in ids.tolist()):
            raise KeyError("off the grammar")
        return scores + 1

    return processor


BELOW = torch.tensor([[[-1, -1, -1], [4, -1, -1], [4, 2, -1], [4, 2, 6]]])


@pytest.mark.parametrize(
    "policy", [Policy(allowed=lost_after([4, 2])), Policy(processors=[broken_after([4, 2])])], ids=["hook", "processor"]
)
def test_an_error_for_a_draft_is_raised_once_the_text_gets_there(policy: Policy) -> None:
    """A draft may extend beyond the end of the text, where users' functions are not called without drafts."""
    for tokens in ([4], [4, 2], [4, 3, 1], [2]):
        history = History.of([[1]], V)
        shaped = policy(LOGITS[:1, :4], Past(history, BELOW))
        assert shaped.isfinite().any(-1).all()
        history.commit([tokens])
    history = History.of([[1]], V)
    policy(LOGITS[:1, :4], Past(history, BELOW))
    with pytest.raises(KeyError):
        history.commit([[4, 2, 0]])
    history = History.of([[1, 4, 2]], V)
    policy(LOGITS[:1, :1], Past(history, BELOW[:, :1]))
    with pytest.raises(KeyError):
        history.commit([[0]])
    draft = Past(History.of([[1]], V), BELOW, drafting=True)
    assert policy(LOGITS[:1, :4], draft).isfinite().any(-1).all()


def test_an_error_of_one_row_is_raised_for_that_row() -> None:
    """The processor is called for the texts of both rows at once."""
    policy = Policy(processors=[broken_after([4, 2])])
    history = History.of([[1, 4, 2], [1, 3, 2]], V)
    shaped = policy(LOGITS[:, :1], Past(history, BELOW[:, :1].expand(2, 1, 3)))
    assert torch.equal(shaped[1], LOGITS[1, :1] + 1)
    with pytest.raises(KeyError):
        history.host[0].commit([5])
    history.host[1].commit([5])


def test_a_grammar_that_ends_below_the_text() -> None:
    rows = PolicyRows.of([Policy(allowed=none_after([4, 2]))], V)
    dead = rows.leave_none(LOGITS[:1, :4], Past(History.of([[1]], V), BELOW))
    assert dead.tolist() == [[False, False, True, False]]  # no text gets below it
