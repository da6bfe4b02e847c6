"""The policy against the definitions of its settings, policies as values, and errors."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from spectr.errors import ArgumentError
from spectr.policy import History, Past, Policy

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0, 3.0], [0.0, 0.1, 0.2, 0.3, 5.0]])


def kept(policy: Policy) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in policy(LOGITS)]


def test_temperature() -> None:
    assert torch.allclose(Policy(0.5)(LOGITS).softmax(-1), (LOGITS / 0.5).softmax(-1))
    assert Policy(1e-39)(LOGITS).softmax(-1)[1].tolist() == [0, 0, 0, 0, 1]
    assert torch.equal(Policy()(LOGITS), LOGITS)
    assert Policy()(LOGITS.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("setting", "likeliest"),
    [
        ({"temperature": 1e-300}, [[1, 4], [4]]),
        ({"temperature": 1e300, "suppress_tokens": (2,)}, [[0, 1, 3, 4]] * 2),
        ({"logit_bias": {1: 1e300, 2: 1e300}, "temperature": 0.01}, [[1, 2]] * 2),
        ({"logit_bias": dict.fromkeys(range(5), -1e300)}, [[0, 1, 2, 3, 4]] * 2),
        ({"presence_penalty": 1e300}, [[4], [4]]),
        ({"frequency_penalty": -1e300, "temperature": 0.01}, [[1], [1]]),
        ({"presence_penalty": 1e300, "frequency_penalty": -1e300}, [[1], [1]]),
        ({"repetition_penalty": 1e300}, [[4], [4]]),
        ({"repetition_penalty": 1e-300, "temperature": 0.01}, [[1], [1]]),
    ],
    ids=str,
)
def test_numbers_that_float32_does_not_have_still_give_a_law(
    setting: dict[str, Any], likeliest: list[list[int]]
) -> None:
    """An infinite bias or a temperature of 0 in float32 would make NaN, and of NaN any token could be drawn."""
    history = History.of([[0], [0]], 5)
    history.commit([[1, 1], [1, 1]])
    past = Past(history, torch.full((2, 1, 0), -1))
    law = Policy(**setting)(LOGITS[:, None], past)[:, 0].softmax(-1)
    assert not bool(law.isnan().any())
    assert [(row > row.max() / 2).nonzero().flatten().tolist() for row in law] == likeliest


def test_greedy_is_the_point_mass_on_the_first_of_equals() -> None:
    assert kept(Policy(0)) == [[1], [4]]
    assert Policy(0)(LOGITS).softmax(-1)[0, 1] == 1


def test_top_k_keeps_ties() -> None:
    assert kept(Policy(top_k=1)) == [[1, 4], [4]]
    assert kept(Policy(top_k=3)) == [[1, 2, 4], [2, 3, 4]]
    assert kept(Policy(top_k=99)) == [[0, 1, 2, 3, 4]] * 2


def test_top_p_is_the_smallest_set() -> None:
    law = LOGITS.double().softmax(-1)
    for mass in (0.1, 0.5, 0.8, 0.95, 0.999):
        for row, ids in enumerate(kept(Policy(top_p=mass))):
            inside = law[row, ids]
            assert float(inside.sum()) >= mass - 1e-9
            assert float(inside[inside > inside.min()].sum()) < mass  # those as likely as the last stay, too


def test_min_p() -> None:
    law = LOGITS.softmax(-1)
    assert kept(Policy(min_p=0.2)) == [(row >= 0.2 * row.max()).nonzero().flatten().tolist() for row in law]


def test_order_is_temperature_then_filters() -> None:
    hot, cold = kept(Policy(2.0, top_p=0.9)), kept(Policy(0.3, top_p=0.9))
    assert len(hot[0]) > len(cold[0])


def test_typical_p_is_the_smallest_set_nearest_to_the_entropy() -> None:
    law = LOGITS.double().softmax(-1)
    far = (-law.log() - (-law * law.log()).sum(-1, keepdim=True)).abs()
    for mass in (0.01, 0.3, 0.8, 0.999):
        for row, ids in enumerate(kept(Policy(typical_p=mass))):
            assert far[row, ids].max() < min((far[row, t] for t in range(5) if t not in ids), default=math.inf)
            border = [t for t in ids if far[row, t] < far[row, ids].max()]
            assert float(law[row, border].sum()) < mass <= float(law[row, ids].sum()) + 1e-9


def test_typical_p_takes_excluded_tokens() -> None:
    logits = torch.tensor([1.0, -torch.inf, 0.5, -torch.inf])
    assert Policy(typical_p=0.99)(logits).tolist() == logits.tolist()
    assert Policy(0.5, logit_bias={0: -math.inf}, typical_p=0.2)(logits).tolist() == [-torch.inf] * 2 + [1, -torch.inf]


def test_bias_single_bad_words_and_suppressed_tokens_need_no_past() -> None:
    policy = Policy(logit_bias={0: 2, 1: -math.inf}, bad_words=[[4]], suppress_tokens=[3])
    assert not policy.remembers
    assert policy(LOGITS[0]).tolist() == [3, -torch.inf, 2, -torch.inf, -torch.inf]
    assert kept(Policy(0, bad_words=[[4]])) == [[1], [3]]


@pytest.mark.parametrize(
    ("setting", "capturable"),
    [
        ({"repetition_penalty": 2}, True),
        ({"presence_penalty": 1}, True),
        ({"frequency_penalty": 1}, True),
        ({"bad_words": [[1, 2]]}, True),
        ({"min_new_tokens": 1}, True),
        ({"min_length": 1}, True),
        ({"no_repeat_ngram_size": 2}, True),
        ({"begin_suppress_tokens": [1]}, True),
        ({"forced_eos_token_id": 1}, True),
        ({"processors": [lambda _, scores: scores]}, False),
        ({"allowed": lambda _: None}, False),
    ],
)
def test_a_policy_that_depends_on_the_text_needs_a_past(setting: dict[str, Any], capturable: bool) -> None:
    policy = Policy(**setting)
    assert policy.remembers
    assert policy.capturable == capturable
    with pytest.raises(ArgumentError, match="looks at the text"):
        policy(LOGITS)


def test_a_past_must_fit_and_is_ignored_where_not_needed() -> None:
    past = Past(History.of([[1], [2]], 5), torch.zeros(2, 3, 0, dtype=torch.int64))
    assert Policy(repetition_penalty=2)(torch.ones(2, 3, 5), past)[0, 0].tolist() == [1, 0.5, 1, 1, 1]
    for logits in (LOGITS, torch.ones(2, 2, 5), torch.ones(1, 3, 5), torch.ones(2, 3, 6)):
        with pytest.raises(ArgumentError, match=r"logits must be \(B, M, V\)"):
            Policy(repetition_penalty=2)(logits, past)
    assert torch.equal(Policy()(LOGITS, past), LOGITS)


def test_a_policy_is_a_value() -> None:
    settings: dict[str, Any] = {
        "logit_bias": {3: 1, 2: -math.inf}, "bad_words": [[1], [2, 3]], "top_k": 2, "suppress_tokens": [4, 0],
        "forced_eos_token_id": 4, "begin_suppress_tokens": (1,),
    }  # fmt: skip
    policy = Policy(**settings)
    policy(torch.zeros(1, 1, 5), Past(History.of([[1]], 5, limits=[3]), torch.zeros(1, 1, 0, dtype=torch.int64)))
    for other in (Policy(**settings), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other == policy
        assert hash(other) == hash(policy)
    assert policy != Policy(logit_bias={3: 1})
    assert policy.logit_bias == settings["logit_bias"]
    assert policy.bad_words == ((1,), (2, 3))
    assert policy.suppress_tokens == (0, 4)
    assert policy.forced_eos_token_id == (4,)
    assert policy != Policy(**{**settings, "suppress_tokens": [4]})
    assert Policy(suppress_tokens=None, begin_suppress_tokens=None) == Policy()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"temperature": -1}, "temperature must be at least 0 and finite .*, got -1"),
        ({"temperature": math.nan}, "temperature must .*, got nan"),
        ({"temperature": math.inf}, "temperature must .*, got inf"),
        ({"temperature": "hot"}, "temperature must .*, got 'hot'"),
        ({"top_k": -1}, "top_k must be a whole number"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"top_p": 0}, r"top_p must lie in \(0, 1\]"),
        ({"min_p": 2}, r"min_p must lie in \[0, 1\]"),
        ({"typical_p": 0}, r"typical_p must lie in \(0, 1\]"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"presence_penalty": math.inf}, "presence_penalty must be a finite number"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be a finite number"),
        ({"min_new_tokens": -1}, "min_new_tokens must be a whole number, at least 0, got -1"),
        ({"logit_bias": [3]}, r"logit_bias must be a mapping from token ids to numbers, got \[3\]"),
        ({"logit_bias": {"3": 1}}, "logit_bias must name tokens by ids, integers from 0 on, got '3'"),
        ({"logit_bias": {-3: 1}}, "logit_bias must name tokens by ids, integers from 0 on, got -3"),
        ({"logit_bias": {3: math.inf}}, "logit_bias must add finite numbers, or -inf to exclude a token, got inf"),
        ({"logit_bias": {3: math.nan}}, "logit_bias must add finite numbers"),
        ({"bad_words": [5]}, r"bad_words must be sequences of token ids, such as \[\[5\], \[6, 7\]\], got 5"),
        ({"bad_words": ["no"]}, "bad_words must be sequences of token ids"),
        ({"bad_words": [[]]}, "bad_words must be sequences of at least one token id"),
        ({"bad_words": [[1, -1]]}, "bad_words must name tokens by ids"),
        ({"epsilon_cutoff": 1}, r"epsilon_cutoff must lie in \[0, 1\), where 0 is off, got 1"),
        ({"eta_cutoff": -0.1}, r"eta_cutoff must lie in \[0, 1\)"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size must be a whole number"),
        ({"min_length": -1}, "min_length must be a whole number, at least 0, got -1"),
        ({"suppress_tokens": "no"}, r"suppress_tokens must be token ids, such as \[5, 6\], got 'no'"),
        ({"suppress_tokens": 2.5}, "suppress_tokens must be token ids"),
        ({"begin_suppress_tokens": [-1]}, "begin_suppress_tokens must name tokens by ids, integers from 0 on, got -1"),
        ({"forced_eos_token_id": -2}, "forced_eos_token_id must name tokens by ids, integers from 0 on, got -2"),
        ({"processors": 3}, "processors must be a sequence of functions"),
        ({"processors": [3]}, "processors must be a sequence of functions"),
        ({"allowed": [3]}, "allowed must be a function"),
        ({"allowed": []}, "allowed must be a function"),
    ],
)
def test_bad_settings(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        Policy(**setting)


def test_processors_may_be_none_one_or_nested_lists() -> None:
    def one(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores

    assert Policy(processors=one).processors == (one,)  # type: ignore[arg-type]
    assert Policy(processors=[one, [one, (one,)]]).processors == (one, one, one)  # type: ignore[list-item]
    assert Policy(processors=None).processors == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        PrefixConstrainedLogitsProcessor(lambda *_: [1], 1),
        EncoderRepetitionPenaltyLogitsProcessor(1.5, torch.ones(2, 3, dtype=torch.int64)),
        EncoderNoRepeatNGramLogitsProcessor(2, torch.ones(2, 3, dtype=torch.int64)),
        UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, None),
    ],
)
def test_processors_that_depend_on_rows_are_refused(made: Any) -> None:
    with pytest.raises(ArgumentError, match=f"depend on each text only, and {type(made).__name__}"):
        Policy(processors=[[made]])


def test_tokens_beyond_the_vocabulary() -> None:
    for policy in (Policy(logit_bias={5: 1}), Policy(bad_words=[[5]]), Policy(suppress_tokens=[5])):
        with pytest.raises(ArgumentError, match="must name tokens below 5, the size of the vocabulary, got 5"):
            policy(LOGITS)
