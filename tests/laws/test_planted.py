"""Planted faults, which have occurred in released software, are detected by the same harness."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Draft, Growth, Shape
from spectr.audit import enumerate_steps
from spectr.audit.decisions import ExactCoins
from spectr.audit.exact import Fault
from spectr.audit.toys import toy_pair
from spectr.transport.kseq import KSeq
from spectr.verify import block
from spectr.verify.walk import Walk

SEEN = 1e-3


def dropped_copies(draft: Draft) -> Draft:
    """Remove copies among iid siblings before the rule sees them."""
    same = (draft.tokens[:, :, None] == draft.tokens[:, None, :]) & (
        draft.parents[:, :, None] == draft.parents[:, None, :]
    )
    copy = same.tril(-1).any(-1)
    copy[:, 0] = False
    return replace(draft, alive=draft.alive & ~copy & ~copy.gather(-1, draft.parents))


def flattened_law(draft: Draft) -> Draft:
    """Report a law that is not the one that was sampled (another temperature)."""
    assert draft.laws is not None
    return replace(draft, laws=(draft.laws.log() * 0.6).softmax(-1))


def dropped_child(draft: Draft) -> Draft:
    """Drop the least likely of three drawn children."""
    assert draft.laws is not None
    chance = draft.laws[:, 0].gather(-1, draft.tokens[:, 1:4])
    alive = draft.alive.clone()
    alive[:, 1:4] &= torch.arange(3) != chance.argmin(-1, keepdim=True)
    return replace(draft, alive=alive)


class CoinsByPosition(ExactCoins):
    """Coins keyed by the absolute position of the tested token, so that later steps reuse conditioned coins."""

    def key(self, node: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
        return self.committed + node, torch.full_like(node, purpose)


def deviation(rule: spectr.Rule, widths: tuple[int, ...], fault: Fault, *, steps: int = 1, size: int = 3) -> float:
    models = toy_pair("plain", size, 1)
    growth = Growth(Shape.branching(widths))
    return enumerate_steps(rule, models, growth, steps, fault).deviation(models[0])


def test_rho_below_the_smallest_valid_one() -> None:
    assert deviation(Walk(KSeq(rho=1.0)), (2,), Fault()) > SEEN
    assert deviation(Walk(KSeq(rho=2.0)), (2,), Fault()) < 1e-12  # any larger one is exact
    assert deviation(Walk(KSeq(rho=5.0)), (2,), Fault()) < 1e-12


def test_first_failure_instead_of_longest_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_failure(success: Tensor) -> Tensor:
        return success.int().cumprod(-1).sum(-1) - 1

    assert deviation(spectr.rule("block"), (1, 1, 1), Fault()) < 1e-12
    monkeypatch.setattr(block, "_longest", first_failure)
    assert deviation(spectr.rule("block"), (1, 1, 1), Fault()) > SEEN


@pytest.mark.parametrize("name", ["kseq", "optimal", "recursive", "path_block"])
def test_copies_removed_before_the_rule(name: str) -> None:
    assert deviation(spectr.rule(name), (2, 1), Fault(change=dropped_copies)) > SEEN


@pytest.mark.parametrize("name", ["kseq", "kseq_plus", "optimal", "recursive", "path_block", "traversal"])
def test_wrong_draft_law(name: str) -> None:
    assert deviation(spectr.rule(name), (2, 1), Fault(change=flattened_law)) > SEEN


@pytest.mark.parametrize("name", ["kseq", "optimal", "recursive", "path_block", "traversal"])
def test_dropped_child(name: str) -> None:
    assert deviation(spectr.rule(name), (3,), Fault(change=dropped_child)) > SEEN


@pytest.mark.parametrize("name", ["match", "race"])
def test_rules_that_see_no_draft_law_survive_all_of_these(name: str) -> None:
    for change in (dropped_copies, flattened_law):
        assert deviation(spectr.rule(name), (2, 1), Fault(change=change)) < 1e-12
    assert deviation(spectr.rule(name), (3,), Fault(change=dropped_child)) < 1e-12


@pytest.mark.parametrize("name", ["block", "path_block", "traversal"])
def test_coins_keyed_by_position(name: str) -> None:
    """One step does not show it; later steps do."""
    fault = Fault(coins=CoinsByPosition)
    assert deviation(spectr.rule(name), (1, 1), fault, size=2) < 1e-12
    assert deviation(spectr.rule(name), (1, 1), fault, steps=2, size=2) > SEEN
    assert deviation(spectr.rule(name), (1, 1), Fault(), steps=2, size=2) < 1e-12


def test_pooling_copies_whose_fixed_sets_differ() -> None:
    """Copy of one prefix must agree on the number of fixed children; a number that depends on the node is
    detected."""
    calls = [0]

    def changing(law: Tensor, _: int) -> Tensor:
        calls[0] += 1
        return (torch.arange(law.shape[1]) % 2).expand(law.shape[:-1])

    models = toy_pair("plain", 3, 2)
    growth = Growth(Shape.branching((2, 2)), "hybrid", fixed=changing)
    assert enumerate_steps(spectr.rule("optimal"), models, growth).deviation(models[0]) > 1e-4
    assert calls[0] > 0
