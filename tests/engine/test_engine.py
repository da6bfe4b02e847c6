"""The engine on a small real transformer: text does not depend on the drafter, the batch or the tree."""

import pytest
import torch
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM

import spectr
from spectr.draft import drafter
from spectr.engine import Engine, Job, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.target import Target
from spectr.policy import Policy

SIZE = 12


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Random weights, wide enough for laws that are neither flat nor a point; few tokens, so that texts repeat."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    net = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2)
    return net


def engine(
    model: LlamaForCausalLM, name: str, rule: str = "race", stops: frozenset[int] = frozenset(), **options: int
) -> Engine:
    return Engine(Target(model), drafter(name, **options), spectr.rule(rule), stops)


PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2]]


@pytest.mark.parametrize("policy", [Policy(), Policy(0.7, top_k=5), Policy(0)])
def test_text_is_the_same_with_any_drafter_and_batch(model: LlamaForCausalLM, policy: Policy) -> None:
    requests = [Request(prompt, seed=9 + i, max_new_tokens=30 - 7 * i) for i, prompt in enumerate(PROMPTS)]
    alone = [engine(model, "none").generate(Job([request], policy))[0].tokens for request in requests]
    for name, options in (
        ("none", {}),
        ("lookup", {}),
        ("lookup", {"drafts": 8, "length": 3, "longest": 1, "nodes": 20}),
    ):
        results = engine(model, name, **options).generate(Job(requests, policy))
        assert [result.tokens for result in results] == alone
        assert [len(result.tokens) for result in results] == [30, 23, 16]
        if name == "lookup":
            assert sum(result.stats.accepted for result in results) > 0


def test_greedy_text_is_that_of_transformers(model: LlamaForCausalLM) -> None:
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        meant = model.generate(ids, max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0)[
            0, len(prompt) :
        ]
        for rule in ("race", "match"):
            result = engine(model, "lookup", rule).generate(Job([Request(prompt, max_new_tokens=25)], Policy(0)))[0]
            assert result.tokens == meant.tolist()


def test_stop_tokens_end_a_row_at_once(model: LlamaForCausalLM) -> None:
    free = engine(model, "none").generate(Job([Request(PROMPTS[0], 4, 40)], Policy()))[0].tokens
    stop = free[9]
    first = free.index(stop)
    result = engine(model, "lookup", stops=frozenset({stop})).generate(Job([Request(PROMPTS[0], 4, 40)], Policy()))[0]
    assert result.tokens == free[: first + 1]
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("rule", ["race", "match"])
def test_law_of_two_tokens(model: LlamaForCausalLM, rule: str) -> None:
    """Chi-square of 6,000 texts against exact probabilities; false alarms once in 10^7."""
    prompt, count = [3, 4, 3, 4, 3], 6_000
    with torch.no_grad():
        first = (model(torch.tensor([prompt])).logits[0, -1] / 0.8).double().softmax(-1)
        pairs = torch.tensor([[*prompt, x] for x in range(SIZE)])
        second = (model(pairs).logits[:, -1] / 0.8).double().softmax(-1)
    expected = (first[:, None] * second).flatten() * count
    found = torch.zeros(SIZE * SIZE, dtype=torch.float64)
    for start in range(0, count, 500):
        requests = [Request(prompt, seed=start + i, max_new_tokens=2) for i in range(500)]
        for result in engine(model, "lookup", rule).generate(Job(requests, Policy(0.8))):
            found[result.tokens[0] * SIZE + result.tokens[1]] += 1
    likely = expected > 5
    statistic = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    rare = (found[~likely].sum() - expected[~likely].sum()) ** 2 / expected[~likely].sum().clamp_min(5)
    assert float(statistic + rare) < chi2.isf(1e-7, int(likely.sum()))


def test_statistics_add_up(model: LlamaForCausalLM) -> None:
    result = engine(model, "lookup").generate(Job([Request(PROMPTS[0], 1, 40)], Policy(0.3)))[0]
    stats = result.stats
    assert stats.steps + stats.accepted >= len(result.tokens)
    assert stats.block_efficiency == (stats.steps + stats.accepted) / stats.steps
    assert stats.kept[0] <= stats.reached[0] <= stats.steps
    assert sum(stats.kept) == stats.accepted
    assert all(seconds > 0 for seconds in stats.seconds.values())


def test_refusals(model: LlamaForCausalLM) -> None:
    with pytest.raises(MismatchError, match=r"recursive_wor"):
        engine(model, "lookup", "recursive_wor")
    with pytest.raises(ArgumentError, match="at least one token"):
        engine(model, "none").generate(Job([Request([])], Policy()))
    with pytest.raises(ArgumentError, match="max_new_tokens"):
        engine(model, "none").generate(Job([Request([1], max_new_tokens=0)], Policy()))
    with pytest.raises(ArgumentError, match=r"must fit into the model's 256 positions, got 200 \+ 57"):
        engine(model, "none").generate(Job([Request([1] * 200, max_new_tokens=57)], Policy()))


def test_a_text_may_fill_the_context_and_a_tree_may_be_large(model: LlamaForCausalLM) -> None:
    """Trees stand out over the end of the context, and hold more nodes than any margin: neither changes the text."""
    request = Request([3, 4, 5] * 78, seed=2, max_new_tokens=22)
    plain = engine(model, "none").generate(Job([request], Policy(0.3)))[0].tokens
    wide = engine(model, "lookup", drafts=60, length=8, longest=1, nodes=300).generate(Job([request], Policy(0.3)))[0]
    assert wide.tokens == plain
    assert len(plain) == 22
