"""A small tree on two rows of different length: the batched policy against each setting's processor in transformers, or
a plain loop, applied to the whole text of one node at a time; and users' functions."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from spectr.errors import ArgumentError
from spectr.policy import History, Past, Policy, PolicyRows

V = 12
STOPS = frozenset({10, 11})
PROMPTS = [[1, 2, 3, 2], [5]]
ANSWERS: list[list[int]] = [[4, 2, 4], []]
PADDING = [[], [0, 0, 0]]
LIMITS = [5, 2]  # most tokens that may be generated: some paths go beyond
PATHS = [
    [[-1, -1, -1], [4, -1, -1], [2, -1, -1], [4, 2, -1], [4, 4, -1], [4, 2, 6], [2, 3, 2]],
    [[-1, -1, -1], [5, -1, -1], [0, -1, -1], [0, 0, -1], [5, 0, -1], [0, 0, 0], [7, 8, 9]],
]
TEXTS = [
    [prompt + answer + [token for token in path if token >= 0] for path in paths]
    for prompt, answer, paths in zip(PROMPTS, ANSWERS, PATHS, strict=True)
]
LOGITS = 3 * torch.randn(2, len(PATHS[0]), V, generator=torch.Generator().manual_seed(3))
NODES = [(row, node) for row in range(2) for node in range(len(PATHS[0]))]

Plain = Callable[[int, list[int], Tensor], Tensor]
"""From a row, the text of a node and its logits (V,) to other logits."""


def past() -> Past:
    history = History.of(PROMPTS, V, stops=STOPS, padding=PADDING, limits=LIMITS)
    history.commit(ANSWERS)
    return Past(history, torch.tensor(PATHS))


def one_by_one(plain: Plain, logits: Tensor = LOGITS) -> Tensor:
    return torch.stack([plain(row, TEXTS[row][node], logits[row, node]) for row, node in NODES]).view(logits.shape)


def check(policy: Policy, plain: Plain) -> None:
    """The tree in one call, and each of its levels alone, equal what `plain` computes for each node."""
    shaped = policy(LOGITS, past())
    torch.testing.assert_close(shaped, one_by_one(plain), rtol=1e-5, atol=1e-5)
    for node in range(LOGITS.shape[1]):
        alone = replace(past(), paths=past().paths[:, node : node + 1])
        assert torch.equal(policy(LOGITS[:, node : node + 1], alone), shaped[:, node : node + 1])


def of(*processors: Callable[[Tensor, Tensor], Tensor]) -> Plain:
    """Applies processors of transformers to the text without padding."""

    def plain(_: int, text: list[int], logits: Tensor) -> Tensor:
        scores = logits[None]
        for processor in processors:
            scores = processor(torch.tensor([text]), scores)
        return scores[0]

    return plain


BAD = [[7], [4, 6], [2, 4], [3, 2, 5], [0, 0, 0], [2, 3, 2, 4, 2, 4, 9], [0, 5, 6]]
BIAS = {0: -2.5, 3: 1.0, 11: -math.inf}
SEQUENCES = {(token,): float(bias) for token, bias in BIAS.items()}


@pytest.mark.parametrize(
    ("policy", "plain"),
    [
        (Policy(0.7), of(TemperatureLogitsWarper(0.7))),
        (Policy(top_k=4), of(TopKLogitsWarper(4))),
        (Policy(top_p=0.8), of(TopPLogitsWarper(0.8))),
        (Policy(min_p=0.1), of(MinPLogitsWarper(0.1))),
        (Policy(typical_p=0.1), of(TypicalLogitsWarper(0.1))),
        (Policy(typical_p=0.9), of(TypicalLogitsWarper(0.9))),
        (Policy(repetition_penalty=1.7), of(RepetitionPenaltyLogitsProcessor(1.7))),
        (Policy(repetition_penalty=0.6), of(RepetitionPenaltyLogitsProcessor(0.6))),
        (Policy(logit_bias=BIAS), of(SequenceBiasLogitsProcessor(SEQUENCES))),
        (Policy(bad_words=BAD), of(NoBadWordsLogitsProcessor(BAD))),
        (Policy(bad_words=[[7]]), of(NoBadWordsLogitsProcessor([[7]]))),
        (Policy(suppress_tokens=[3, 10]), of(SuppressTokensLogitsProcessor([3, 10]))),
        (Policy(epsilon_cutoff=0.05), of(EpsilonLogitsWarper(0.05))),
        (Policy(epsilon_cutoff=0.9), of(EpsilonLogitsWarper(0.9))),
        (Policy(eta_cutoff=0.02), of(EtaLogitsWarper(0.02))),
        (Policy(eta_cutoff=0.9), of(EtaLogitsWarper(0.9))),
        (Policy(no_repeat_ngram_size=1), of(NoRepeatNGramLogitsProcessor(1))),
        (Policy(no_repeat_ngram_size=2), of(NoRepeatNGramLogitsProcessor(2))),
        (Policy(no_repeat_ngram_size=3), of(NoRepeatNGramLogitsProcessor(3))),
        (Policy(no_repeat_ngram_size=9), of(NoRepeatNGramLogitsProcessor(9))),
    ],
)
def test_as_in_transformers(policy: Policy, plain: Plain) -> None:
    check(policy, plain)


def test_a_bad_word_may_begin_with_the_whole_text() -> None:
    """Older versions of transformers do not exclude such a word."""
    shaped = Policy(bad_words=[[1, 2, 3, 2, 4, 2, 4, 9], [5, 6]])(LOGITS, past())
    assert shaped.isinf().nonzero().tolist() == [[0, 0, 9], [1, 0, 6], [1, 1, 6]]


@pytest.mark.parametrize("least", [1, 3, 4, 5, 6, 7])
def test_min_new_tokens(least: int) -> None:
    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        return of(MinNewTokensLengthLogitsProcessor(len(PROMPTS[row]), least, list(STOPS)))(row, text, logits)

    check(Policy(min_new_tokens=least), plain)


@pytest.mark.parametrize("least", [1, 2, 3, 8, 9, 11])
def test_min_length_counts_the_prompt(least: int) -> None:
    check(Policy(min_length=least), of(MinLengthLogitsProcessor(least, list(STOPS))))


def test_a_suppressed_beginning() -> None:
    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        return of(SuppressTokensAtBeginLogitsProcessor([2, 5, 9], len(PROMPTS[row])))(row, text, logits)

    check(Policy(begin_suppress_tokens=[9, 2, 5]), plain)
    assert Policy(begin_suppress_tokens=[9, 2, 5])(LOGITS, past())[1, 0].isinf().sum() == 3


@pytest.mark.parametrize("forced", [10, [10, 4]])
def test_a_forced_end(forced: int | list[int]) -> None:
    """The end is forced at the last token that a row may get, neither before nor after it."""

    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        most = len(PROMPTS[row]) + LIMITS[row]
        return of(ForcedEOSTokenLogitsProcessor(most, forced))(row, text, logits)

    policy = Policy(forced_eos_token_id=forced)
    check(policy, plain)
    only = {10, 4} if isinstance(forced, list) else {10}
    ends = [
        set(policy(LOGITS, past())[row, node].isfinite().nonzero().flatten().tolist()) == only for row, node in NODES
    ]
    meant = [len(TEXTS[row][node]) - len(PROMPTS[row]) == LIMITS[row] - 1 for row, node in NODES]
    assert ends == meant
    assert sum(meant) == 4


def test_a_forced_end_comes_before_all_that_excludes_it() -> None:
    policy = Policy(forced_eos_token_id=10, suppress_tokens=[10], min_new_tokens=9, begin_suppress_tokens=[10])
    history = History.of([[1]], V, stops=STOPS, limits=[1])
    assert policy(LOGITS[:1, :1], Past(history, torch.zeros(1, 1, 0, dtype=torch.int64))).argmax() == 10


def test_without_a_limit_no_end_is_forced() -> None:
    assert torch.equal(Policy(forced_eos_token_id=1)(LOGITS, Past(History.of(PROMPTS, V), torch.tensor(PATHS))), LOGITS)


def test_repeats_of_tokens_beyond_the_vocabulary() -> None:
    """A prompt may have tokens without a logit."""
    history = History.of([[40, 3, 40, 3, 40]], V)
    roots = torch.zeros(1, 1, 0, dtype=torch.int64)
    shaped = Policy(no_repeat_ngram_size=2)(LOGITS[:1, :1], Past(history, roots))
    assert shaped.isinf().nonzero().tolist() == [[0, 0, 3]]


def test_repeats_are_seen_as_the_text_grows() -> None:
    policy, history = Policy(no_repeat_ngram_size=2), History.of([[1], [2]], V)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        history.commit(torch.randint(4, (2, 3), generator=generator).tolist())
        paths = torch.randint(4, (2, 5, 3), generator=generator)
        shaped = policy(LOGITS[:, :5], Past(history, paths))
        for row in range(2):
            for node in range(5):
                text = history.texts[row] + paths[row, node].tolist()
                meant = of(NoRepeatNGramLogitsProcessor(2))(row, text, LOGITS[row, node])
                assert torch.equal(shaped[row, node], meant)


def test_min_new_tokens_without_stops_changes_nothing() -> None:
    history = History.of(PROMPTS, V, stops=frozenset({V + 5}))
    assert torch.equal(Policy(min_new_tokens=9)(LOGITS, Past(history, torch.tensor(PATHS))), LOGITS)


@pytest.mark.parametrize(("presence", "frequency"), [(0.5, 0.0), (0.0, 0.3), (-0.5, 0.25)])
def test_presence_and_frequency_count_what_was_generated(presence: float, frequency: float) -> None:
    def plain(row: int, text: list[int], logits: Tensor) -> Tensor:
        logits = logits.clone()
        answer = text[len(PROMPTS[row]) :]
        for token in set(answer):
            logits[token] -= presence + frequency * answer.count(token)
        return logits

    check(Policy(presence_penalty=presence, frequency_penalty=frequency), plain)


ALL = Policy(
    0.8, 9, 0.95, 0.01, 0.9, 1.3, 0.2, 0.1, {0: -2.5, 3: 1.0}, BAD, 4, epsilon_cutoff=0.02, eta_cutoff=0.1,
    no_repeat_ngram_size=2, suppress_tokens=[8], begin_suppress_tokens=[1], forced_eos_token_id=10, min_length=9,
)  # fmt: skip


def counted(row: int, text: list[int], logits: Tensor) -> Tensor:
    answer = text[len(PROMPTS[row]) :]
    return logits - torch.tensor([0.2 * (token in answer) + 0.1 * answer.count(token) for token in range(V)])


def ordered(row: int, text: list[int], logits: Tensor) -> Tensor:
    """Applies all settings of `ALL` but the filters, in the order of transformers."""
    bias = SequenceBiasLogitsProcessor({(0,): -2.5, (3,): 1.0})
    logits = of(bias, RepetitionPenaltyLogitsProcessor(1.3))(row, text, logits)
    start = len(PROMPTS[row])
    return of(
        NoRepeatNGramLogitsProcessor(2),
        NoBadWordsLogitsProcessor(BAD),
        MinLengthLogitsProcessor(9, list(STOPS)),
        MinNewTokensLengthLogitsProcessor(start, 4, list(STOPS)),
        ForcedEOSTokenLogitsProcessor(start + LIMITS[row], 10),
        SuppressTokensLogitsProcessor([8]),
        SuppressTokensAtBeginLogitsProcessor([1], start),
    )(row, text, counted(row, text, logits))


def test_all_at_once_in_order() -> None:
    filters = [
        TopKLogitsWarper(9),
        TopPLogitsWarper(0.95),
        MinPLogitsWarper(0.01),
        TypicalLogitsWarper(0.9),
        EpsilonLogitsWarper(0.02),
        EtaLogitsWarper(0.1),
    ]
    warped = of(TemperatureLogitsWarper(0.8), *filters)
    check(ALL, lambda row, text, logits: warped(row, text, ordered(row, text, logits)))


def test_greedy_comes_after_the_penalties() -> None:
    shaped = replace(ALL, temperature=0)(LOGITS, past())
    assert torch.equal(shaped.argmax(-1), one_by_one(ordered).argmax(-1))
    assert torch.equal(shaped.isfinite().sum(-1), torch.ones(2, len(PATHS[0]), dtype=torch.int64))


def test_drafts_are_ranked_where_the_target_is_greedy() -> None:
    drafts = replace(ALL, temperature=0).for_drafts
    torch.testing.assert_close(drafts(LOGITS, past()), one_by_one(ordered))
    assert ALL.for_drafts is ALL


def test_float64_stays_float64() -> None:
    shaped = ALL(LOGITS.double(), past())
    assert shaped.dtype == torch.float64
    torch.testing.assert_close(shaped.float(), ALL(LOGITS, past()), rtol=1e-5, atol=1e-5)


def without_values(held: Any) -> Any:
    """The same on tensors without values, on the meta device."""
    for name, value in list(vars(held).items()):
        if isinstance(value, Tensor):
            setattr(held, name, value.to("meta"))
        elif isinstance(value, dict):
            setattr(held, name, {key: table.to("meta") for key, table in value.items()})
    held.device = torch.device("meta")
    return held


def test_tensor_settings_are_pure_tensor_operations() -> None:
    """The same calls run on tensors without values, so no value of a tensor is copied to the host."""
    history = History.of(PROMPTS, 5 * V, stops=STOPS, limits=LIMITS)  # so many tokens that some are left for sure
    history.look_back(seen=True, counts=True)
    logits, known = LOGITS.repeat(1, 1, 5).to("meta"), Past(without_values(history), past().paths.to("meta"))
    for policies in ([ALL, ALL], [ALL, Policy(0)], [Policy(), ALL]):
        rows = without_values(PolicyRows.of(policies, 5 * V))
        for ranked in (False, True):
            assert rows(logits, known, ranked=ranked).shape == logits.shape
        assert rows.leave_none(logits, known).shape == logits.shape[:2]
    with pytest.raises(NotImplementedError, match="meta"):
        without_values(PolicyRows.of([Policy(allowed=after)] * 2, 5 * V))(logits, known)


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


@pytest.mark.parametrize(("answer", "message"), [([V], "ids from 0 to 11"), ([True] * 3, "masks of 12 tokens")])
def test_answers_of_a_hook_are_checked(answer: list[int], message: str) -> None:
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
