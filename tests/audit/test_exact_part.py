"""The audits that need no model: policies against their reference, coins and noise, and the loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spectr.audit import Level, examine
from spectr.audit.exact import Loop, Shaping, enumerate_pairs
from spectr.audit.loop import loop_cases, plain_texts, text_policies, texts_case
from spectr.audit.noise import Stream, coin_streams, key_case, noise_cases, noise_streams, race_noise, stream_case
from spectr.audit.policies import POLICIES, policy_cases, tree_case
from spectr.audit.proofs import exact_cases, named_rules
from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.report import Case
from spectr.audit.sections import exact_part
from spectr.audit.setup import NOISY, Setup, toy_setup
from spectr.audit.toys import RandomModel
from spectr.coins import uniform
from spectr.draft import drafter
from spectr.engine import Engine, Request
from spectr.policy import Policy
from spectr.trees import Growth, Shape
from spectr.verify import rule


def status(case: Case, level: Level | None = None) -> str:
    (found,) = case.run(level or Level(tests=100))
    return found.status


REPEATS = ("repetition_penalty below 1, steps", "negative penalties, steps")  # of what other values show


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.name in REPEATS else (), id=case.name)
        for case in policy_cases()
    ],
)
def test_policies_equal_their_reference(case: Case) -> None:
    assert status(case) == "holds"


def test_every_setting_of_a_policy_is_audited() -> None:
    """A setting that is added to the policy needs a reference and a case."""
    names = set(Policy.__dataclass_fields__)
    assert names <= ReferencePolicy.settings()
    plain = Policy()
    used = {name for name in names for policy in POLICIES.values() if getattr(policy, name) != getattr(plain, name)}
    assert used == names


@pytest.mark.parametrize("case", noise_cases(), ids=lambda case: case.name)
def test_coins_and_noise(case: Case) -> None:
    """The false-alarm rate of each test is 10^-8."""
    assert status(case) == "holds"


def test_a_tail_that_is_cut_is_seen() -> None:
    """Coins of ten bits have no value within 2^-11 of 1."""

    def coarse(keys: Tensor) -> Tensor:
        zero = torch.zeros_like(keys)
        coins = [uniform(zero, keys, zero[:, None], purpose) for purpose in (1, 2)]
        return torch.cat([(coin * 1024).floor() / 1024 for coin in coins], 1)

    (found,) = stream_case(Stream("coarse", coarse, 1 << 17, (1,), furthest=0)).run(Level(tests=2))
    assert found.details["tests"]["tail"]["p_at_most"] < 1e-9
    assert found.details["tests"]["apart by 1"]["p_at_most"] > 1e-6
    assert found.details["repeats"] > 0


def test_neighbours_that_depend_on_each_other_are_seen() -> None:
    streams = {stream.name: stream for stream in noise_streams(lambda seed, place: race_noise(seed, place // 2))}
    assert status(stream_case(streams["race noise by position"])) == "FAILS"
    assert status(stream_case(streams["race noise by seed"])) == "holds"
    by_seed = {s.name: s for s in coin_streams(lambda seed, *rest: uniform(seed % (1 << 30), *rest))}
    assert status(stream_case(by_seed["coins by seed"])) == "FAILS"


@pytest.mark.parametrize(
    "coins",
    [
        lambda seed, committed, node, _: uniform(seed, committed, node, 1),
        lambda seed, committed, node, purpose: uniform(seed ^ committed, torch.zeros_like(seed), node, purpose),
        lambda seed, _, node, purpose: uniform(seed, torch.zeros_like(seed), node + purpose, purpose),
    ],
)
def test_keys_that_share_a_coin_are_seen(coins: Callable[..., Tensor]) -> None:
    assert status(key_case(coins)) == "FAILS"


def test_one_stream_for_coins_and_noise_is_seen() -> None:
    def noise(seed: Tensor, position: Tensor) -> Tensor:
        coins = uniform(seed, position, torch.tensor([0, 1]).expand(len(seed), 2), 2)
        return -(-coins.log()).log()

    assert status(key_case(noise=noise)) == "FAILS"


@pytest.fixture(scope="module")
def setup() -> Setup:
    return toy_setup()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_loop(every: int) -> None:
    """Every drafter and policy with the race, also after a long text; and a coupling rule. The quick tier has every
    fourth case."""
    cases = loop_cases([rule("optimal")])
    report = examine([case for at, case in enumerate(cases) if at % every == 0 or "17,000" in case.name])
    assert report.holds, [f for f in report.findings if not f.passes]
    assert any("after 17,000 tokens" in finding.case for finding in report.findings)


def test_texts_of_another_seed_or_policy_differ(setup: Setup) -> None:
    requests = [Request(setup.prompt, seed, 8) for seed in range(6)]
    texts = plain_texts(setup, requests)
    assert len({tuple(text) for text in texts}) > 3
    assert plain_texts(setup, [replace(request, seed=request.seed + 9) for request in requests]) != texts
    for policy in text_policies(setup).values():
        assert plain_texts(setup, [replace(request, policy=policy) for request in requests]) != texts


def test_a_loop_that_counts_positions_wrong_is_seen(setup: Setup) -> None:
    class Late(type(rule("race"))):  # type: ignore[misc]
        def verdict(self, logits: Any, draft: Any, coins: Any, way: Any) -> Any:
            return super().verdict(logits, draft, type(coins)(coins.seed, coins.committed + 1), way)

    engine = Engine(setup.model(), drafter("none"), Late(), setup.stops)
    requests = [Request(setup.prompt, seed, 6) for seed in range(8)]
    found = [result.tokens for result in engine.generate(requests)]
    assert found != plain_texts(setup, requests)
    assert status(texts_case(setup, "race", setup.drafter(NOISY, rule("race")))) == "holds"


def test_stop_tokens_end_enumerated_texts() -> None:
    """No text continues after a stop token, and probabilities still sum to one."""
    shaping = Shaping(Policy(), (0,), frozenset({2}))
    models = (RandomModel(1, 3), RandomModel(2, 3))
    (law,) = enumerate_pairs(rule("kseq"), [models], Growth(Shape.branching((2, 1))), Loop(2, shaping=shaping))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert not any(2 in text[:-1] for text in law)
    assert law.total_variation(models[0]) < 1e-12


def test_what_the_exact_part_holds() -> None:
    sections = {case.section for case in exact_part()}
    assert sections == {"exact", "policy", "noise", "loop", "witness"}
    assert {case.name for case in exact_part(named_rules("kseq"))} == {"kseq × iid", "kseq × hybrid", "kseq × fixed"}
    assert any("optimal_binned" in case.name for case in exact_cases())
    assert tree_case("t", [Policy()]).tests == 0
