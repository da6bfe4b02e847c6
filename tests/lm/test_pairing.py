"""The default sizes of trees are determined by the user's options and the device."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spectr.draft import Plan
from spectr.draft.adaptive import SwitchingDrafter
from spectr.draft.options import DraftOptions
from spectr.models import trained
from spectr.notices import forget
from spectr.pairing import pair
from spectr.pairing.fit import Pairing, default_tree
from spectr.verify import RULES, rule


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
    """Drafts, length and nodes that are not given get defaults that suit the device and the given ones."""
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device(device)))
    pairing = Pairing(target, rule("race").card, DraftOptions(**said), {})
    plan = pairing.plan(**default_tree(pairing))
    assert (plan.drafts, plan.length, plan.capacity) == tree
    assert (plan.shared is not None) == (device == "cuda" and not said)
    assert plan.for_rows(1) == replace(plan, shared=None)


@pytest.mark.parametrize("name", [name for name in RULES if rule(name).card.lossless])
@pytest.mark.parametrize("nodes", [2, 9, 32, 64])
def test_nodes_size_the_tree_under_every_rule(name: str, nodes: int) -> None:
    """Under every lossless rule a tree has at most the given nodes, and at least 80 % of them."""
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device("cpu")))
    pairing = Pairing(target, rule(name).card, DraftOptions(nodes=nodes), {})
    for plan in (pairing.plan(), pairing.plan(**default_tree(pairing))):
        assert 0.8 * nodes <= plan.capacity <= nodes


def test_options_of_chains_are_combined_with_nodes() -> None:
    """For chains, `nodes` determines the number or length of drafts that is not given."""
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device("cpu")))
    for said, meant in (({"drafts": 4}, (4, 7)), ({"length": 3}, (10, 3)), ({"drafts": 2, "length": 3}, (2, 3))):
        plan = Pairing(target, rule("kseq").card, DraftOptions(nodes=32, **said), {}).plan()
        assert (plan.drafts, plan.length) == meant


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_without_a_trained_drafter_is_announced(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` falls back to lookup or plain decoding, and logs once that there is no trained drafter."""
    monkeypatch.setattr(trained, "shipped", lambda _: None)
    target: Any = SimpleNamespace(
        target=SimpleNamespace(device=torch.device(device), model=None, model_for_drafters=None), tokenizer=None
    )
    forget()
    for _ in range(2):
        made = pair("auto", target, rule("race").card, DraftOptions(), {})
        assert isinstance(made, SwitchingDrafter)
        assert [drafter.name for drafter in made.drafters] == ["none", "lookup"]
        assert made.select(1) == 0  # it begins with plain decoding
        assert pair("auto", target, rule("match").card, DraftOptions(), {}).name == "none"
    (record,) = caplog.records
    assert "no trained drafter for this model" in record.message
    assert "spectr train" in record.message


def test_rows_share_only_what_does_not_change_their_text() -> None:
    """Rows share a budget of nodes only under the race, where trees do not affect the text."""
    target: Any = SimpleNamespace(target=SimpleNamespace(device=torch.device("cuda")))
    for name in ("kseq", "match", "speculative"):
        pairing = Pairing(target, rule(name).card, DraftOptions(), {})
        assert pairing.plan(**default_tree(pairing)).shared is None


@pytest.mark.parametrize(
    ("rows", "tree"),
    [(1, (16, 4, 64)), (2, (16, 4, 64)), (3, (8, 4, 32)), (16, (4, 4, 8)), (40, (1, 1, 2)), (999, (1, 1, 2))],
)
def test_a_tree_for_each_of_many_rows(rows: int, tree: tuple[int, int, int]) -> None:
    """A shared budget gives each row a smaller tree the more rows there are."""
    plan = Plan(drafts=16, length=4, nodes=64, shared=128).for_rows(rows)
    assert (plan.drafts, plan.length, plan.nodes) == tree
