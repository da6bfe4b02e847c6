"""The audit's reference policy against transformers' processors, one text at a time, and small examples."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
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

from spectr.errors import ArgumentError
from spectr.policy import Policy

ReferencePolicy = pytest.importorskip("spectr.audit.reference_policy", exc_type=ImportError).ReferencePolicy

V, STOPS, PROMPT = 10, [8, 9], [1, 2, 1]
DRAW = np.random.default_rng(5)
TEXTS = [DRAW.integers(0, 5, DRAW.integers(0, 6)).tolist() for _ in range(40)]
ROWS = [(2 * DRAW.standard_normal(V)).tolist() for _ in TEXTS]
BAD = [[7], [1, 2], [2, 1, 0], [3, 3]]
Processor = Callable[[Tensor, Tensor], Tensor]


def theirs(processors: list[Processor], row: list[float], text: list[int]) -> list[float]:
    ids, scores = torch.tensor([PROMPT + text]), torch.tensor([row], dtype=torch.float64)
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0].softmax(-1).tolist()


@pytest.mark.parametrize(
    ("policy", "processors"),
    [
        (Policy(0.7), [TemperatureLogitsWarper(0.7)]),
        (Policy(top_k=3), [TopKLogitsWarper(3)]),
        (Policy(top_p=0.8), [TopPLogitsWarper(0.8)]),
        (Policy(min_p=0.2), [MinPLogitsWarper(0.2)]),
        (Policy(typical_p=0.5), [TypicalLogitsWarper(0.5)]),
        (Policy(epsilon_cutoff=0.05), [EpsilonLogitsWarper(0.05)]),
        (Policy(eta_cutoff=0.05), [EtaLogitsWarper(0.05)]),
        (Policy(repetition_penalty=1.6), [RepetitionPenaltyLogitsProcessor(1.6)]),
        (Policy(logit_bias={1: 0.5, 2: -2.0}), [SequenceBiasLogitsProcessor({(1,): 0.5, (2,): -2.0})]),
        (Policy(bad_words=BAD), [NoBadWordsLogitsProcessor(BAD)]),
        (Policy(no_repeat_ngram_size=2), [NoRepeatNGramLogitsProcessor(2)]),
        (Policy(suppress_tokens=[2, 4]), [SuppressTokensLogitsProcessor([2, 4])]),
        (Policy(begin_suppress_tokens=[2, 4]), [SuppressTokensAtBeginLogitsProcessor([2, 4], len(PROMPT))]),
        (Policy(min_length=6), [MinLengthLogitsProcessor(6, STOPS)]),
        (Policy(min_new_tokens=3), [MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, STOPS)]),
        (Policy(forced_eos_token_id=8), [ForcedEOSTokenLogitsProcessor(len(PROMPT) + 6, [8])]),
        (
            Policy(0.8, 8, 0.9, 0.02, 0.95, repetition_penalty=1.3, bad_words=BAD),
            [
                RepetitionPenaltyLogitsProcessor(1.3), NoBadWordsLogitsProcessor(BAD), TemperatureLogitsWarper(0.8),
                TopKLogitsWarper(8), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02), TypicalLogitsWarper(0.95),
            ],
        ),
    ],
    ids=lambda part: "" if isinstance(part, list) else None,
)  # fmt: skip
def test_as_in_transformers(policy: Policy, processors: list[Processor]) -> None:
    reference = ReferencePolicy(policy, STOPS, limit=6)
    for row, text in zip(ROWS, TEXTS, strict=True):
        assert reference.law(row, PROMPT, text) == pytest.approx(theirs(processors, row, text), abs=1e-9)


def test_penalties_count_generated_tokens_alone() -> None:
    reference = ReferencePolicy(Policy(presence_penalty=0.5, frequency_penalty=0.25))
    plain = ReferencePolicy(Policy())
    row = [1.0, 1.0, 1.0, 1.0]
    meant = [1.0, 1.0 - 0.5 - 0.75, 1.0, 1.0 - 0.5 - 0.25]
    assert reference.law(row, [0, 2, 3], [1, 1, 1, 3]) == pytest.approx(plain.law(meant))


def test_ties() -> None:
    """As the module documents: all tokens that are equal at a border are kept, and greedy takes the lowest id."""
    row = [0.0, 1.0, 1.0, 1.0, 0.0]
    kept = {name: [p > 0 for p in ReferencePolicy(policy).law(row)] for name, policy in {
        "greedy": Policy(0), "top_k": Policy(top_k=2), "top_p": Policy(top_p=0.4), "min_p": Policy(min_p=1.0),
    }.items()}  # fmt: skip
    assert kept["greedy"] == [False, True, False, False, False]
    assert kept["top_k"] == kept["min_p"] == kept["top_p"] == [False, True, True, True, False]


def test_hooks() -> None:
    def mask(text: list[int]) -> list[bool]:
        return [token != text[-1] for token in range(4)]

    for allowed in (lambda _: [0, 2], lambda _: torch.tensor([True, False, True, False]), lambda _: {0, 2}):
        law = ReferencePolicy(Policy(allowed=allowed)).law([0.0] * 4, [1], [3])
        assert law == pytest.approx([0.5, 0, 0.5, 0])
    assert ReferencePolicy(Policy(allowed=mask)).law([0.0] * 4, [1], [3]) == pytest.approx([1 / 3] * 3 + [0])
    assert ReferencePolicy(Policy(allowed=lambda _: None)).law([0.0] * 4) == pytest.approx([0.25] * 4)
    seen = []

    def processor(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids.tolist())
        return scores + torch.tensor([0.0, math.log(2), 0.0])

    assert ReferencePolicy(Policy(processors=[processor])).law([0.0] * 3, [1], [2]) == pytest.approx([0.25, 0.5, 0.25])
    assert seen == [[[1, 2]]]


def test_slack_keeps_what_is_at_a_border() -> None:
    row = [0.0, 0.0, -5e-7, -1.0]
    for policy in (Policy(top_k=2), Policy(min_p=1.0), Policy(epsilon_cutoff=0.2969)):
        strict, wide = (ReferencePolicy(policy, slack=slack).law(row) for slack in (0.0, 1e-6))
        assert wide[2] > 0
        assert wide[3] == 0
        assert strict[2] == 0 or policy.epsilon_cutoff
    law = ReferencePolicy(Policy()).law(row)
    border = Policy(top_p=law[0] + law[1] - 1e-9)
    assert ReferencePolicy(border).law(row)[2] == 0
    assert ReferencePolicy(border, slack=1e-6).law(row)[2] > 0


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must leave at least one token, and leaves none after"):
        ReferencePolicy(Policy(logit_bias={0: -math.inf, 1: -math.inf})).law([0.0, 0.0], [1])
    with pytest.raises(ArgumentError, match="give limit="):
        ReferencePolicy(Policy(forced_eos_token_id=1)).law([0.0, 0.0], [1])

    @dataclass(frozen=True)
    class Newer(Policy):
        mirostat: int = 0

    assert ReferencePolicy(Newer()).law([0.0, 0.0]) == [0.5, 0.5]
    with pytest.raises(ArgumentError, match="must know every setting, and does not know mirostat"):
        ReferencePolicy(Newer(mirostat=2))
