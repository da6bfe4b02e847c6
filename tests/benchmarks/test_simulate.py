"""What is simulated is what is meant: exact enumeration of the simulators' parts, and a seed that settles
everything."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.figures.simulate import call_counts, race_ranks, rejection_counts, relaxed_texts, tree_tokens
from spectr.draft.plan import Plan
from spectr.errors import ArgumentError
from spectr.theory import Family, decoding_opt, decoding_uno, relaxed_test, zipf, zipf_chain
from spectr.theory.yin_relaxed import OverAcceptingCoupling, over_accepting_rule
from spectr.transport.coupling import Drafted


@pytest.mark.parametrize(("after", "decode"), [("opt", decoding_opt), ("uno", decoding_uno)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0])
def test_the_eased_coupling_has_the_stated_law(after: str, decode: object, epsilon: float) -> None:
    """Summed over the drafts; a second draft is not looked at, and without a draft the target comes out."""
    family, made = zipf(6, noise=2.0, seed=3), OverAcceptingCoupling(epsilon, after)
    meant = decode(family.target, family.draft, relaxed_test(family.target, family.draft, epsilon))  # type: ignore[operator]
    for drafts in (1, 2):
        tokens = torch.tensor(list(itertools.product(range(6), repeat=drafts)))
        chance = family.draft[tokens].prod(-1)
        law = chance @ made.output_law(family.target, family.draft, tokens)
        assert law.tolist() == pytest.approx(meant.law.tolist(), abs=1e-12)
        accepted = made.acceptance(family.target, family.draft, drafts)
        assert float(accepted) == pytest.approx(1 - float(meant.rejected), abs=1e-12)
    nothing = made.settle(family.target, family.draft, Drafted(torch.tensor([0]), torch.tensor([False])))
    assert nothing.law(torch.tensor([0])).tolist() == pytest.approx(family.target.tolist(), abs=1e-12)


def test_an_eased_rule_says_that_it_is_lossy() -> None:
    rule = over_accepting_rule(0.1, "uno")
    assert not rule.card.lossless
    assert (rule.card.name, rule.card.siblings) == ("decoding_uno", ("iid",))
    with pytest.raises(ArgumentError, match="after must be one of opt, uno"):
        over_accepting_rule(0.1, "due")


def test_a_seed_settles_everything() -> None:
    pair, family = zipf_chain(4), zipf(8)
    runs = (
        lambda seed: call_counts([0.5, 0.5], 20, 30, seed),
        lambda seed: rejection_counts(pair, 6, 2, 30, seed),
        lambda seed: relaxed_texts(pair, OverAcceptingCoupling(0.1), 6, 30, seed)[1],
        lambda seed: race_ranks(family, 30, seed),
        lambda seed: tree_tokens(family, Plan("race", 2, 2), "race", 60, seed),
    )
    for run in runs:
        assert np.array_equal(run(3), run(3))
        assert not np.array_equal(run(3), run(4))


def test_the_simplest_cases() -> None:
    assert call_counts([1.0, 1.0], 9, 5, 0).tolist() == [3.0] * 5
    assert call_counts([], 9, 2, 0).tolist() == [9.0] * 2
    same = zipf(8)
    same = Family("same", same.target, same.target, "a drafter that is its target")
    assert tree_tokens(same, Plan("race", tree=(1, 1)), "race", 40, 0).tolist() == [3.0] * 40
