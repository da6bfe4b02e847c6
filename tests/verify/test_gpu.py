"""On a GPU captured, eager and CPU verdicts are equal, and nothing waits for the host."""

from dataclasses import fields

import pytest
import torch
from tests.gpu import no_host_sync

import spectr
from spectr import Draft
from spectr.bench.rules import capture_call, workload
from spectr.types import Verdict
from spectr.verify import RULES

pytestmark = pytest.mark.gpu
NAMES = [n for n in RULES if n != "walk"]


def same(left: Verdict, right: Verdict, names: tuple[str, ...] = ("path", "length", "bonus", "corrected")) -> bool:
    return all(torch.equal(getattr(left, name).cpu(), getattr(right, name).cpu()) for name in names)


def on_cpu(draft: Draft) -> Draft:
    parts = {f.name: getattr(draft, f.name) for f in fields(Draft)}
    return Draft(**{k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in parts.items()})


@pytest.mark.parametrize("children", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_captured_eager_and_cpu_verdicts_are_equal(name: str, children: int) -> None:
    rule = spectr.rule(name)
    if children > 1 and not rule.card.tree:
        pytest.skip("chains only")
    kind = "iid" if "iid" in rule.card.siblings else rule.card.siblings[0]
    work = workload(32_000, children, 33, "cuda", kind)
    with no_host_sync():
        eager = rule(work.logits, work.draft, work.coins)
    coins = spectr.SeededCoins(work.coins.seed.cpu(), work.coins.committed.cpu())
    assert same(eager, rule(work.logits.cpu(), on_cpu(work.draft), coins), ("path", "length"))
    kept: list[Verdict] = []
    capture_call(lambda: kept.append(rule(work.logits, work.draft, work.coins)))()
    torch.cuda.synchronize()
    assert same(eager, kept[-1])
