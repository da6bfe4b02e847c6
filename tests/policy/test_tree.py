"""The batched policy on a small tree against each setting's processor in transformers, or a plain loop, applied to the
whole text of one node at a time."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.policy.small_tree import (
    LIMITS,
    LOGITS,
    NODES,
    PATHS,
    PROMPTS,
    STOPS,
    TEXTS,
    Plain,
    V,
    check,
    one_by_one,
    past,
)
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedEOSTokenLogitsProcessor,
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

from spectr.policy import History, Past, Policy, PolicyRows


def of(*processors: Callable[[Tensor, Tensor], Tensor]) -> Plain:
    """Apply processors of transformers to the text without padding."""

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
    """Apply all settings of `ALL` but the filters, in the order of transformers."""
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
        without_values(PolicyRows.of([Policy(allowed=lambda _: None)] * 2, 5 * V))(logits, known)
