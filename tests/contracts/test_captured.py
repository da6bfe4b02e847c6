"""The loop that reads one step late gives what the plain loop gives: for every drafter, rule and policy it takes.

On a CPU nothing is captured and the loop is the same; on a GPU the steps are graphs.
"""

import warnings
from typing import Any

import pytest
import torch
from tests.contracts.conftest import Make, llama, requests
from tests.gpu import no_host_sync
from transformers import PreTrainedModel

import spectr
from spectr.captured import obstacle
from spectr.draft import Plan, drafter
from spectr.engine import Batch, Engine, Job, Request
from spectr.errors import LawError, MismatchError
from spectr.metrics import Stats
from spectr.models.blockwise import blockwise_of
from spectr.models.early import truncated
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.reading import numbers_of
from spectr.requests import Memory, Result, Step

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
    ("random", "race", Plan(drafts=2, length=3, nodes=6)),
]
POLICIES = [Policy(), Policy(0.7, top_k=5), Policy(0)]


def both(engine: Engine, job: Job) -> tuple[list[Result], list[Result]]:
    plain = engine.generate(job)
    engine.capture = True
    return plain, engine.generate(job)


@pytest.mark.parametrize(
    ("name", "rule", "plan", "policy"),
    [
        pytest.param(*case, policy, marks=() if (at + of) % len(POLICIES) == 0 else pytest.mark.slow)
        for at, case in enumerate(CASES)
        for of, policy in enumerate(POLICIES)
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
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
    engine.capture = True
    with pytest.warns(UserWarning, match="looks at the text on the host"):
        results = engine.generate(Job(requests(), Policy(repetition_penalty=1.2)))  # goes the plain way
    assert [len(result.tokens) for result in results] == [24, 21, 18, 15]
    engine.generate(Job(requests(), Policy(repetition_penalty=1.3)))  # said once, and warnings are errors here


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("rule", "plan"), [("race", Plan(nodes=6)), ("optimal", Plan("iid", 2, 2))], ids=str)
def test_a_target_that_computes_nonsense_is_named(late: bool, rule: str, plan: Plan) -> None:
    """What was written before it did is not lost."""
    net, calls = llama(3, layers=3), 0

    def overflow(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return logits if calls < 6 else logits * torch.nan

    net.lm_head.register_forward_hook(overflow)
    engine = Engine(Target(net), drafter("model", model=Target(llama(4)), plan=plan), spectr.rule(rule))
    engine.capture, written = late, list[Step]()
    with pytest.raises(LawError, match="are NaN or infinite; load it in another dtype"):
        written.extend(engine.stream(Job([Request([3, 4], 1, 60)]), [Stats()]))
    assert 3 <= len(written) < 60


@pytest.mark.parametrize("name", ["model", "feature", "early_exit"])
def test_jobs_take_over_buffers(net: PreTrainedModel, makers: dict[str, Make], name: str) -> None:
    """One stage serves rows of other prompts, lengths and policies, filled up where they are fewer; texts are those of
    the plain loop."""
    plan = Plan(drafts=2, length=3, nodes=6)
    plain, late = (Engine(Target(net), makers[name](plan), spectr.rule("race"), frozenset({7})) for _ in range(2))
    late.capture = True
    jobs = [Job(requests(), Policy()), Job(requests()[:3], Policy(0.5)), Job([requests()[2]] * 4, Policy(0)),
            Job([Request([5, 6, 7, 8] * 9, 3, 4), Request([3], 4, 60), Request([9, 2], 5, 31)], Policy())]  # fmt: skip
    for job in [*jobs, *jobs]:
        assert [r.tokens for r in late.generate(job)] == [r.tokens for r in plain.generate(job)]
    assert len(late.stages.kept) == 1
    (stage,) = late.stages.kept.values()
    assert stage.batch.session.rows == 4
    assert not stage.is_taken


def sharing(engine: Engine) -> tuple[list[list[int]], float, float]:
    """Texts of four rows, and the draft tokens of a step when they are four, and when it is one."""
    job, alone = Job(requests()), Job(requests()[:1])
    together, one = engine.generate(job), engine.generate(alone)[0]
    assert together[0].tokens == one.tokens
    first = together[0].stats
    return [r.tokens for r in together], first.drafted / first.steps, one.stats.drafted / one.stats.steps


@pytest.mark.parametrize("late", [False, True])
def test_rows_share_a_tree(net: PreTrainedModel, makers: dict[str, Make], late: bool) -> None:
    """Nodes that rows have together: each has fewer, and its text is the same."""
    engine = Engine(Target(net), makers["feature"](Plan(drafts=4, length=4, nodes=24, shared=24)), spectr.rule("race"))
    engine.capture = late
    plain = Engine(Target(net), drafter("none"), spectr.rule("race")).generate(Job(requests()))
    texts, drafted, drafted_alone = sharing(engine)
    assert texts == [r.tokens for r in plain]
    assert 3 <= drafted < 10  # of six nodes one is the root; rows that end leave the plain loop more
    assert 12 < drafted_alone <= 23


def test_only_the_race_lets_rows_share(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    with pytest.raises(MismatchError, match="a text would hang on the batch it is in"):
        Engine(Target(net), makers["feature"](Plan("fixed", 4, 4, 24, shared=24)), spectr.rule("match"))


def test_two_texts_at_once(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """A stage in use is left alone."""
    engine = Engine(Target(net), makers["feature"](Plan(nodes=5)), spectr.rule("race"))
    jobs = [Job([Request([3, 4], seed, 20)]) for seed in (1, 2)]
    want = [engine.generate(job)[0].tokens for job in jobs]
    engine.capture = True
    streams = [engine.stream(job, [Stats()]) for job in jobs]
    found = [list(next(stream).tokens) for stream in streams]  # both have begun
    while any(steps := [next(stream, None) for stream in streams]):
        for tokens, step in zip(found, steps, strict=True):
            tokens += [] if step is None else step.tokens
    assert found == want


@pytest.mark.parametrize("name", ["none", "model", "feature", "early_exit"])
def test_a_conversation_is_not_read_again(net: PreTrainedModel, makers: dict[str, Make], name: str) -> None:
    """What the turn before left is kept, up to where the texts part."""
    late, plain = (Engine(Target(net), makers[name](Plan(nodes=5)), spectr.rule("race")) for _ in range(2))
    late.capture = True
    memory, prompt = Memory(), [3, 4, 5, 6]
    for turn in range(3):
        job = Job([Request(prompt, turn, 12)])
        said = [token for step in late.stream(job, [Stats()], memory) for token in step.tokens]
        assert said == plain.generate(job)[0].tokens
        assert len(prompt) > memory.reused >= (0 if turn == 0 else len(prompt) - 4)
        prompt = [*prompt, *said[:-2], 9, 8, 7, 6]


def test_turns_of_both_kinds(net: PreTrainedModel) -> None:
    """Captured, step by step since a penalty looks at the text, and captured again: each begins with what fits it."""
    late, plain = (Engine(Target(net), drafter("none"), spectr.rule("race")) for _ in range(2))
    late.capture = True
    memory, prompt = Memory(), [3, 4, 5, 6]
    for turn, penalty in enumerate((1.0, 1.3, 1.3, 1.0, 1.0)):
        job = Job([Request(prompt, turn, 10)], Policy(repetition_penalty=penalty))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = [token for step in late.stream(job, [Stats()], memory) for token in step.tokens]
        assert said == plain.generate(job)[0].tokens
        prompt = [*prompt, *said, 9]


def test_a_stage_outlives_the_mode_it_was_made_in(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    engine, job = Engine(Target(net), makers["feature"](Plan(nodes=5)), spectr.rule("race")), Job(requests())
    plain = [result.tokens for result in engine.generate(job)]
    engine.capture = True
    with torch.inference_mode():
        assert [result.tokens for result in engine.generate(job)] == plain
    assert [result.tokens for result in engine.generate(job)] == plain


def test_a_turn_that_begins_before_the_last_has_ended(net: PreTrainedModel) -> None:
    """It gets buffers of its own, and what the first leaves behind is not taken for what they hold."""
    late, plain = (Engine(Target(net), drafter("none"), spectr.rule("race")) for _ in range(2))
    late.capture = True
    jobs, memory = [Job([Request([3, 4, 5], seed, 20)]) for seed in (1, 2, 3)], Memory()
    want = [plain.generate(job)[0].tokens for job in jobs]
    first, second = (late.stream(job, [Stats()], memory) for job in jobs[:2])
    found = [next(first).tokens, next(second).tokens]
    for tokens, rest in zip(found, (first, second), strict=True):
        tokens += [token for step in rest for token in step.tokens]
    assert found == want[:2]
    assert [token for step in late.stream(jobs[2], [Stats()], memory) for token in step.tokens] == want[2]


def test_a_turn_that_fails_leaves_nothing_to_rely_on(net: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, memory = Engine(Target(net), drafter("none"), spectr.rule("race")), Memory()
    engine.capture = True
    said = [t for step in engine.stream(Job([Request([3, 4, 5, 6], 1, 9)]), [Stats()], memory) for t in step.tokens]
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(engine.stream(Job([Request([3, 4, 9, 9, 9], 2, 9)]), [Stats()], memory))
    job = Job([Request([3, 4, 5, 6, *said, 7], 3, 9)])
    found = [token for step in engine.stream(job, [Stats()], memory) for token in step.tokens]
    assert memory.reused == 2
    engine.capture = False
    assert found == engine.generate(job)[0].tokens


def on_gpu(name: str, plan: Plan) -> tuple[Target, Any]:
    """A target and a drafter of each kind that can be captured."""
    net = llama(3, layers=3, dtype=torch.float32).to("cuda")  # type: ignore[arg-type]  kernels take no float64
    target = Target(net)
    match name:
        case "feature":
            head = Target(head_of(net, 1, (0,)).eval())
            return target, drafter("feature", head=head, target=target, plan=plan, wants_features=(0,))
        case "model":
            small = llama(4, dtype=torch.float32).to("cuda")  # type: ignore[arg-type]
            return target, drafter("model", model=Target(small), plan=plan)
        case "early_exit":
            return target, drafter("early_exit", model=Target(truncated(net, 1)), plan=plan)
        case "blockwise":
            return target, drafter("blockwise", heads=blockwise_of(net, 3), target=target, plan=plan)
        case "random":
            return target, drafter("random", plan=plan)
    return target, drafter("none")


class TestOnGpu:
    """Graphs are made and replayed."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize(("name", "rule", "plan"), CASES, ids=lambda part: part if isinstance(part, str) else "")
    @pytest.mark.parametrize("policy", POLICIES, ids=["one", "cool", "greedy"])
    def test_graphs_give_the_same_text(self, name: str, rule: str, plan: Plan, policy: Policy) -> None:
        target, made = on_gpu(name, plan)
        engine = Engine(target, made, spectr.rule(rule), frozenset({7}))
        plain, late = both(engine, Job(requests(60), policy))
        assert [one.tokens for one in plain] == [one.tokens for one in late]
        again = engine.generate(Job(requests(60), policy))
        assert [one.tokens for one in plain] == [one.tokens for one in again]
        (stage,) = engine.stages.kept.values()
        assert stage.graphs.graphs  # it was captured

    @pytest.mark.parametrize(("name", "rule", "plan"), CASES, ids=lambda part: part if isinstance(part, str) else "")
    def test_no_step_waits_for_the_host(self, name: str, rule: str, plan: Plan) -> None:
        """Plainly run, under a guard that refuses to synchronise."""
        target, made = on_gpu(name, plan)
        engine, job = Engine(target, made, spectr.rule(rule)), Job(requests(60), Policy())
        engine.capture = True
        with engine.stages.take(engine, job, None) as stage:
            stage.batch.texts = []
            self._step(engine, stage.batch, job)  # kernels are made, and constants brought to the device
            with no_host_sync():
                for _ in range(2):
                    self._step(engine, stage.batch, job)

    def _step(self, engine: Engine, batch: Batch, job: Job) -> None:
        for holder in (batch.session, batch.drafting):
            holder.assume(128)  # type: ignore[attr-defined]
        numbers_of(engine.score(batch, job, []))

    @pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
    def test_a_thousand_steps_take_no_more_memory(self, compiled: bool) -> None:
        target, made = on_gpu("feature", Plan(drafts=3, length=4, nodes=9))
        engine = Engine(target, made, spectr.rule("race"))
        engine.capture = True
        if compiled:
            engine.compile()
        job = Job([Request([3, 4], 1, 240)])
        held, steps = list[int](), 0
        while steps < 1000:
            steps += len(engine.generate(job)[0].steps)
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
        assert held[-1] <= held[1]

    def test_rows_share_a_tree(self) -> None:
        target, made = on_gpu("feature", Plan(drafts=4, length=4, nodes=24, shared=24))
        engine = Engine(target, made, spectr.rule("race"))
        engine.capture = True
        texts, drafted, drafted_alone = sharing(engine)
        assert texts == [
            r.tokens for r in Engine(target, drafter("none"), spectr.rule("race")).generate(Job(requests()))
        ]
        assert drafted <= 5 < drafted_alone

    def test_compiled_layers_give_the_same_text(self) -> None:
        target, made = on_gpu("feature", Plan(drafts=3, length=4, nodes=9))
        engine, job = Engine(target, made, spectr.rule("race")), Job(requests(60), Policy())
        plain = engine.generate(job)
        engine.capture = True
        engine.compile()
        assert [one.tokens for one in plain] == [one.tokens for one in engine.generate(job)]
