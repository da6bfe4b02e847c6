"""Whole steps with all kernels, run by Triton's interpreter, give the texts of the plain code."""

from importlib import import_module

import pytest
import torch
from tests.tiny import llama

import spectr
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Request
from spectr.models import attention
from spectr.models.attention import group_heads
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU here")

SIZE = 320
PLACES = [
    "spectr.coins", "spectr.models.fresh_tokens", "spectr.trees.prune", "spectr.transport.kseq", "spectr.policy.fused",
]  # fmt: skip


def engine(rule: str, plan: Plan) -> Engine:
    net = llama(3, SIZE, dtype=torch.float32)
    group_heads(net)
    target = Target(net)
    head = head_of(net, 1, (0,)).requires_grad_(False)
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
    group_heads(head)
    made = drafter("feature", head=Target(head), target=target, plan=plan, feature_layers=(0,))
    return Engine(target, made, spectr.rule(rule))


PLANS = {"race": Plan(drafts=3, length=3, nodes=6), "kseq": Plan("iid", drafts=2, length=2)}
POLICIES = {
    "one": Policy(),
    "cool": Policy(0.7, top_k=40),
    "greedy": Policy(0),
    "filtered": Policy(0.8, top_k=40, top_p=0.9, min_p=0.01),
    "penalised": Policy(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, min_new_tokens=3),
}


@pytest.mark.parametrize("rule", PLANS)
@pytest.mark.parametrize(
    "policy",
    ["one", "filtered", "penalised", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cool", "greedy"))],
)
def test_texts_with_kernels_equal_the_plain_texts(rule: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import spectr.kernels.attention  # noqa: F401  registers it
    from spectr.kernels.best import can_pick

    plan, settings = PLANS[rule], POLICIES[policy]
    requests = [Request([3, 4, 5], 1, 6, settings), Request([9, 8], 2, 4, settings)]
    assert can_pick(SIZE, plan.capacity - 1)
    made = engine(rule, plan)
    plain = made.generate(requests)
    for place in PLACES:
        monkeypatch.setattr(import_module(place), "usable", lambda *given: given[0].dtype != torch.float64)
    monkeypatch.setattr(attention, "_is_tree", lambda query, _, mask: mask.dtype == query.dtype)
    quick = made.generate(requests)
    assert [one.tokens for one in quick] == [one.tokens for one in plain]
    assert [one.steps for one in quick] == [one.steps for one in plain]
