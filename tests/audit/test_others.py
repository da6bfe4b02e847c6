"""Audits of others: a function, an endpoint over real HTTP, transformers with an assistant model."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import spectr
from spectr.audit import Endpoint, Level, Scope, audit_endpoint, audit_function, audit_sampler, audit_transformers
from spectr.audit.functions import shifted
from spectr.audit.sections import model_law
from spectr.audit.toys import RandomModel
from spectr.errors import ArgumentError, LawError, SpectrError
from spectr.models.baselines import ReplayNet, TransformersSampler, greedy_text, settings_of
from spectr.policy import Policy

SIZE = 24
MODEL = RandomModel(9, 30)


@cache
def right(text: tuple[int, ...]) -> np.ndarray:
    return MODEL(text).numpy()


def wrong(bias: float) -> Callable[[tuple[int, ...]], np.ndarray]:
    def served(text: tuple[int, ...]) -> np.ndarray:
        return right(text) if text else shifted(MODEL(()), bias).numpy()

    return served


Serve = Callable[..., Any]


@pytest.mark.parametrize("kind", ["completions", "chat/completions"])
def test_an_endpoint_that_samples_what_it_states(serve: Serve, kind: str) -> None:
    with serve(right, right) as server:
        endpoint = Endpoint(f"{server.url}/{kind}", "toy", "Once", choices=50, top=8)
        report = audit_endpoint(endpoint, 2, Level(samples=2_000))
    law, stated = report.findings
    assert report.holds, report.findings
    assert law.details["samples"] == 2_000
    assert stated.details["total_variation"] < 1e-9
    assert {asked["seed"] for asked in server.asked} >= {0, 50, 1950}
    assert ("messages" in server.asked[0]) == ("chat" in kind)


def test_an_endpoint_that_samples_another_law_fails(serve: Serve) -> None:
    """A total variation of 0.05 is detected over HTTP, with the number of samples that the audit computes."""
    with serve(right, wrong(0.05)) as server:
        report = audit_endpoint(Endpoint(server.url, "toy", "Once", choices=500, top=8), 1, Level(bias=0.05))
    assert not report.holds
    assert report.findings[0].details["tests"]["first token"]["p_at_most"] < 2.5e-7
    assert report.findings[0].details["samples"] > 10_000


def test_an_endpoint_whose_texts_end(serve: Serve) -> None:
    with serve(right, right, end=4) as server:
        endpoint = Endpoint(server.url, "toy", "Once", choices=100, end="</s>")
        assert audit_endpoint(endpoint, 3, Level(samples=1_000)).holds
        with pytest.raises(ArgumentError, match="--end '</s>'"):
            audit_endpoint(Endpoint(server.url, "toy", "Once"), 3, Level(samples=1_000))


def test_an_endpoint_with_inconsistent_statements_fails(serve: Serve) -> None:
    """Every second statement is of another law, so the sampled law is undefined."""
    calls = [0]

    def moody(text: tuple[int, ...]) -> np.ndarray:
        calls[0] += 1
        return right(text) if calls[0] % 2 else np.sqrt(right(text)) / np.sqrt(right(text)).sum()

    with serve(moody, right) as server:
        report = audit_endpoint(Endpoint(server.url, "toy", "Once"), 1, Level(samples=400))
    assert not report.findings[1].holds


def test_invalid_endpoints_are_refused(serve: Serve) -> None:
    with pytest.raises(SpectrError, match="must answer with JSON, and did not"):
        audit_endpoint(Endpoint("http://127.0.0.1:9", "toy", "Once"), 1, Level(samples=10))
    with serve(right, right) as server, pytest.raises(SpectrError, match=r"answered 400: .*no model another"):
        Endpoint(server.url, "another", "Once").ask(2, 1, 0)
    with serve(right, right) as server, pytest.raises(ArgumentError, match="at least one choice, got none"):
        Endpoint(server.url, "toy", "Once", more={"n": 0}).ask(2, 1, 0)
    with serve(lambda text: 3 * right(text), right) as server, pytest.raises(LawError, match="their sum is"):
        audit_endpoint(Endpoint(server.url, "toy", "Once"), 1, Level(samples=10))


def test_a_function_against_a_function() -> None:
    def target(text: tuple[int, ...]) -> list[float]:
        return [0.2, 0.3, 0.5] if sum(text) % 2 else [0.6, 0.3, 0.1]

    def sample(prompt: list[int], seed: int, tilt: float = 0.0) -> list[int]:
        draw, text = random.Random(seed), list(prompt)
        for _ in range(4):  # one more than is tested
            law = target(tuple(text))
            text += draw.choices(range(3), [law[0] + tilt, law[1], law[2]])
        return text[len(prompt) :]

    level = Level(samples=20_000)
    assert audit_function(sample, target, [1, 2], level=level).holds
    assert not audit_function(lambda p, s: sample(p, s, 0.08), target, [1, 2], level=level).holds
    with pytest.raises(ArgumentError, match="must return token ids, got None"):
        audit_function(lambda _prompt, _seed: None, target, [1], level=level)  # type: ignore[arg-type, return-value]
    with pytest.raises(ArgumentError, match="texts of 3 tokens"):
        audit_function(lambda _prompt, _seed: [1], target, [1], level=level)
    with pytest.raises(LawError, match="must sum to 1"):
        audit_function(sample, lambda _: [0.5, 0.6], [1], level=level)


def test_a_function_against_a_model(lm: spectr.LM) -> None:
    """Plain sampling by transformers passes, and fails at another temperature."""
    net: Any = lm.opened.target.model

    def sample(prompt: list[int], seed: int, temperature: float = 1.0) -> list[int]:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            law = (net(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
        return torch.multinomial(law, 1, generator=draw).tolist()

    level = Level(samples=600)
    assert audit_function(sample, lm, [3, 4, 5], 1, level).holds
    assert not audit_function(lambda p, s: sample(p, s, 0.3), lm, [3, 4, 5], 1, level).holds


def test_transformers_on_replayed_rows(lm: spectr.LM) -> None:
    """Plain and assisted generation pass; the lossy mode is detected and reported as lossy."""
    scope = Scope([[3, 4, 5, 3]], Policy(0.9, top_k=12), drafter="early_exit", vocabulary=16)
    report = audit_transformers(lm, scope, Level(samples=100))
    plain, assisted, ensemble = report.findings
    assert plain.holds
    assert assisted.holds
    assert (ensemble.claim, ensemble.status) == ("lossy", "LOSSY")
    assert report.holds


def test_transformers_itself(lm: spectr.LM, small: LlamaForCausalLM) -> None:
    """Two real models without replay; torch's global generator is not changed."""
    prompt, policy = [3, 4, 5, 3], Policy()
    before = torch.random.get_rng_state()
    net: Any = lm.opened.target.model
    sampler = TransformersSampler(net, prompt, small, **settings_of(policy))
    report = audit_sampler(sampler, model_law(lm, prompt, policy, 2), level=Level(samples=150))
    assert report.holds
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_replayed_net_is_the_net(lm: spectr.LM) -> None:
    """The greedy text of transformers' loop on replayed logits equals that on the model."""
    from spectr.audit.replay import TreeRows

    prompt = (3, 4, 5, 3)
    rows = TreeRows(lm.opened.target, torch.arange(SIZE), {prompt: prompt})
    net: Any = ReplayNet(rows, SIZE, lm.opened.stops)
    ids = torch.tensor([prompt])
    for assistant in (None, ReplayNet(rows, SIZE, lm.opened.stops)):
        more = {} if assistant is None else {"assistant_model": assistant}
        out = net.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6, **more)
        assert out[0, 4:].tolist() == greedy_text(lm.opened, prompt, 6)


def test_what_transformers_is_not_audited_with(lm: spectr.LM) -> None:
    with pytest.raises(ArgumentError, match="with which transformers is audited"):
        settings_of(Policy(0))
    with pytest.raises(ValueError, match="has none; use early_exit"):
        audit_transformers(lm, Scope([[3, 4]], drafter="lookup"))


def test_a_report_is_json() -> None:
    report = audit_function(lambda _, seed: [seed % 2], lambda _: [0.5, 0.5], [0], 1, Level(samples=64))
    found = json.loads(json.dumps(report.as_data("spectr audit"), allow_nan=False))
    assert found["statistics"]["false_alarm_rate"] == 1e-6
    assert found["findings"][0]["seeds"] == [0, 63]
    assert found["versions"]["transformers"]
