"""Log-probabilities of generated tokens and of prompts are those of the model itself, with any policy and any other
requests."""

from dataclasses import replace

import pytest
import torch
from tests.asking import trace
from tests.late import run_as_on_a_gpu
from tests.tiny import llama
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Request, Result, TokenLogprobs
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy

PROMPT = [3, 4, 5, 3, 4, 5, 3, 1, 2, 8, 9, 3, 4]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return llama(3)


def engine(model: PreTrainedModel, name: str) -> Engine:
    target, plan = Target(model), Plan(drafts=3, length=3, nodes=8)
    options = {
        "none": {},
        "lookup": {},
        "model": {"model": Target(llama(4)), "plan": plan},
        "feature": {"head": Target(head_of(model, 1)), "target": target, "plan": plan},
    }
    return Engine(target, drafter(name, **options[name]), spectr.rule("race"))


def laws(model: PreTrainedModel, text: list[int]) -> torch.Tensor:
    """Return the log-probabilities of the model after each token, (L, V)."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([text])).logits[0]
    return logits.float().log_softmax(-1)


def check(found: TokenLogprobs, law: torch.Tensor, token: int, top: int) -> None:
    assert found.logprob == pytest.approx(float(law[token]), abs=1e-5)
    best = law.topk(top)
    assert [token for token, _ in found.top] == best.indices.tolist()
    assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def check_text(model: PreTrainedModel, request: Request, result: Result) -> None:
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.tokens)
    after = laws(model, [*request.prompt, *request.generated, *result.tokens])[len(request.tokens) - 1 :]
    for place, token in enumerate(result.tokens):
        check(result.logprobs[place], after[place], token, request.logprobs or 0)


@pytest.mark.parametrize(
    ("name", "late"),
    [
        pytest.param(name, late, marks=() if (at + late) % 2 == 0 else pytest.mark.slow)
        for at, name in enumerate(["none", "lookup", "model", "feature"])
        for late in (False, True)
    ],
)
def test_logprobs_of_generated_tokens(
    model: PreTrainedModel, name: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request gets as many log-probabilities as it asks for, and its steps do not depend on that."""
    policies = [Policy(0.5), Policy(0), Policy(top_k=3, repetition_penalty=1.3), Policy()]
    plain = [Request(PROMPT[row:], row, 20 - row, policy) for row, policy in enumerate(policies)]
    want = [trace(result) for result in engine(model, name).generate(plain)]
    asked = [replace(request, logprobs=count) for request, count in zip(plain, (0, 7, None, 12), strict=True)]
    asked.append(Request(PROMPT, 9, 20, generated=[1, 2, 3], logprobs=2))
    if late:
        run_as_on_a_gpu(monkeypatch)
    made = engine(model, name)
    found = made.generate(asked)
    assert [trace(result) for result in found[:4]] == want
    for request, result in zip(asked, found, strict=True):
        if request.logprobs is None:
            assert result.logprobs is None
        else:
            check_text(model, request, result)
    assert [step.logprobs for step in found[2].steps] == [None] * len(found[2].steps)


@pytest.mark.parametrize("name", ["none", "lookup", "model", "feature"])
def test_logprobs_of_the_prompt(model: PreTrainedModel, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompt tokens but the first get a log-probability, also in chunks and in a batch; steps stay the same."""
    monkeypatch.setattr("spectr.engine.prefill._SCORED_CHUNK", 5)
    plain = [
        Request(PROMPT, 1, 16),
        Request(PROMPT[:1], 2, 9),
        Request(PROMPT, 3, 12, Policy(0)),
        Request(PROMPT, 4, 9),
    ]
    plain.append(Request(PROMPT, 9, 20, generated=[1, 2, 3]))
    want = [trace(result) for result in engine(model, name).generate(plain)]
    counts = (0, 3, None, 12, 2)
    asked = [replace(request, prompt_logprobs=count) for request, count in zip(plain, counts, strict=True)]
    made = engine(model, name)
    for _ in range(2):  # the second time the prefixes are cached, but the prompts must still be scored
        found = made.generate(asked)
        assert [trace(result) for result in found] == want
        for request, result in zip(asked, found, strict=True):
            if request.prompt_logprobs is None:
                assert result.prompt_logprobs is None
                continue
            assert result.prompt_logprobs is not None
            assert result.reused == 0
            assert len(result.prompt_logprobs) == len(request.prompt)
            assert result.prompt_logprobs[0] is None
            after = laws(model, list(request.prompt))
            for place, token in enumerate(request.prompt[1:]):
                known = result.prompt_logprobs[place + 1]
                assert known is not None
                check(known, after[place], token, request.prompt_logprobs)


def test_logprobs_of_both_with_the_optimality_gap(model: PreTrainedModel) -> None:
    request = Request(PROMPT, 1, 16, logprobs=2, prompt_logprobs=1, optimality_gap=True)
    result = engine(model, "model").generate([request])[0]
    check_text(model, request, result)
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(PROMPT)
    assert result.stats.measured > 0
