"""With every drafter and every rule that supports its siblings, texts have the target's distribution.

Under the race texts equal those of plain decoding; under coupling rules a chi-square test compares the distribution of
two tokens with exact probabilities.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.asking import under
from tests.chance import chi_square
from tests.contracts.conftest import PROMPTS, SIZE, Make, llama, requests
from transformers import PreTrainedModel

import spectr
from spectr.draft import DRAFTERS, Plan, drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.target import Target
from spectr.policy import History, Past, Policy
from spectr.trees import grow
from spectr.types import Drafter


def test_every_registered_drafter_is_here(makers: dict[str, Make]) -> None:
    """A new drafter must be added to these contracts."""
    assert set(DRAFTERS) <= set(makers)


PLANS = {
    "pruned": Plan(drafts=3, length=4, nodes=10),
    "narrow": Plan(drafts=1, length=6, nodes=4),
    "chains": Plan("iid", drafts=3, length=3),
    "tree": Plan("race", tree=(3, 2, 1)),
    "top": Plan("fixed", tree=(2, 2)),
    "likeliest": Plan("fixed", drafts=3, length=3, nodes=8),
    "one": Plan("without_replacement", tree=(4,)),
    "hybrid": Plan("hybrid", tree=(3, 2)),
}
POLICIES = {
    "plain": Policy(),
    "cool": Policy(0.6, top_p=0.9),
    "greedy": Policy(0),
    "penalties": Policy(0.9, repetition_penalty=1.3, frequency_penalty=0.4, bad_words=[[3, 4], [7]], min_new_tokens=4),
}


NAMES = ["lookup", "random", "ngram", "model", "padded", "early_exit", "feature", "blockwise", "mixed"]
NAMES += ["eagle3", "dflash", "dspark", "peagle"]
EVERY = [(name, policy, plan) for name in NAMES for policy in POLICIES for plan in PLANS]
# Two plans for each name and policy, shifted from one policy to the next, so that every pair of values occurs.
PAIRWISE = [
    (name, policy, list(PLANS)[(i + 2 * j + k) % len(PLANS)])
    for i, name in enumerate(NAMES)
    for j, policy in enumerate(POLICIES)
    for k in (0, 1)
]


@pytest.fixture(scope="session")
def plain(net: PreTrainedModel) -> dict[str, list[list[int]]]:
    """The texts of plain decoding, generated one by one, for each policy."""
    engine = Engine(Target(net), drafter("none"), spectr.rule("race"))
    return {
        name: [engine.generate([request])[0].tokens for request in under(policy, requests())]
        for name, policy in POLICIES.items()
    }


@pytest.mark.parametrize(
    ("name", "policy", "plan"),
    [pytest.param(*case, marks=() if case in PAIRWISE else pytest.mark.slow) for case in EVERY],
)
def test_race_text_is_that_of_no_drafter(
    net: PreTrainedModel, makers: dict[str, Make], plain: dict[str, list[list[int]]], name: str, policy: str, plan: str
) -> None:
    """Under the race every drafter gives the text of plain decoding, for every policy and plan."""
    engine = Engine(Target(net), makers[name](PLANS[plan]), spectr.rule("race"))
    results = engine.generate(under(POLICIES[policy], requests()))
    assert [result.tokens for result in results] == plain[policy]
    if name == "model" and PLANS[plan].prunes:
        assert sum(result.stats.accepted for result in results) > 0.3 * sum(map(len, plain[policy]))


def test_a_good_drafter_is_accepted_and_a_bad_one_hardly(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """The statistics of a drafter close to the target show more accepted tokens per step than those of a random one."""
    found = {}
    for name in ("model", "random"):
        engine = Engine(Target(net), makers[name](PLANS["pruned"]), spectr.rule("race"))
        results = engine.generate(requests(60))
        found[name] = sum(r.stats.accepted for r in results) / sum(r.stats.steps for r in results)
    assert found["model"] > 1.3 * found["random"]  # with twelve tokens, shared noise alone already guesses well


@pytest.mark.parametrize(
    ("rule", "names"),
    [("race", None), pytest.param("match", None, marks=pytest.mark.slow), ("match", ["lookup", "eagle3"])],
)
def test_greedy_text_is_that_of_transformers(
    net: PreTrainedModel, makers: dict[str, Make], rule: str, names: list[str] | None
) -> None:
    """With every drafter, under the race and under `match`, greedy texts equal those of transformers."""
    meant = []
    for prompt in PROMPTS[:3]:
        ids = torch.tensor([prompt])
        text = net.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        meant.append(text[0, len(prompt) :].tolist())
    asked = [Request(prompt, 0, 12, Policy(0)) for prompt in PROMPTS[:3]]
    for name in names or makers:
        found = Engine(Target(net), makers[name](PLANS["pruned"]), spectr.rule(rule)).generate(asked)
        assert [result.tokens for result in found] == meant, name


CASES = [
    ("kseq", "iid", "chains", "model"),
    ("optimal", "iid", "chains", "model"),
    ("optimal", "iid", "chains", "ngram"),
    ("optimal", "iid", "chains", "early_exit"),
    ("path_block", "iid", "chains", "model"),
    ("optimal", "iid", "chains", "feature"),
    ("optimal", "iid", "chains", "light"),
    ("optimal", "iid", "chains", "blockwise"),
    ("traversal", "without_replacement", "one", "model"),
    ("recursive_wor", "without_replacement", "one", "ngram"),
    ("hybrid", "hybrid", "hybrid", "model"),
    ("match", "fixed", "top", "model"),
    ("match", "fixed", "likeliest", "model"),
    ("match", "race", "pruned", "mixed"),
    ("race", "race", "pruned", "model"),
    ("race", "race", "pruned", "mixed"),
    ("optimal", "iid", "chains", "eagle3"),
    ("kseq", "iid", "chains", "dflash"),
    ("path_block", "iid", "chains", "dspark"),
    ("race", "race", "pruned", "eagle3"),
    ("hybrid", "hybrid", "hybrid", "eagle3"),
    ("kseq", "iid", "chains", "peagle"),
    ("race", "race", "pruned", "dspark"),
    ("traversal", "without_replacement", "one", "dspark"),
]
LAWS = {
    "cool": Policy(0.8, top_k=9),
    "penalties": Policy(0.9, repetition_penalty=1.4, presence_penalty=0.5, bad_words=[[3, 4], [6]]),
    "hook": Policy(allowed=lambda text: [t for t in range(SIZE) if t != text[-1] and (sum(text) + t) % 5]),
}


def law_of_two(net: PreTrainedModel, prompt: list[int], policy: Policy) -> torch.Tensor:
    """Return the exact probability of every pair of tokens, computed with plain forward passes."""

    def after(texts: list[list[int]], prompts: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            logits = net(torch.tensor(texts)).logits[:, -1:].double()
        history = History.of(prompts, SIZE)
        history.commit([text[len(start) :] for text, start in zip(texts, prompts, strict=True)])
        past = Past(history, torch.empty(len(texts), 1, 0, dtype=torch.int64)) if policy.remembers else None
        return policy(logits, past)[:, 0].double().softmax(-1)

    first = after([prompt], [prompt])
    second = after([[*prompt, token] for token in range(SIZE)], [prompt] * SIZE)
    return (first[0][:, None] * second).flatten()


def surprise(net: PreTrainedModel, made: Drafter, rule: str, policy: Policy, prediction: Sequence[int] = ()) -> float:
    """Return the chi-square statistic of a thousand texts against exact probabilities, relative to its 1 − 1e-8
    quantile. So many show every planted fault below."""
    prompt, count = [3, 4, 3, 4, 3], 1_000
    expected = law_of_two(net, prompt, policy) * count
    engine = Engine(Target(net), made, spectr.rule(rule))
    found = torch.zeros(SIZE * SIZE, dtype=torch.float64)
    for result in engine.generate([Request(prompt, seed, 2, policy, prediction=prediction) for seed in range(count)]):
        found[result.tokens[0] * SIZE + result.tokens[1]] += 1
    return chi_square(found, expected, 1e-8)


@pytest.mark.parametrize(
    ("rule", "siblings", "plan", "name", "policy"),
    [
        pytest.param(*case, policy, marks=() if (at + of) % len(LAWS) == 0 else pytest.mark.slow)
        for at, case in enumerate(CASES)
        for of, policy in enumerate(LAWS)
    ],
)
def test_law_of_two_tokens(
    net: PreTrainedModel, makers: dict[str, Make], rule: str, siblings: str, plan: str, name: str, policy: str
) -> None:
    """Two generated tokens have the exact distribution. The false-alarm rate is 1e-8 per case; there are 72 cases."""
    made = makers[name](PLANS[plan])
    assert made.siblings == siblings
    assert surprise(net, made, rule, LAWS[policy]) < 1


@pytest.mark.parametrize("policy", [pytest.param(p, marks=() if p == "cool" else pytest.mark.slow) for p in LAWS])
@pytest.mark.parametrize(
    ("rule", "name"), [("race", "none"), ("race", "model"), ("match", "lookup"), ("match", "model")]
)
def test_law_of_two_tokens_with_a_reference(
    net: PreTrainedModel, makers: dict[str, Make], rule: str, name: str, policy: str
) -> None:
    """The distribution is exact with a prediction that begins with the most likely tokens.

    The false-alarm rate is 1e-8 per case; there are 12 cases.
    """
    first, second = divmod(int(law_of_two(net, [3, 4, 3, 4, 3], LAWS[policy]).argmax()), SIZE)
    made = makers[name](PLANS["pruned" if rule == "race" else "likeliest"])
    assert surprise(net, made, rule, LAWS[policy], [first, second, 1, 2]) < 1


@pytest.mark.parametrize("rule", ["optimal", pytest.param("race", marks=pytest.mark.slow)])
def test_a_policy_that_forgets_the_path_is_seen(
    net: PreTrainedModel, makers: dict[str, Make], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: the policy of every node depends on the committed text only, not on the path to the node."""

    def forgetful(history: History, paths: torch.Tensor, drafting: bool = False) -> Past:
        return Past(history, paths if drafting else torch.full_like(paths, -1), drafting)

    monkeypatch.setattr("spectr.engine.step.Past", forgetful)
    made = makers["model"](PLANS["pruned" if rule == "race" else "chains"])
    assert surprise(net, made, rule, LAWS["hook"]) > 1


