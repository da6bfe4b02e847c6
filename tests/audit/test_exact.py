"""The enumerator: a law known in closed form, float32 models, and errors that name the model."""

import pytest
import torch

import spectr
from spectr.errors import LawError


def test_enumeration_matches_a_law_computed_by_hand() -> None:
    """One draft of one token: accept with min(1, p/q), else draw from the residual; then the bonus."""
    target, draft = torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2])
    law = spectr.exact_step_law("speculative", lambda _: target, lambda _: draft, (1,))
    kept = {0: 0.8 * (0.5 / 0.8), 1: 0.2}
    meant = {(1,): 0.3} | {(x, y): kept[x] * 0.5 for x in (0, 1) for y in (0, 1)}
    assert dict(law) == pytest.approx(meant, abs=1e-7)
    assert law.expected_tokens == pytest.approx(1.7, abs=1e-7)


def test_models_may_return_float32() -> None:
    third = torch.full((3,), 1 / 3)
    law = spectr.exact_step_law("kseq", lambda _: third, lambda _: third, (2,))
    assert law.deviation(lambda _: third) < 1e-12


def test_models_may_return_lists() -> None:
    def target(_: tuple[int, ...]) -> list[float]:
        return [0.1, 0.2, 0.7]

    law = spectr.exact_step_law("optimal", target, lambda _: [0.6, 0.3, 0.1], (2, 1))
    assert law.deviation(target) < 1e-12


def test_models_without_a_valid_law_are_refused() -> None:
    def broken(text: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([0.5, 0.5]) if len(text) < 2 else torch.tensor([0.5, 0.6])

    with pytest.raises(LawError, match=r"target_lm\(\d, \d\) must sum to 1"):
        spectr.exact_step_law("kseq", broken, lambda _: torch.tensor([0.5, 0.5]), (1, 1))


def test_the_bias_of_a_wrong_rule_is_counted_right() -> None:
    """Total variation of `lenience` on one token, against its formula: TV(target, draft) − P(reject)."""
    target, draft = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    rule = spectr.rule("lenience", lenience=0.8, coupling="maximal")
    law = spectr.exact_step_law(rule, lambda _: target, lambda _: draft, (1,))
    rejected = 0.9 * (1 - 0.5 / (0.8 * 0.9))
    assert law.total_variation(lambda _: target) == pytest.approx(0.4 - rejected, abs=1e-12)
