"""The counts and records of a witness, and its cost for the engine, which is only copies."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spectr.audit.reference_coins import coin, noise
from spectr.audit.report import Case, Level
from spectr.audit.row_check import Checked, as_numbers, check_row
from spectr.audit.setup import NOISY, toy_setup
from spectr.audit.witness import Witness
from spectr.audit.witnessed import EIGHT, witnessed_cases, witnessed_faults
from spectr.engine import Request
from spectr.engine.record import Evidence, PendingEvidence, RecordedRow, RowVerdict, StepRecord
from spectr.errors import ArgumentError
from spectr.policy import Policy
from spectr.types import Draft
from spectr.verify import rule
from spectr.verify.race import Race


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.name.endswith(("none", "ngram", "random")) else ())
        for case in witnessed_cases([rule("race"), rule("optimal")])
    ],
    ids=lambda case: case.name,
)
def test_a_correct_engine_has_no_violations(case: Case) -> None:
    (found,) = case.run(Level())
    assert found.status == "holds", found.measured
    assert found.details["rows"] > 400


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if ", optimal" in case.name and "draft" not in case.name else ())
        for case in witnessed_faults("planted")
    ],
    ids=lambda case: case.name,
)
def test_a_planted_fault_is_seen(case: Case) -> None:
    (found,) = case.run(Level())
    assert found.status == "seen", found.measured
    assert found.details["violations"] >= 3
    assert len(found.details["failures"]) <= 8
    assert not found.details["not_covered"]


# One decision


def record(
    logits: Any, tokens: tuple[int, ...], *, named: str = "race", policy: Policy | None = None, **more: Any
) -> StepRecord:
    """Return the record of a step of one row without drafts, after three tokens, that emitted one token."""
    one, no = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.bool)
    text, given = more.pop("text", (3, 4, 5)), torch.as_tensor(logits)
    draft = Draft(one + text[-1], one, ~no, no, None, "fixed", 0, 1)
    request = Request(list(text[:2]), more.pop("seed", 7), more.pop("limit", 9), policy or Policy(), **more)
    verdict = RowVerdict(tokens, 0, False, 1, None, 0)
    row = RecordedRow(0, request, text, verdict)
    return StepRecord(rule(named), frozenset(), [row], PendingEvidence(Evidence(draft, given[None, None])))


def checked(step: StepRecord, **verdict: Any) -> Checked:
    """Check the row with another verdict."""
    row = replace(step.rows[0], verdict=replace(step.rows[0].verdict, **verdict))
    return check_row(step, step.evidence.wait(), row)


def raced(size: int, gap: float) -> Tensor:
    """Float32 logits of about 10 with which, under seed 7 after three tokens, token 1 is ahead of token 0 by so much,
    and all others are far behind."""
    scores = noise(7, 3, np.arange(size))
    logits = np.full(size, -30.0)
    logits[:2] = 10 - scores[:2] + [0, gap]
    return torch.from_numpy(logits)


@pytest.mark.parametrize(
    ("gap", "token", "near", "holds"),
    [(1e-3, 1, False, True), (1e-3, 0, False, False), (2e-6, 1, False, True), (2e-6, 0, True, True)],
)
def test_close_race_scores_are_near_ties(gap: float, token: int, near: bool, holds: bool) -> None:
    """32 roundings of two float32 numbers near 10 amount to 4e-5."""
    found = checked(record(raced(20, gap).float(), (token,)))
    assert (found.is_near_tie, found.failure is None) == (near, holds)
    if found.failure is not None:
        assert (found.failure.emitted, found.failure.expected, found.failure.position) == ((0,), (1,), 3)
        assert found.failure.scores is not None
        assert found.failure.scores[1] - found.failure.scores[0] == pytest.approx(1e-3, abs=1e-5)
        assert "emitted [0], expected [1], with scores" in str(found.failure)


def test_near_ties_are_narrower_in_float64() -> None:
    assert checked(record(raced(20, 2e-6), (0,))).failure is not None
    assert checked(record(raced(20, 2e-14), (0,))).is_near_tie


def test_greedy() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0 - 2e-7, 2.9])
    assert logits[3] < 3
    found = {token: checked(record(logits, (token,), policy=Policy(0))) for token in range(5)}
    assert found[1] == Checked()  # of equal ones the lowest id
    assert found[3].is_near_tie
    assert [found[token].failure is None for token in range(5)] == [False, True, True, True, False]


def test_a_coin_at_its_border() -> None:
    """In a draw of two tokens the border is placed next to the coin."""
    thrown = coin(7, 3, 0, 3)
    for shift, near, holds in ((1e-8, True, True), (-1e-8, False, True), (1e-4, False, False)):
        share = thrown + shift  # of token 0, which is drawn if the coin is below
        logits = torch.tensor([share, 1 - share], dtype=torch.float64).log().float()
        found = checked(record(logits, (1,), named="match"))
        assert (found.is_near_tie, found.failure is None) == (near, holds), shift
        if found.failure is not None:
            assert f"coin {thrown:.9f} of bonus in [0.000000000" in str(found.failure)


@pytest.mark.parametrize("beyond", [1e-8, 1e-3])
@pytest.mark.parametrize("setting", ["top_p", "top_k", "min_p", "epsilon_cutoff"])
def test_the_border_of_a_filter(setting: str, beyond: float) -> None:
    """A token that is beyond a border by so much wins: a near-tie if it may have been inside, else a violation."""
    law = np.array([0.4, 0.3, 0.2, 0.1])
    if setting == "top_k":
        law[2] = law[1] * (1 - max(beyond, 3e-7))  # less would be equal in float32
    law /= law.sum()
    bounds = {"top_p": law[0] + law[1] - beyond, "top_k": 2, "min_p": law[2] / law[0] + beyond}
    policy = Policy(**{setting: bounds.get(setting, law[2] + beyond)})
    seed = next(s for s in range(999) if (np.log(law) + noise(s, 3, np.arange(4))).argmax() == 2)
    found = checked(record(np.log(law).astype(np.float32), (2,), policy=policy, seed=seed))
    assert (found.is_near_tie, found.failure is None) == ((True, True) if beyond < 1e-6 else (False, False))


def test_equal_logits_at_a_border_all_stay() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.bfloat16)
    seeds = [s for s in range(200) if (as_numbers(logits) + noise(s, 3, np.arange(5)))[:4].argmax() == 3]
    for policy in (Policy(top_k=2), Policy(top_p=0.6)):
        found = [checked(record(logits, (3,), policy=policy, seed=seed)) for seed in seeds]
        assert found == [Checked()] * len(seeds)


def test_where_a_text_ends() -> None:
    logits = [10.0, 0.0, 0.0]
    right = record(logits, (0,), policy=Policy(0))
    assert checked(right) == Checked()
    said = "1 tokens kept, ended by stop, in place of 1, ended by None"
    assert said in str(checked(right, finish_reason="stop").failure)
    assert checked(right, count=0).failure is not None
    stopped = record(logits, (0,), policy=Policy(0), stop_ids=frozenset({0}))
    assert checked(stopped).failure is not None
    assert checked(stopped, finish_reason="stop") == Checked()
    full = record(logits, (0,), policy=Policy(0), limit=2)
    assert checked(full).failure is not None
    assert checked(full, finish_reason="length") == Checked()


def test_settings_that_leave_no_token() -> None:
    """The engine continues with the model's own distribution, and ends the text with an error before its token."""
    step = record([0.0, 1.0], (1,), policy=Policy(0, suppress_tokens=[0, 1]))
    assert checked(step).failure is not None
    assert checked(step, count=0, fault=2) == Checked()