def test_a_draft_law_that_was_not_drawn_from_is_seen(
    net: PreTrainedModel, makers: dict[str, Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: the distribution stored with a draft is flatter than the one it was drawn from."""
    from spectr.draft import plan

    def stored(*arguments: object) -> object:
        draft = grow(*arguments)  # type: ignore[arg-type]
        flat = draft.laws.sqrt()  # type: ignore[union-attr]
        return replace(draft, laws=flat / flat.sum(-1, keepdim=True).clamp_min(1e-9))

    monkeypatch.setattr(plan, "grow", stored)
    assert surprise(net, makers["model"](PLANS["chains"]), "optimal", LAWS["cool"]) > 1


@pytest.mark.parametrize("rule", ["race", "kseq", "optimal", "path_block", "block", "recursive"])
@pytest.mark.parametrize(
    "number", [torch.nan, *(pytest.param(n, marks=pytest.mark.slow) for n in (torch.inf, -torch.inf))], ids=str
)
def test_a_drafter_that_computes_nonsense(rule: str, number: float) -> None:
    """Texts have the target's distribution although some of the drafter's logits are not finite."""
    target, broken = llama(3, layers=3), llama(4)

    def overflow(_: object, given: tuple[torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
        failing = given[0][..., :1] > 0
        assert bool(failing.any())
        return torch.where(failing, torch.full_like(logits, number), logits)

    broken.lm_head.register_forward_hook(overflow)
    plan = Plan(drafts=3, length=2, nodes=7) if rule == "race" else Plan("iid", 1 if rule == "block" else 3, 2)
    made = drafter("model", model=Target(broken), plan=plan)
    assert surprise(target, made, rule, LAWS["cool"]) < 1


def test_nonsense_that_was_not_drawn_from_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the distribution stored for a node with invalid logits is not the one that was drawn from."""
    from spectr.draft import plan

    def stored(*arguments: object) -> object:
        draft = grow(*arguments)  # type: ignore[arg-type]
        tilted = draft.laws * torch.linspace(0.1, 2, SIZE)  # type: ignore[operator]
        return replace(draft, laws=tilted / tilted.sum(-1, keepdim=True).clamp_min(1e-9))

    broken = llama(4)
    broken.lm_head.register_forward_hook(lambda _, __, logits: logits * torch.nan)
    made = drafter("model", model=Target(broken), plan=Plan("iid", 3, 2))
    assert surprise(llama(3, layers=3), made, "optimal", LAWS["cool"]) < 1
    monkeypatch.setattr(plan, "grow", stored)
    assert surprise(llama(3, layers=3), made, "optimal", LAWS["cool"]) > 1


@pytest.mark.parametrize("rule", ["kseq", "optimal", "path_block", "block", "recursive"])
def test_nonsense_is_drafted_as_the_policy_allows(rule: str) -> None:
    """Where the drafter's logits are NaN, drafts follow the policy: greedy decoding, and a forbidden token."""
    target, broken = llama(3, layers=3), llama(4)
    broken.lm_head.register_forward_hook(lambda _, __, logits: logits * torch.nan)
    plan = Plan("iid", 1 if rule == "block" else 3, 2)
    engine = Engine(Target(target), drafter("model", model=Target(broken), plan=plan), spectr.rule(rule))
    plain = Engine(Target(target), drafter("none"), spectr.rule("race"))
    for policy in (Policy(0), Policy(0, bad_words=[[3]])):
        found, meant = (one.generate(under(policy, requests())) for one in (engine, plain))
        assert [r.tokens for r in found] == [r.tokens for r in meant]


def test_what_overflows_in_float16_stays_where_it_is() -> None:
    """Logits of the drafter that overflow at one node of one call do not reduce acceptance in later steps."""
    target, calls = llama(3, layers=3), 0
    broken = llama(3, layers=3).to(torch.float16)  # type: ignore[arg-type]

    def overflow(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls != 4:
            return output
        output = output.clone()
        output[:, -1] = torch.nan
        return output

    def pace() -> float:
        made = drafter("model", model=Target(broken), plan=Plan(drafts=3, length=3, nodes=9))
        (result,) = Engine(Target(target), made, spectr.rule("race")).generate([Request([3, 4], 1, 60)])
        return len(result.tokens) / len(result.steps)

    usual = pace()
    broken.model.layers[0].register_forward_hook(overflow)
    assert pace() > usual - 0.5
    assert calls > 8


@pytest.mark.parametrize("name", ["model", "ngram", "early_exit", "feature", "eagle3", "dspark"])
@pytest.mark.parametrize("rule", ["optimal", "path_block", "match"])
def test_coupling_rules_do_not_depend_on_the_batch(
    net: PreTrainedModel, makers: dict[str, Make], rule: str, name: str
) -> None:
    """The same plan and seed give the same text alone and in a batch."""
    engine = Engine(Target(net), makers[name](PLANS["chains"]), spectr.rule(rule))
    together = [result.tokens for result in engine.generate(requests(16))]
    assert together == [engine.generate([request])[0].tokens for request in requests(16)]


def test_what_does_not_fit_is_refused(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """Rules refuse drafters with unsupported siblings or without distributions; invalid plans are refused."""
    with pytest.raises(MismatchError, match="holds for siblings"):
        Engine(Target(net), makers["model"](PLANS["pruned"]), spectr.rule("optimal"))
    with pytest.raises(MismatchError, match="needs the distribution that each child was drawn from"):
        Engine(Target(net), makers["lookup"](PLANS["pruned"]), spectr.rule("optimal"))
    with pytest.raises(ArgumentError, match="drafts must be at least 1, got 0"):
        Plan(drafts=0)
    with pytest.raises(ArgumentError, match="must fit into nodes=8, it has 17"):
        Plan("iid", nodes=8)
    with pytest.raises(ArgumentError, match="must be below 12, the target's vocabulary size, got 40"):
        Engine(Target(net), drafter("ngram", plan=Plan(), text=[40]), spectr.rule("race")).generate([Request([1])])
