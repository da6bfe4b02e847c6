"""The loop that reads one step late gives what the plain loop gives: for every drafter, rule and policy it takes.

On a CPU nothing is captured and the loop is the same; on a GPU the steps are graphs.
"""

import pytest
import torch
from tests.contracts.conftest import llama
from tests.contracts.test_drafters import Make, makers, requests
from transformers import PreTrainedModel

import spectr
from spectr.captured import obstacle
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Job, Request
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.requests import Result

__all__ = ["makers"]

CASES = [
    ("none", "race", Plan()),
    ("model", "race", Plan(drafts=3, length=4, nodes=9)),
    ("model", "race", Plan(tree=(2, 2, 1))),
    ("model", "kseq", Plan("iid", drafts=3, length=3)),
    ("early_exit", "race", Plan(drafts=2, length=3, nodes=6)),
    ("early_exit", "path_block", Plan("iid", drafts=2, length=3)),
    ("feature", "race", Plan(drafts=3, length=4, nodes=9)),
    ("feature", "optimal", Plan("iid", tree=(2, 1, 1))),
    ("blockwise", "match", Plan("fixed", drafts=2, length=3, nodes=6)),
]


def both(engine: Engine, job: Job) -> tuple[list[Result], list[Result]]:
    plain = engine.generate(job)
    engine.capture = True
    return plain, engine.generate(job)


@pytest.mark.parametrize("policy", [Policy(), Policy(0.7, top_k=5), Policy(0)], ids=["one", "cool", "greedy"])
@pytest.mark.parametrize(("name", "rule", "plan"), CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_late_reading_changes_nothing(
    net: PreTrainedModel, makers: dict[str, Make], name: str, rule: str, plan: Plan, policy: Policy
) -> None:
    job = Job(requests(), policy)
    for stops in (frozenset[int](), frozenset({7})):
        engine = Engine(Target(net), makers[name](plan), spectr.rule(rule), stops)
        assert obstacle(engine, job) is None
        plain, late = both(engine, job)
        for one, other in zip(plain, late, strict=True):
            assert one.tokens == other.tokens
            assert one.finish_reason == other.finish_reason
            assert [step.tokens for step in one.steps] == [step.tokens for step in other.steps]
            assert (one.stats.accepted, one.stats.ranks, one.stats.kept) == (
                other.stats.accepted, other.stats.ranks, other.stats.kept,
            )  # fmt: skip


def test_a_stop_string_is_cut_though_it_is_seen_late(net: PreTrainedModel) -> None:
    engine = Engine(Target(net), drafter("none"), spectr.rule("race"))
    job = Job([Request([3], 1, 40, ends=lambda tokens: 1 if 5 in tokens else None)], Policy())
    plain, late = both(engine, job)
    assert plain[0].tokens == late[0].tokens
    assert plain[0].tokens.count(5) == 1
    assert plain[0].finish_reason == late[0].finish_reason == "stop"


def test_what_needs_the_host_is_named(net: PreTrainedModel) -> None:
    engine = Engine(Target(net), drafter("lookup"), spectr.rule("race"))
    assert "works on the host" in (obstacle(engine, Job(requests())) or "")
    engine = Engine(Target(net), drafter("none"), spectr.rule("race"))
    assert "looks at the text" in (obstacle(engine, Job(requests(), Policy(repetition_penalty=1.2))) or "")
    engine.capture = True
    results = engine.generate(Job(requests(), Policy(repetition_penalty=1.2)))  # goes the plain way
    assert [len(result.tokens) for result in results] == [24, 21, 18, 15]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("rule", "plan"), [("race", Plan(drafts=3, length=4, nodes=9)), ("kseq", Plan("iid", 3, 3))])
def test_graphs_give_the_same_text(rule: str, plan: Plan) -> None:
    """Captured and replayed, without a host round trip inside a step."""
    net = llama(3, layers=3).to("cuda")  # type: ignore[arg-type]
    head = Target(head_of(net, 1, (0,)).eval())
    made = drafter("feature", head=head, target=Target(net), plan=plan, wants_features=(0,))
    engine = Engine(Target(net), made, spectr.rule(rule), frozenset({7}))
    plain, late = both(engine, Job(requests(60), Policy()))
    assert [one.tokens for one in plain] == [one.tokens for one in late]
