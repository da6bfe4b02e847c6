"""Traced steps contain the drafted trees with the probabilities under drafter and target."""

import pytest
import torch
from tests.tiny import llama

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import SwitchingDrafter
from spectr.engine import Engine, Request, Step
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.types import Drafter

PROMPT = [3, 4, 5, 3, 4, 5, 3]


def engine(rule: str, name: str) -> Engine:
    plan = {"race": Plan(drafts=3, length=3, nodes=8), "kseq": Plan("iid", drafts=3, length=2)}.get(rule)
    made: Drafter = drafter(name, plan=plan) if name in ("random", "ngram") else drafter(name)
    return Engine(Target(llama(3)), made, spectr.rule(rule))


def law(model: torch.nn.Module, text: list[int], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        return (model(torch.tensor([text])).logits[0, -1] / temperature).softmax(-1)


@pytest.mark.parametrize(("rule", "name"), [("race", "ngram"), ("race", "lookup"), ("kseq", "ngram"), ("race", "none")])
def test_a_traced_tree_is_the_draft(rule: str, name: str) -> None:
    """A traced tree has the drafted nodes, their probabilities and origins; tracing does not change the text."""
    made, policy = engine(rule, name), Policy(0.8)
    plain = made.generate([Request(PROMPT, 5, 30, policy)])[0]
    found = made.generate([Request(PROMPT, 5, 30, policy, trace=True)])[0]
    assert found.tokens == plain.tokens
    assert all(step.tree is None for step in plain.steps)
    text = list(PROMPT)
    for step in found.steps:
        _check(step, text, made.target.model, policy.temperature, name)  # type: ignore[attr-defined]
        text += step.tokens


def _check(step: Step, text: list[int], model: torch.nn.Module, temperature: float, name: str) -> None:
    tree = step.tree
    assert tree is not None
    assert tree.nodes[0].token == text[-1]
    assert len(tree.nodes) == step.drafted + 1
    paths: list[list[int]] = [[]]
    for place, node in enumerate(tree.nodes[1:], start=1):
        assert node.parent is not None
        assert node.parent < place
        paths.append([*paths[node.parent], node.token])
        meant = law(model, [*text, *paths[node.parent]], temperature)[node.token]
        assert node.target == pytest.approx(float(meant), abs=1e-6)
        assert (node.draft is None) == (name == "lookup")
        assert node.origin == ("lookup" if name == "lookup" else "drafter")
    kept = [node.token for node in tree.nodes if node.accepted]
    assert kept[: len(step.tokens)] == step.tokens[: len(kept)]
    assert paths[tree.last] == kept
    if len(step.tokens) > len(kept):
        meant = law(model, [*text, *kept], temperature)[step.tokens[-1]]
        assert tree.added == pytest.approx(float(meant), abs=1e-6)
        own = "correction" if step.corrected else "bonus" if step.drafted else "plain"
        assert step.origins == [*[tree.nodes[1].origin if kept else ""] * len(kept), own]


def test_origins_of_a_prediction() -> None:
    """Tokens that were drafted from a prediction are marked as such."""
    made = engine("race", "ngram")
    text = made.generate([Request(PROMPT, 5, 30)])[0].tokens
    found = made.generate([Request(PROMPT, 5, 30, trace=True, prediction=text)])[0]
    assert found.tokens == text
    origins = [origin for step in found.steps for origin in step.origins]
    assert len(origins) == 30
    assert "prediction" in origins


@pytest.mark.parametrize("switching", [False, True])
def test_a_prediction_does_not_change_the_origins_of_other_drafts(switching: bool) -> None:
    """Drafts of lookup are traced as such, whether the request has a prediction, which may be wrong, or not; and
    whether lookup drafts every step or was chosen for this one."""
    lookup = drafter("lookup")
    made: Drafter = SwitchingDrafter((drafter("none"), lookup), lambda _: 1) if switching else lookup
    own = Engine(Target(llama(3)), made, spectr.rule("race"))
    for prediction in ([], [1, 2, 1, 1, 9, 8, 7, 1, 2, 2]):
        found = own.generate([Request(PROMPT, 5, 60, Policy(0.3), trace=True, prediction=prediction)])[0]
        trees = [step.tree for step in found.steps if step.tree is not None]
        origins = {node.origin for tree in trees for node in tree.nodes[1:]}
        assert "lookup" in origins
        assert origins <= {"lookup", "prediction"}
