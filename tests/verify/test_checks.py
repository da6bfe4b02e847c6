"""A rule refuses drafts it is not valid for, with a clear error."""

from dataclasses import replace

import pytest
import torch

import spectr
from spectr import Draft, Growth, SeededCoins, Shape, grow
from spectr.errors import ArgumentError, MismatchError
from spectr.types import Siblings


def draft(siblings: Siblings = "iid", widths: tuple[int, ...] = (2, 1)) -> tuple[torch.Tensor, Draft, SeededCoins]:
    zero = torch.zeros(1, dtype=torch.int64)
    coins = SeededCoins(zero, zero)
    law = torch.tensor([0.4, 0.3, 0.3])
    tree = grow(zero, lambda _, n: law.expand(1, len(n), 3), Growth(Shape.branching(widths), siblings), coins)
    return torch.zeros(1, tree.tokens.shape[1], 3), tree, coins


@pytest.mark.parametrize(
    ("name", "siblings"),
    [
        ("kseq", "without_replacement"),
        ("optimal", "race"),
        ("recursive_wor", "iid"),
        ("traversal", "hybrid"),
        ("path_block", "race"),
    ],
)
def test_siblings_that_a_rule_does_not_support_are_refused(name: str, siblings: Siblings) -> None:
    with pytest.raises(MismatchError, match=f"{name}.*{siblings}"):
        spectr.rule(name)(*draft(siblings))


def test_a_chain_rule_refuses_trees() -> None:
    with pytest.raises(MismatchError, match=r"one chain.*2 nodes wide"):
        spectr.rule("block")(*draft())


def test_missing_draft_laws_are_refused() -> None:
    logits, tree, coins = draft()
    bare = replace(tree, laws=None)
    with pytest.raises(MismatchError, match="distributions the children were drawn from"):
        spectr.rule("kseq")(logits, bare, coins)
    for name in ("race", "match"):  # these need none
        assert int(spectr.rule(name)(logits, bare, coins).length) >= 0


def test_logits_of_the_wrong_shape() -> None:
    logits, tree, coins = draft()
    with pytest.raises(ArgumentError, match=r"\(B, N\) = \(1, 5\)"):
        spectr.rule("race")(logits[:, :2], tree, coins)


def test_models_of_different_vocabularies() -> None:
    pytest.importorskip("spectr.audit", exc_type=ImportError)
    with pytest.raises(MismatchError, match="one vocabulary"):
        spectr.exact_step_law("kseq", lambda _: torch.ones(2) / 2, lambda _: torch.ones(3).double() / 3, (1,))
    with pytest.raises(ArgumentError, match="steps"):
        spectr.exact_step_law("kseq", lambda _: torch.ones(2) / 2, lambda _: torch.ones(2) / 2, (1,), steps=0)


def test_verdict_of_a_dead_tree_is_plain_decoding() -> None:
    """If the root has no alive child, nothing is kept and the bonus is drawn from the target."""
    _, tree, coins = draft()
    alive = tree.alive.clone()
    alive[:, 1:] = False
    logits = torch.full((1, tree.tokens.shape[1], 3), -torch.inf)
    logits[..., 2] = 0.0
    for name in ("race", "match", "kseq", "optimal", "path_block", "traversal", "recursive"):
        verdict = spectr.rule(name)(logits, replace(tree, alive=alive), coins)
        assert (int(verdict.length), int(verdict.bonus), bool(verdict.corrected)) == (0, 2, False)
