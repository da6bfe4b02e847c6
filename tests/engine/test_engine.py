"""On a small real transformer the text of the engine does not depend on the drafter, the batch or the tree."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.asking import EndReader, under
from tests.chance import chi_square
from tests.tiny import llama
from transformers import PreTrainedModel

import spectr
from spectr.coins import SeededCoins
from spectr.draft import Plan, drafter
from spectr.draft.trie import draft_of_paths
from spectr.engine import Engine, Request, Result
from spectr.engine.metrics import best_possible
from spectr.errors import ArgumentError, MismatchError
from spectr.models.prefill import pass_sizes
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.trees import topology
from spectr.types import Drafter

SIZE = 12


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return llama(3)


def engine(
    model: PreTrainedModel, name: str, rule: str = "race", stops: frozenset[int] = frozenset(), **options: int
) -> Engine:
    return Engine(Target(model), drafter(name, **options), spectr.rule(rule), stops)


PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2]]


@pytest.mark.parametrize("policy", [Policy(), Policy(0.7, top_k=5), Policy(0)])
def test_text_is_the_same_with_any_drafter_and_batch(model: PreTrainedModel, policy: Policy) -> None:
    requests = [Request(prompt, seed=9 + i, max_new_tokens=30 - 7 * i) for i, prompt in enumerate(PROMPTS)]
    alone = [engine(model, "none").generate(under(policy, [request]))[0].tokens for request in requests]
    for name, options in (
        ("none", {}),
        ("lookup", {}),
        ("lookup", {"drafts": 8, "length": 3, "shortest": 1, "nodes": 20}),
    ):
        results = engine(model, name, **options).generate(under(policy, requests))
        assert [result.tokens for result in results] == alone
        assert [len(result.tokens) for result in results] == [30, 23, 16]
        if options:
            assert sum(result.stats.accepted for result in results) > 0


def test_greedy_text_is_that_of_transformers(model: PreTrainedModel) -> None:
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        meant = model.generate(ids, max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0)[
            0, len(prompt) :
        ]
        for rule in ("race", "match"):
            result = engine(model, "lookup", rule).generate([Request(prompt, 0, 25, Policy(0))])[0]
            assert result.tokens == meant.tolist()


def test_stop_tokens_end_a_row_at_once(model: PreTrainedModel) -> None:
    free = engine(model, "none").generate([Request(PROMPTS[0], 4, 40)])[0].tokens
    stop = free[9]
    first = free.index(stop)
    result = engine(model, "lookup", stops=frozenset({stop})).generate([Request(PROMPTS[0], 4, 40)])[0]
    assert result.tokens == free[: first + 1]
    assert result.finish_reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["race", "match"])
def test_law_of_two_tokens(model: PreTrainedModel, rule: str) -> None:
    """Two generated tokens have the exact distribution (chi-square test of 2,000 texts, false-alarm rate 1e-7)."""
    prompt, count = [3, 4, 3, 4, 3], 2_000
    with torch.no_grad():
        first = (model(torch.tensor([prompt])).logits[0, -1] / 0.8).double().softmax(-1)
        pairs = torch.tensor([[*prompt, x] for x in range(SIZE)])
        second = (model(pairs).logits[:, -1] / 0.8).double().softmax(-1)
    expected = (first[:, None] * second).flatten() * count
    found = torch.zeros(SIZE * SIZE, dtype=torch.float64)
    runs = Engine(Target(model), drafter("lookup"), spectr.rule(rule))
    for result in runs.generate([Request(prompt, seed, 2, Policy(0.8)) for seed in range(count)]):
        found[result.tokens[0] * SIZE + result.tokens[1]] += 1
    assert chi_square(found, expected, 1e-7) < 1


def test_statistics_add_up(model: PreTrainedModel) -> None:
    result = engine(model, "lookup").generate([Request(PROMPTS[0], 1, 40, Policy(0.3))])[0]
    stats = result.stats
    assert stats.emitted == len(result.tokens)
    assert stats.block_efficiency == len(result.tokens) / stats.steps
    assert stats.accepted == sum(step.accepted for step in result.steps)
    assert stats.kept[0] <= stats.reached[0] <= stats.steps
    assert sum(stats.kept) == stats.accepted
    assert all(seconds > 0 for seconds in stats.seconds.values())


def test_invalid_requests_are_refused(model: PreTrainedModel) -> None:
    with pytest.raises(MismatchError, match=r"recursive_wor"):
        engine(model, "lookup", "recursive_wor")
    with pytest.raises(ArgumentError, match="at least one token"):
        engine(model, "none").generate([Request([])])
    with pytest.raises(ArgumentError, match="max_new_tokens"):
        engine(model, "none").generate([Request([1], max_new_tokens=0)])
    with pytest.raises(ArgumentError, match=r"must fit into the model's 256 positions, got 200 \+ 57"):
        engine(model, "none").generate([Request([1] * 200, max_new_tokens=57)])


def test_a_text_may_fill_the_context_and_a_tree_may_be_large(model: PreTrainedModel) -> None:
    """Trees that reach beyond the end of the context, or have very many nodes, do not change the text."""
    request = Request([3, 4, 5] * 78, 2, 22, Policy(0.3))
    plain = engine(model, "none").generate([request])[0].tokens
    wide = engine(model, "lookup", drafts=60, length=8, shortest=1, nodes=300).generate([request])[0]
    assert wide.tokens == plain
    assert len(plain) == 22


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_tokens_beyond_the_end_are_not_counted(model: PreTrainedModel, limit: int) -> None:
    """Statistics count no token beyond the limit. The target drafts for itself, so that almost all drafts are accepted
    and the last step is cut at the end of the text."""
    made = drafter("model", model=Target(model), plan=Plan(drafts=3, length=4))
    requests = [Request(PROMPTS[0], seed, limit, optimality_gap=True) for seed in range(20)]
    for result in Engine(Target(model), made, spectr.rule("race")).generate(requests):
        stats = result.stats
        assert (stats.emitted, stats.steps * stats.block_efficiency) == (limit, limit)
        assert sum(step.accepted for step in result.steps) == stats.accepted == sum(stats.kept) == sum(stats.ranks)
        assert sum(step.corrected for step in result.steps) == stats.corrections
        assert stats.corrections + stats.bonuses + stats.accepted == limit
        assert 0 < stats.best <= stats.measured == sum(stats.reached) <= limit


def test_the_best_coupling_of_fixed_children_is_the_mass_on_them() -> None:
    """For fixed children the best possible acceptance is the target's probability of them."""
    draft = replace(draft_of_paths(torch.tensor([0]), [[(1, 2), (3,)]], 8), laws=torch.full((1, 4, 5), 0.2))
    logits = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(1))
    coins = SeededCoins(torch.tensor([0]), torch.tensor([1]))
    verdict = replace(spectr.rule("match")(logits, draft, coins), path=torch.tensor([[1, -1]]))
    found = best_possible(lambda nodes: logits[0][nodes], draft, topology(draft), verdict)
    law = logits.softmax(-1)[0]
    torch.testing.assert_close(found[0], torch.stack([law[0, 1] + law[0, 3], law[1, 2], torch.tensor(0.0)]))