def test_a_tree_of_another_text() -> None:
    step = record([10.0, 0.0], (0,), policy=Policy(0), text=(3, 4, 1))
    other = replace(step.rows[0], text=(3, 4, 0))
    failure = check_row(step, step.evidence.wait(), other).failure
    assert failure is not None
    assert failure.what == "a tree that grows from another text"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_of_every_dtype(dtype: torch.dtype) -> None:
    values = torch.cat([torch.randn(1000) * 100, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3e38])]).to(dtype)
    np.testing.assert_array_equal(as_numbers(values), values.double().numpy())
    np.testing.assert_array_equal(as_numbers(values[::3]), values[::3].double().numpy())


# A running engine


def requests(texts: int = 2, policies: Any = EIGHT) -> list[Request]:
    return [
        Request(toy_setup().prompt, 50 * t + r, 16, policy) for t in range(texts) for r, policy in enumerate(policies)
    ]


def run(witness: Witness, asked: list[Request], named: str = "race") -> Any:
    return toy_setup().engine(NOISY, rule(named)).with_parts(witness=witness).generate(asked)


def test_a_witness_changes_no_text() -> None:
    plain = toy_setup().engine(NOISY, rule("race")).generate(requests())
    for share in (0.0, 0.3, 1.0):
        witness = Witness(share)
        assert [one.tokens for one in run(witness, requests())] == [one.tokens for one in plain]
        witness.close()


