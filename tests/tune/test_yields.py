"""What is counted without drawing it is what generation counts: for every tree, drafter and policy, step for step."""

from itertools import product

import pytest
from transformers import PreTrainedModel

import spectr
from spectr import Growth, Shape
from spectr.audit import enumerate_steps
from spectr.audit.toys import toy_pair
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import AdaptiveDrafter, Option, replanned
from spectr.draft.chooser import Fixed
from spectr.engine import Engine, Job, Request
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.tune.pool import Pool, accepted
from spectr.tune.yields import Pruning, Text, Tree, census, pool_yields, tree_yield, walk
from spectr.types import Drafter

PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2]]
SPREADS = (0.67, 1.0, 1.5)
WIDEST = Plan(drafts=8, length=4, nodes=17)


def requests(length: int = 24) -> list[Request]:
    return [Request(prompt, seed=3 + i, max_new_tokens=length) for i, prompt in enumerate(PROMPTS)]


def counted(net: PreTrainedModel, made: Drafter, policy: Policy) -> tuple[int, int]:
    """Tokens and steps of real generation."""
    results = Engine(Target(net), made, spectr.rule("race")).generate(Job(requests(), policy))
    return sum(len(r.tokens) for r in results), sum(r.stats.steps for r in results)


def told(net: PreTrainedModel, drafters: list[Drafter], policy: Policy) -> list[Text]:
    plain = Engine(Target(net), drafter("none"), spectr.rule("race"))
    return census(plain, drafters, SPREADS, Job(requests(), policy))


@pytest.mark.parametrize("heat", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("name", ["model", "feature"])
def test_one_pool_has_all_trees(net: PreTrainedModel, near: Target, name: str, heat: float) -> None:
    """For the beam and the spread that were drawn: the very steps of generation, for every size and depth."""
    base = {
        "model": drafter("model", model=near, plan=WIDEST),
        "feature": drafter("feature", head=Target(head_of(net, 1)), target=Target(net), plan=WIDEST),
    }[name]
    texts = told(net, [base], Policy(heat))
    trees = [Pruning(nodes, depth, 8, 1.0) for nodes, depth in product((2, 4, 17), (1, 2, 4))]
    found = pool_yields(texts, 0, trees)
    for tree in trees:
        plan = Plan(drafts=tree.beam, length=tree.depth, nodes=tree.nodes)
        assert (found[tree].tokens, found[tree].steps) == counted(net, replanned(base, plan), Policy(heat)), tree


def test_smaller_beams_and_other_spreads(net: PreTrainedModel, near: Target) -> None:
    """Up to nodes that the draft did not expand: never more than one step in a hundred apart."""
    base = drafter("model", model=near, plan=WIDEST)
    texts = told(net, [base], Policy())
    trees = [Pruning(nodes, 4, beam, spread) for nodes, beam, spread in product((4, 9), (1, 3), SPREADS)]
    found, apart = pool_yields(texts, 0, trees), []
    for tree in trees:
        option = Option(replanned(base, Plan(drafts=tree.beam, length=4, nodes=tree.nodes)), tree.spread)
        made = AdaptiveDrafter((Option(drafter("none")), option), lambda _: Fixed(1))
        apart.append(abs(found[tree].steps / counted(net, made, Policy())[1] - 1))
    assert max(apart) < 0.01
    assert apart.count(0.0) > 0.8 * len(apart)


def test_drafters_without_pools(net: PreTrainedModel, near: Target) -> None:
    """Trees as they are: a lookup, a static tree, a mix, several of them in one census."""
    several = [
        drafter("lookup", shortest=1), drafter("model", model=near, plan=Plan("race", tree=(3, 2))),
        drafter("mixed", parts=[drafter("lookup", shortest=1), drafter("model", model=near, plan=Plan(nodes=5))]),
    ]  # fmt: skip
    texts = told(net, several, Policy(0.7))
    for place, one in enumerate(several):
        found = tree_yield(texts, place)
        assert (found.tokens, found.steps) == counted(net, one, Policy(0.7))
        assert sum(found.nodes.values()) == found.steps
    assert set(tree_yield(texts, 1).nodes) == {10}
    assert len(tree_yield(texts, 0).nodes) > 1


def test_a_text_that_is_cut_ends_a_step() -> None:
    tree = Tree(4, {(0, 5): 1, (1, 6): 2, (2, 7): 3})
    found = walk([Text([5, 6, 7, 5, 6], [[tree]] * 5)], lambda text, at: (tree.accepted(text.tokens[at:]), tree.nodes))
    assert (found.tokens, found.steps, found.block_efficiency) == (5, 2, 2.5)


def test_more_nodes_and_depths_never_accept_less(net: PreTrainedModel, near: Target) -> None:
    (text, *_) = told(net, [drafter("model", model=near, plan=WIDEST)], Policy())
    for at, (pool,) in enumerate(text.records):
        assert isinstance(pool, Pool)
        places = pool.places(text.tokens[at : at + 4], 8, 1.0)
        assert [len(some) for some in places] == sorted(len(some) for some in places)
        for depth in (1, 2, 3, 4):
            lengths = [accepted(places, nodes, depth) for nodes in range(2, 18)]
            assert lengths == sorted(lengths)
            assert max(lengths) <= depth


@pytest.mark.parametrize("name", ["optimal", "kseq", "path_block", "block", "hybrid", "recursive"])
def test_where_a_draft_ends_changes_nothing_above(name: str) -> None:
    """Enumerated: at least i tokens are kept with one chance, whatever the length from i on. So one count will do."""
    rule = spectr.rule(name)
    siblings, drafts = rule.card.draws or rule.card.siblings[0], 2 if rule.card.tree else 1
    for case in ("plain", "zeros", "temperature"):
        target, draft = toy_pair(case, 2, 5)
        kept = []
        for length in (1, 2, 3):
            law = enumerate_steps(rule, (target, draft), Growth(Shape.chains(drafts, length), siblings))
            kept.append([sum(c for text, c in law.items() if len(text) > i) for i in range(1, length + 1)])
        for shorter, longer in ((0, 1), (1, 2)):
            assert kept[longer][: shorter + 1] == pytest.approx(kept[shorter], abs=1e-12), case