def ends_at_five(tokens: list[int]) -> int | None:
    return next((at for at, token in enumerate(tokens, start=1) if token == 5), None)


START = PROMPTS[0]


def counted(text: list[int]) -> list[int]:
    """Allow four tokens, then none."""
    return [4, 5, 3] if len(text) < len(START) + 4 else []


def until_five(text: list[int]) -> list[int]:
    """Raise for texts that continue after token 5."""
    assert 5 not in text[len(START) :]
    return [4, 5]


def nothing_after_five(text: list[int]) -> list[int]:
    return [] if 5 in text[len(START) :] else [4, 5]


def until_five_scored(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    for text in ids.tolist():
        until_five(text)
    return scores


@pytest.mark.parametrize(
    ("policy", "most", "ends"),
    [
        (Policy(0.5, allowed=counted), 4, None),
        (Policy(allowed=until_five), 12, ends_at_five),
        (Policy(0, allowed=until_five), 12, ends_at_five),
        (Policy(allowed=nothing_after_five), 12, ends_at_five),
        (
            Policy(processors=[until_five_scored], bad_words=[[t] for t in range(SIZE) if t not in (4, 5)]),
            12,
            ends_at_five,
        ),
    ],
)
def test_a_grammar_may_end_where_the_text_ends(
    model: PreTrainedModel, policy: Policy, most: int, ends: Callable[[list[int]], int | None] | None
) -> None:
    """A hook that allows nothing, or raises, beyond the end of a text is no error, although drafts reach there."""
    reader = None if ends is None else EndReader(ends)
    requests = [Request(START, seed, most, policy, reader=reader) for seed in range(4)]
    meant = [engine(model, "none").generate([request])[0].tokens for request in requests]
    plan = Plan(drafts=3, length=3)
    near = drafter("model", model=Target(model), plan=plan)
    for made in (drafter("lookup"), drafter("ngram", plan=plan), near):
        results = Engine(Target(model), made, spectr.rule("race")).generate(requests)
        assert [result.tokens for result in results] == meant
    with pytest.raises(ArgumentError, match="they leave none after this text"):
        Engine(Target(model), near, spectr.rule("race")).generate([Request(START, 1, 5, Policy(0.5, allowed=counted))])


def small(rule: str, size: int = SIZE - 2, context: int = 256) -> Drafter:
    card = spectr.rule(rule).card
    plan = Plan(card.draws or card.siblings[0], drafts=2, length=2)
    return drafter("model", model=Target(llama(9, size, max_position_embeddings=context)), plan=plan)


@pytest.mark.parametrize(
    ("rule", "temperature"),
    [
        pytest.param(rule, temperature, marks=() if (i + j) % 2 else pytest.mark.slow)
        for i, rule in enumerate(["race", "kseq", "optimal", "match", "traversal", "hybrid"])
        for j, temperature in enumerate([0, 0.5])
    ],
)
def test_only_tokens_that_the_drafter_lacks(model: PreTrainedModel, rule: str, temperature: float) -> None:
    """Texts are right if the policy allows only the two tokens that the drafter's vocabulary lacks."""
    lacking = dict.fromkeys(range(SIZE - 2), -math.inf)
    forced = [Policy(temperature, logit_bias=lacking), Policy(temperature, allowed=lambda _: [SIZE - 1, SIZE - 2])]
    now_and_then = Policy(temperature, allowed=lambda text: [11] if len(text) % 3 == 0 else None)
    for policy in (*forced, now_and_then):
        requests = [Request(START, seed, 9, policy, optimality_gap=True) for seed in range(3)]
        results = Engine(Target(model), small(rule), spectr.rule(rule)).generate(requests)
        assert all(math.isfinite(result.stats.best) for result in results)
        if policy in forced:
            assert all(set(result.tokens) <= {10, 11} for result in results)
        if rule == "race":
            meant = engine(model, "none").generate(requests)
            assert [result.tokens for result in results] == [result.tokens for result in meant]


@pytest.mark.parametrize("context", [2, 4, 16, 40])
def test_a_prompt_longer_than_the_drafters_context(model: PreTrainedModel, context: int) -> None:
    """Texts do not change if prompts are longer than the drafter's context."""
    requests = [Request(START * 5, 1, 30), Request([1, 2], 2, 30), Request(START * 5, 3, 30)]
    meant = [result.tokens for result in engine(model, "none").generate(requests)]
    made = small("race", SIZE, context)
    assert [r.tokens for r in Engine(Target(model), made, spectr.rule("race")).generate(requests)] == meant


def test_a_seed_is_any_whole_number(model: PreTrainedModel) -> None:
    def text(seed: object) -> list[int]:
        return engine(model, "none").generate([Request(START, seed, 12)])[0].tokens  # type: ignore[arg-type]

    assert text(2**64 + 7) == text(7) == text(7 - 2**64) != text(2**63 + 7) == text(7 - 2**63)
    with pytest.raises(ArgumentError, match=r"a seed must be a whole number, got 1\.5"):
        text(1.5)


def test_a_grammar_for_each_row(model: PreTrainedModel) -> None:
    """Each row of a batch has its own hook, and a row without one is not affected."""
    allowed = [lambda _: [3, 4], None, lambda _: [5]]
    requests = [Request(START, seed, length, Policy(allowed=allowed[seed])) for seed, length in enumerate((3, 9, 12))]
    first, middle, last = engine(model, "lookup").generate(requests)
    assert set(first.tokens) <= {3, 4}
    assert set(last.tokens) == {5}
    assert middle.tokens == engine(model, "lookup").generate([Request(START, 1, 9)])[0].tokens


def test_the_warm_up_reads_all_of_its_prompts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt with a beginning that is in the cache would be read by another graph than it should capture."""
    made = Engine(
        Target(llama(3, max_position_embeddings=600)), drafter("none"), spectr.rule("race"), captures=True, rows=16
    )
    asked = list[tuple[int, int]]()
    generate = made.generate

    def watched(requests: list[Request]) -> list[Result]:
        results = generate(requests)
        asked.append((len(requests), len(requests[0].prompt)))
        assert all(result.reused <= 1 for result in results)
        return results

    monkeypatch.setattr(made, "generate", watched)
    made.warm_up(99)
    sizes = pass_sizes()
    assert len(sizes) > 12
    assert all(asked.count(size) == 2 for size in sizes)
    assert [count for count, length in asked if length == 1] == [16, *[1, 2, 4, 8, 16] * 2]