def test_the_share_is_kept_whatever_is_generated() -> None:
    """Of 20,000 steps a tenth: 2,000, give or take five standard deviations of 42. The choice is a function of seed and
    number."""
    chosen = []
    for seed in (1, 2):
        witness, again = Witness(0.1, seed=seed), Witness(0.1, seed=seed)
        chosen.append([witness.wants_step() for _ in range(20_000)])
        assert abs(sum(chosen[-1]) - 2_000) < 5 * 42.5
        assert [again.wants_step() for _ in range(500)] == chosen[-1][:500]
    assert chosen[0] != chosen[1]
    assert [Witness(0.0).wants_step(), Witness(1.0).wants_step()] == [False, True]
    with pytest.raises(ArgumentError, match="share must lie between 0"):
        Witness(1.5)


def test_a_share_of_the_engines_steps_is_checked() -> None:
    witness = Witness(0.25, room=1 << 20)
    for turn in range(12):
        run(witness, [replace(request, seed=request.seed + 1000 * turn) for request in requests(1)])
    assert witness.drain(60)
    assert witness.steps > 80
    expected = Witness(0.25)
    assert witness.checked == sum(expected.wants_step() for _ in range(witness.steps)) > 8
    assert witness.holds
    witness.close()


class Held(Witness):
    """A witness whose thread waits until the test releases it."""

    def __init__(self, room: int) -> None:
        super().__init__(1.0, room=room)
        self.go, self.longest = threading.Event(), 0

    def add(self, record: StepRecord) -> None:
        super().add(record)
        self.longest = max(self.longest, len(self._work.waiting))

    def _check(self, record: StepRecord) -> None:
        assert self.go.wait(60)
        super()._check(record)


def test_a_witness_that_is_behind_skips_steps_and_stops_nobody() -> None:
    witness = Held(2)
    results = run(witness, requests(4))  # generation ends although nothing is checked
    assert all(result.finish_reason for result in results)
    assert witness.checked == 0
    assert witness.longest <= 2
    assert not witness.drain(0.05)
    witness.go.set()
    assert witness.drain(60)
    assert 2 <= witness.checked <= 3  # those that waited, and one that the thread had
    assert witness.checked + witness.skipped == witness.steps > 10
    witness.close()


def test_what_is_kept_of_a_failure() -> None:
    """Only the first failures are kept, without the text unless it is requested."""
    prompt = tuple(toy_setup().prompt)
    for keeps in (False, True):
        witness = Witness(1.0, room=1 << 20, keeps_texts=keeps)
        toy_setup().engine(NOISY, Other()).with_parts(witness=witness).generate(requests(1, EIGHT[:4]))
        assert witness.drain(60)
        witness.close()
        assert witness.violations > 8
        assert not witness.holds
        assert len(witness.failures) == 8
        failure = witness.failures[0]
        assert failure.position >= len(prompt)
        assert failure.policy in EIGHT
        assert (failure.text is not None and failure.text[: len(prompt)] == prompt) == keeps
        assert witness.as_data()["failures"][0] == str(failure)


class Other(Race):
    """The race with the noise of another seed."""

    def verdict(self, logits: Any, draft: Any, coins: Any, way: Any) -> Any:
        """Decide with other noise."""
        return super().verdict(logits, draft, replace(coins, seed=coins.seed + 1), way)


def test_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    witness = Witness(1.0, room=1 << 20)
    toy_setup().engine(NOISY, Other()).with_parts(witness=witness).generate(requests(1, EIGHT[:4]))
    assert witness.drain(60)
    witness.close()
    assert caplog.text.count("a step did not do what it should") == len(witness.failures)


def even(text: list[int]) -> list[int]:
    """A hook."""
    return [token for token in range(12) if (token + len(text)) % 3]


