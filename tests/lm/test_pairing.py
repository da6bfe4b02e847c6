"""What of a tree the user leaves open: it goes with what is said, and with the device."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spectr.draft import Plan
from spectr.draft.options import DraftOptions
from spectr.pairing import _Pairing, _usual
from spectr.verify import rule


@pytest.mark.parametrize(
    ("device", "said", "tree"),
    [
        ("cuda", {}, (16, 4, 64)),
        ("cuda", {"length": 8}, (16, 8, 64)),
        ("cuda", {"drafts": 6}, (6, 4, 64)),
        ("cuda", {"drafts": 32}, (32, 4, 64)),
        ("cuda", {"nodes": 16}, (6, 4, 16)),
        ("cuda", {"nodes": 32, "length": 2}, (8, 2, 32)),
        ("cuda", {"drafts": 3, "length": 5}, (3, 5, 16)),
        ("cpu", {}, (1, 1, 2)),
        ("cpu", {"nodes": 64}, (16, 8, 64)),
        ("cpu", {"length": 3}, (4, 3, 13)),
    ],
)
def test_the_tree_of_a_trained_head(device: str, said: dict[str, int], tree: tuple[int, int, int]) -> None:
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device(device)))
    pairing = _Pairing(target, rule("race").card, DraftOptions(**said), {})
    plan = pairing.plan(**_usual(pairing))
    assert (plan.drafts, plan.length, plan.capacity) == tree
    assert (plan.shared is not None) == (device == "cuda" and not said)
    assert plan.for_rows(1) == replace(plan, shared=None)


def test_rows_share_only_what_does_not_change_their_text() -> None:
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device("cuda")))
    for name in ("kseq", "match", "speculative"):
        pairing = _Pairing(target, rule(name).card, DraftOptions(), {})
        assert pairing.plan(**_usual(pairing)).shared is None


@pytest.mark.parametrize(
    ("rows", "tree"),
    [(1, (16, 4, 64)), (2, (16, 4, 64)), (3, (8, 4, 32)), (16, (4, 4, 8)), (40, (1, 1, 2)), (999, (1, 1, 2))],
)
def test_a_tree_for_each_of_many_rows(rows: int, tree: tuple[int, int, int]) -> None:
    plan = Plan(drafts=16, length=4, nodes=64, shared=128).for_rows(rows)
    assert (plan.drafts, plan.length, plan.nodes) == tree
