"""The law of short texts: likeliest texts and ranks against brute force, and the purpose of each of the four tests."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from spectr.audit.functions import biased_function, paired_function, right_function, shifted
from spectr.audit.laws import Claimed, law_finding
from spectr.audit.report import Level
from spectr.audit.samplers import FunctionSampler
from spectr.audit.setup import toy_setup
from spectr.audit.texts import Text, TextLaw, run_tests
from spectr.audit.toys import RandomModel
from spectr.errors import ArgumentError

MODEL = RandomModel(4, 5)


def laws(texts: Sequence[Text]) -> Tensor:
    return torch.stack([MODEL(text) for text in texts])


LAW = TextLaw(laws, 3, stops=frozenset({2}))


def every_text() -> dict[Text, float]:
    """Return all texts of up to three tokens that end at the stop token, and their probabilities."""
    found = {}
    for text in itertools.product(range(5), repeat=3):
        cut = text[: text.index(2) + 1] if 2 in text else text
        found[cut] = float(np.prod([float(MODEL(cut[:at])[token]) for at, token in enumerate(cut)]))
    return found


def test_the_likeliest_texts() -> None:
    meant = sorted(every_text().items(), key=lambda pair: -pair[1])
    assert sum(chance for _, chance in meant) == pytest.approx(1)
    found = LAW.likeliest(20)
    assert [text for text, _ in found] == [text for text, _ in meant[:20]]
    assert [chance for _, chance in found] == pytest.approx([chance for _, chance in meant[:20]])
    assert len(LAW.likeliest(1000)) == len(meant)


def test_ranks_are_uniform_whatever_the_law() -> None:
    """The ranks of all texts, weighted with their probabilities, cover the unit cube exactly uniformly."""
    texts = every_text()
    low, mass = LAW.places(list(texts))
    for grid in itertools.product(np.linspace(0.1, 1, 4), repeat=3):
        share = np.clip((np.array(grid) - low) / mass, 0, 1).prod(1)  # of each box that lies below the corner
        assert share @ np.array(list(texts.values())) == pytest.approx(np.prod(grid), abs=1e-12)


def run(function: object, samples: int = 12_000) -> dict[str, bool]:
    """Return which tests of a function pass, at a false-alarm rate of 10^-6 each."""
    sampler = FunctionSampler(function, [0], LAW.stops)  # type: ignore[arg-type]
    tests = run_tests(sampler(range(samples), 3), LAW, LAW.cells())
    return {name: test.p_bound > 1e-6 for name, test in tests.items()}


def test_a_right_function_passes() -> None:
    assert all(run(right_function(LAW)).values())


def test_each_test_sees_what_it_is_for() -> None:
    assert not run(biased_function(LAW, 0.06))["first token"]
    twice = run(paired_function(LAW))
    assert not twice["neighbours"]

    right = right_function(LAW)

    def last_is_first(prompt: list[int], seed: int) -> list[int]:
        """Sample two correct tokens, and the third from the law of the first."""
        text = right(prompt, seed)
        return text if len(text) < 3 else [*text[:2], right(prompt, seed + 10**9)[0]]

    found = run(last_is_first)
    assert found["first token"]
    assert not found["text"] or not found["ranks"]


def test_the_planted_shift_is_exact() -> None:
    row = MODEL(())
    for bias in (0.001, 0.02, 0.1):
        wrong = shifted(row, bias)
        assert float((wrong - row).abs().sum() / 2) == pytest.approx(bias)
        assert float(wrong.sum()) == pytest.approx(1)
    with pytest.raises(ArgumentError, match="use less"):
        shifted(row, 0.9)


@pytest.mark.slow
def test_a_bias_of_two_hundredths_is_found() -> None:
    """The number of samples that the audit computes suffices, and the correct function passes with the same number."""
    setup = toy_setup()
    law, level = setup.law(), Level(tests=4)
    right, wrong = (
        law_finding(Claimed("f", FunctionSampler(made, setup.prompt, setup.stops), law), level)
        for made in (right_function(law), biased_function(law, 0.02))
    )
    assert right.holds
    assert not wrong.holds
    assert wrong.details["sees_total_variation"] <= 0.0200001
    assert wrong.details["samples"] == wrong.details["needs_samples"] > 50_000
    assert 0.015 < wrong.details["tests"]["first token"]["distance"] < 0.025


def test_impossible_texts_are_refused() -> None:
    with pytest.raises(ArgumentError, match="texts of 3 tokens, or that end with a stop token, got"):
        run_tests([[0, 1]], LAW, LAW.cells())

    def never_zero(texts: Sequence[Text]) -> Tensor:
        row = laws(texts)
        row[:, 0] = 0
        return row / row.sum(-1, keepdim=True)

    law = TextLaw(never_zero, 2)
    tests = run_tests([[1, 1]] * 50 + [[1, 0]], law, law.cells())
    assert all(test.impossible == 1 and test.p_bound == 0 for test in tests.values())