def test_what_is_not_covered_is_counted_by_its_name() -> None:
    def same(_: Tensor, scores: Tensor) -> Tensor:
        return scores

    class Unknown(Race):
        card = replace(Race.card, name="mine")

    asked = requests(1, [Policy(), Policy(allowed=even), Policy(processors=[same])])
    witness = Witness(1.0, room=1 << 20)
    results = run(witness, asked)
    assert witness.drain(60)
    assert witness.not_covered == {"allowed": len(results[1].steps), "processors": len(results[2].steps)}
    assert witness.rows == len(results[0].steps)
    toy_setup().engine(NOISY, Unknown()).with_parts(witness=witness).generate(requests(1, [Policy()]))
    assert witness.drain(60)
    witness.close()
    assert witness.not_covered["rule mine"] > 0
    assert witness.counts["not_covered"] == sum(witness.not_covered.values())
    assert witness.holds


class Masked(Witness):
    """A witness that receives the tokens allowed by a hook as a mask, as it does for grammars."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__(1.0, room=1 << 20)
        self.shift = shift

    def add(self, record: StepRecord) -> None:
        evidence = record.evidence.wait()
        allowed = torch.zeros(evidence.logits.shape, dtype=torch.bool)
        for row in record.rows:
            for node in range(allowed.shape[1]):
                way = _way(evidence.draft, row.row, node)
                allowed[row.row, node, even([*row.text, *way, *[0] * self.shift])] = True
        plain = [
            replace(row, request=replace(row.request, policy=replace(row.request.policy, allowed=None)))
            for row in record.rows
        ]
        super().add(replace(record, rows=plain, evidence=PendingEvidence(replace(evidence, allowed=allowed))))


def _way(draft: Draft, row: int, node: int) -> list[int]:
    above = [] if node == 0 else _way(draft, row, int(draft.parents[row, node]))
    return above if node == 0 else [*above, int(draft.tokens[row, node])]


def test_masks_are_covered() -> None:
    """A row with a mask is checked, and a wrong mask is detected."""
    policies = [Policy(0.9, allowed=even), Policy(top_p=0.8, repetition_penalty=1.2, allowed=even)]
    for shift in (0, 1):
        witness = Masked(shift)
        run(witness, requests(4, policies))
        assert witness.drain(60)
        witness.close()
        assert witness.not_covered == {}
        assert witness.rows > 20
        assert (witness.violations > 5) == bool(shift), witness.failures


def test_an_error_of_the_check_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*arguments: Any) -> Checked:
        calls.append(arguments)
        if len(calls) % 2:
            raise KeyError("a fault of ours")
        return check_row(*arguments)

    monkeypatch.setattr("spectr.audit.witness.check_row", broken)
    witness = Witness(1.0, room=1 << 20)
    run(witness, requests(1))
    assert witness.drain(60)
    witness.close()
    assert witness.not_covered["an error of the check, KeyError"] == (len(calls) + 1) // 2
    assert witness.rows == len(calls) // 2 > 5
    assert witness.holds


# The thread


def test_a_closed_witness_checks_no_more() -> None:
    witness = Witness(1.0, room=1 << 20)
    run(witness, requests(1))
    assert witness.drain(60)
    witness.close()
    before = witness.checked
    run(witness, requests(1))
    assert (witness.checked, witness.skipped) == (before, 0)
    assert witness._thread is not None
    assert not witness._thread.is_alive()


def test_a_thread_ends_with_its_witness() -> None:
    witness = Witness(1.0)
    run(witness, requests(1))
    assert witness.drain(60)
    thread = witness._thread
    assert thread is not None
    del witness
    thread.join(10)
    assert not thread.is_alive()


SCRIPT = """
import time
from spectr.audit.setup import NOISY, toy_setup
from spectr.audit.witness import Witness
from spectr.audit import witness as module
from spectr.engine import Request
from spectr.verify import rule

slow, witness = module.check_row, Witness(1.0, room=1 << 20)
module.check_row = lambda *given: (time.sleep(0.05), slow(*given))[1]
setup = toy_setup()
engine = setup.engine(NOISY, rule("race")).with_parts(witness=witness)
engine.generate([Request(setup.prompt, seed, 40) for seed in range(64)])
print("left", len(witness._work.waiting) > 3)
"""


def test_a_process_ends_amid_checks() -> None:
    """The process ends immediately and without an error, although checks are pending."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left True\n", "")
    assert time.perf_counter() - start < 60
