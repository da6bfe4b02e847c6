"""Steps that are read one step late, and captured on a GPU, give the same texts as steps that are read without delay.

This holds for every drafter, rule and policy that does not need the host. On a CPU nothing is captured, but steps run
with the shapes of captured steps: a rounded number of rows, a rounded length and a rounded set of policy stages. On a
GPU they are CUDA graphs.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tests.asking import EndReader, Stepped, trace, under
from tests.contracts.conftest import Make, llama, on_gpu, requests
from tests.gpu import no_host_sync
from tests.late import run_as_on_a_gpu
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import SwitchingDrafter
from spectr.engine import Engine, Request, Step
from spectr.errors import LawError, MismatchError
from spectr.models.target import Target
from spectr.policy import Policy

CASES = [
    ("none", "race", Plan()),
    ("lookup", "race", Plan()),
    ("model", "race", Plan(drafts=3, length=4, nodes=9)),
    ("model", "race", Plan(tree=(2, 2, 1))),
    ("model", "kseq", Plan("iid", drafts=3, length=3)),
    ("early_exit", "race", Plan(drafts=2, length=3, nodes=6)),
    ("early_exit", "path_block", Plan("iid", drafts=2, length=3)),
    ("feature", "race", Plan(drafts=3, length=4, nodes=9)),
    ("feature", "optimal", Plan("iid", tree=(2, 1, 1))),
    ("light", "race", Plan(drafts=3, length=4, nodes=9)),
    ("blockwise", "match", Plan("fixed", drafts=2, length=3, nodes=6)),
    ("random", "race", Plan(drafts=2, length=3, nodes=6)),
    ("eagle3", "race", Plan(drafts=3, length=4, nodes=9)),
    ("eagle3", "kseq", Plan("iid", drafts=3, length=3)),
    ("dflash", "race", Plan(drafts=2, length=5, nodes=8)),
    ("peagle", "race", Plan(drafts=3, length=4, nodes=9)),
    ("dspark", "race", Plan(drafts=3, length=4, nodes=9)),
    ("dspark", "optimal", Plan("iid", tree=(2, 1, 1))),
]
POLICIES = [Policy(), Policy(0.7, top_k=5), Policy(0), Policy(0.9, repetition_penalty=1.3, bad_words=[[3, 4], [7]])]


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as_on_a_gpu(monkeypatch)


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
    net: PreTrainedModel,
    makers: dict[str, Make],
    name: str,
    rule: str,
    plan: Plan,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps that are read one step late have the tokens and statistics of steps that are read without delay."""
    for stops in (frozenset[int](), frozenset({7})):
        plain, late = (Engine(Target(net), makers[name](plan), spectr.rule(rule), stops) for _ in range(2))
        meant = [trace(result) for result in plain.generate(under(policy, requests()))]
        with monkeypatch.context() as patch:
            run_as_on_a_gpu(patch)
            assert [trace(result) for result in late.generate(under(policy, requests()))] == meant
        (lane,) = late.scheduler.lanes.values()
        assert lane.runner.lag == 1


@pytest.mark.usefixtures("_late")
def test_a_stop_string_is_cut_though_it_is_seen_late(net: PreTrainedModel) -> None:
    """A text ends at its stop string, although the next step has been launched when the host finds it."""
    late = Engine(Target(net), drafter("none"), spectr.rule("race"))
    free = late.generate([Request([3], 1, 40)])[0].tokens
    reader = EndReader(lambda tokens: 1 if 5 in tokens else None)
    result = late.generate([Request([3], 1, 40, reader=reader)])[0]
    assert result.tokens == free[: free.index(5) + 1]
    assert result.finish_reason == "stop"


@pytest.mark.usefixtures("_late")
def test_steps_after_the_end_of_all_texts_measure_no_drafter(net: PreTrainedModel) -> None:
    """The step that was launched before the host saw the end adds no token, which says nothing about its drafter."""
    seen: list[tuple[int, int, float]] = []
    both = SwitchingDrafter(
        (drafter("none"), drafter("lookup")), lambda _: 0, lambda *measured: seen.append(measured[:3])
    )
    engine = Engine(Target(net), both, spectr.rule("race"))
    for seed in range(3):
        engine.generate([Request([3], seed, 5)])
    assert seen == [(1, 0, 1.0)] * len(seen)
    assert seen


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("rule", "plan"), [("race", Plan(nodes=6)), ("optimal", Plan("iid", 2, 2))], ids=str)
def test_a_target_that_computes_nonsense_is_named(
    late: bool, rule: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of the target that are not finite raise an error that says so; the text before the error is kept."""
    net, calls = llama(3, layers=3), 0
    if late:
        run_as_on_a_gpu(monkeypatch)

    def overflow(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return logits if calls < 6 else logits * torch.nan

    net.lm_head.register_forward_hook(overflow)
    engine = Engine(Target(net), drafter("model", model=Target(llama(4)), plan=plan), spectr.rule(rule))
    written = list[Step]()
    with pytest.raises(LawError, match="are NaN or infinite; load it in another dtype"):
        written.extend(engine.submit(Request([3, 4], 1, 60)))
    assert 3 <= len(written) < 60


@pytest.mark.parametrize(
    "name", ["feature", *(pytest.param(n, marks=pytest.mark.slow) for n in ("model", "early_exit"))]
)
def test_requests_take_over_rows(
    net: PreTrainedModel, makers: dict[str, Make], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts equal those of a new engine when rows are reused for other prompts, lengths and policies."""
    plan = Plan(drafts=2, length=3, nodes=6)
    cool, greedy = under(Policy(0.5), requests()[:3]), under(Policy(0), [requests()[2]] * 4)
    others = [Request([5, 6, 7, 8] * 9, 3, 4), Request([3], 4, 60), Request([9, 2], 5, 31)]
    asked = [requests(), cool, greedy, others]

    def engine() -> Engine:
        return Engine(Target(net), makers[name](plan), spectr.rule("race"), frozenset({7}))

    meant = [[result.tokens for result in engine().generate(one)] for one in asked]
    run_as_on_a_gpu(monkeypatch)
    late = engine()
    for _ in range(2):
        assert [[result.tokens for result in late.generate(one)] for one in asked] == meant
    assert len(late.scheduler.lanes) == 1


def sharing(engine: Engine) -> tuple[list[list[int]], float, float]:
    """Return the texts of four rows, and the draft tokens per step with four active rows and with one."""
    together, one = engine.generate(requests()), engine.generate(requests()[:1])[0]
    assert together[0].tokens == one.tokens
    first = together[0].stats
    return [r.tokens for r in together], first.drafted / first.steps, one.stats.drafted / one.stats.steps


@pytest.mark.parametrize("late", [False, True])
def test_rows_share_a_tree(
    net: PreTrainedModel, makers: dict[str, Make], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When rows share a budget of nodes, each has fewer than alone, and its text is the same."""
    plain = Engine(Target(net), drafter("none"), spectr.rule("race")).generate(requests())
    if late:
        run_as_on_a_gpu(monkeypatch)
    engine = Engine(Target(net), makers["feature"](Plan(drafts=4, length=4, nodes=24, shared=24)), spectr.rule("race"))
    texts, drafted, drafted_alone = sharing(engine)
    assert texts == [r.tokens for r in plain]
    assert 3 <= drafted < 10  # one of six nodes is the root; when rows end, the others get more
    assert 12 < drafted_alone <= 23


def test_only_the_race_lets_rows_share(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """A shared budget of nodes is refused under rules whose text depends on the tree."""
    with pytest.raises(MismatchError, match="a text would depend on the other texts of its batch"):
        Engine(Target(net), makers["feature"](Plan("fixed", 4, 4, 24, shared=24)), spectr.rule("match"))


@pytest.mark.usefixtures("_late")
def test_two_texts_at_once(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """Two requests whose steps are read in turn have the texts that they have alone."""
    engine = Engine(Target(net), makers["feature"](Plan(nodes=5)), spectr.rule("race"))
    asked = [Request([3, 4], seed, 20) for seed in (1, 2)]
    want = [engine.generate([request])[0].tokens for request in asked]
    handles = [engine.submit(request) for request in asked]
    while any([next(handle, None) for handle in handles]):  # noqa: C419  both take a step
        pass
    assert [handle.result().tokens for handle in handles] == want


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("name", ["none", "model", "feature", "early_exit"])
def test_a_conversation_is_not_read_again(net: PreTrainedModel, makers: dict[str, Make], name: str) -> None:
    """A turn of a conversation reuses the cache of the previous one up to the first difference, except for the tokens
    of its last step."""
    late, prompt = Engine(Target(net), makers[name](Plan(nodes=5)), spectr.rule("race")), [3, 4, 5, 6]
    for turn in range(3):
        plain = Engine(Target(net), drafter("none"), spectr.rule("race"))
        request = Request(prompt, turn, 12)
        result = late.generate([request])[0]
        assert result.tokens == plain.generate([request])[0].tokens
        width = max(len(step.tokens) for step in result.steps)
        assert len(prompt) > result.reused >= (0 if turn == 0 else len(prompt) - 4 - max(width, 5))
        prompt = [*prompt, *result.tokens[:-2], 9, 8, 7, 6]


@pytest.mark.usefixtures("_late")
def test_turns_of_all_kinds(net: PreTrainedModel) -> None:
    """Turns reuse the previous cache and have the right text, with settings that can be captured and with others."""
    late, prompt = Engine(Target(net), drafter("none"), spectr.rule("race")), [3, 4, 5, 6, 3, 4, 5, 6, 1]
    for turn, penalty in enumerate((1.0, 1.3, 1.3, 1.0, 1.0)):
        request = Request(prompt, turn, 10, Policy(repetition_penalty=penalty))
        plain = Engine(Target(net), drafter("none"), spectr.rule("race"))
        result = late.generate([request])[0]
        assert result.tokens == plain.generate([request])[0].tokens
        assert (result.reused > 0) == (turn > 0)
        prompt = [*prompt, *result.tokens, 9]


@pytest.mark.usefixtures("_late")
def test_rows_outlive_the_mode_they_were_made_in(net: PreTrainedModel, makers: dict[str, Make]) -> None:
    """Rows that were made in inference mode can be reused outside of it."""
    engine = Engine(Target(net), makers["feature"](Plan(nodes=5)), spectr.rule("race"))
    with torch.inference_mode():
        first = [result.tokens for result in engine.generate(requests())]
    assert [result.tokens for result in engine.generate(requests())] == first


@pytest.mark.usefixtures("_late")
def test_a_turn_that_begins_before_the_last_has_ended(net: PreTrainedModel) -> None:
    """A turn that begins before the previous one has ended gets another row, into which the prefix is copied."""
    late, plain = (Engine(Target(net), drafter("none"), spectr.rule("race")) for _ in range(2))
    asked = [Request([3, 4, 5] * 4, seed, 20) for seed in (1, 2, 3)]
    want = [plain.generate([request])[0].tokens for request in asked]
    first = late.submit(asked[0])
    next(first)
    second = late.submit(asked[1])
    next(second)
    assert [first.result().tokens, second.result().tokens] == want[:2]
    assert second.result().reused == 11
    assert late.generate([asked[2]])[0].tokens == want[2]


@pytest.mark.usefixtures("_late")
def test_a_turn_that_fails_leaves_nothing_to_rely_on(net: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in prefill no later request reuses the cache of that row."""
    engine = Engine(Target(net), drafter("none"), spectr.rule("race"))
    said = engine.generate([Request([3, 4, 5, 6], 1, 9)])[0].tokens
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate([Request([3, 4, 9, 9, 9], 2, 9)])
    request = Request([3, 4, 5, 6, *said, 7], 3, 9)
    result = engine.generate([request])[0]
    assert result.reused == 0
    assert result.tokens == Engine(Target(net), drafter("none"), spectr.rule("race")).generate([request])[0].tokens


class TestOnGpu:
    """On a GPU steps are captured and replayed as CUDA graphs."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize(("name", "rule", "plan"), CASES, ids=lambda part: part if isinstance(part, str) else "")
    @pytest.mark.parametrize("policy", POLICIES, ids=["one", "cool", "greedy", "penalties"])
    def test_graphs_give_the_same_text(self, name: str, rule: str, plan: Plan, policy: Policy) -> None:
        """Captured steps give the text of eager steps, on the first run and when graphs are replayed."""
        target, made = on_gpu(name, plan)
        plain, late = (
            Engine(target, made, spectr.rule(rule), frozenset({7}), captures=captures) for captures in (False, True)
        )
        asked = under(policy, requests(60))
        meant = [one.tokens for one in plain.generate(asked)]
        assert [one.tokens for one in late.generate(asked)] == meant
        assert [one.tokens for one in late.generate(asked)] == meant
        (lane,) = late.scheduler.lanes.values()
        assert lane.memory.graphs.graphs  # steps were captured

    @pytest.mark.parametrize(("name", "rule", "plan"), CASES, ids=lambda part: part if isinstance(part, str) else "")
    @pytest.mark.parametrize("policy", POLICIES, ids=["one", "cool", "greedy", "penalties"])
    def test_no_step_waits_for_the_host(self, name: str, rule: str, plan: Plan, policy: Policy) -> None:
        """Steps never synchronise with the host: eager steps run under a guard that raises if they do."""
        target, made = on_gpu(name, plan)
        stepped = Stepped(Engine(target, made, spectr.rule(rule), captures=False))
        handles = [stepped.submit(request) for request in under(policy, requests(60))]
        stepped.turn(4)  # warm-up: kernels are compiled, and constants are copied to the device
        (lane,) = stepped.scheduler.lanes.values()
        assert len(lane.active) == len(handles)
        with no_host_sync(), torch.no_grad():
            for _ in range(2):
                lane.runner.launch()
        assert [result.finish_reason for result in stepped.finish(handles)] == ["length"] * len(handles)

    @pytest.mark.parametrize("name", ["none", "lookup", "feature"])
    def test_predictions_are_drafted_in_captured_steps(self, name: str) -> None:
        """Texts stay the same and take fewer steps, although the tables of predictions grow and move in memory; no
        step waits for the host."""
        target, made = on_gpu(name, Plan(drafts=3, length=4, nodes=9))
        plain, late = (Engine(target, made, spectr.rule("race"), captures=captures) for captures in (False, True))
        asked = requests(60)
        meant = plain.generate(asked)
        for prediction in ([], [1, 2, 3] * 40):
            predicted = [replace(r, prediction=[*prediction, *m.tokens]) for r, m in zip(asked, meant, strict=True)]
            for _ in range(2):
                found = late.generate(predicted)
                assert [one.tokens for one in found] == [one.tokens for one in meant]
        assert sum(len(one.steps) for one in found) < 0.4 * sum(len(one.tokens) for one in found)
        assert all(lane.memory.graphs.graphs for lane in late.scheduler.lanes.values())
        stepped = Stepped(plain)
        handles = [stepped.submit(request) for request in predicted]
        stepped.turn(4)
        (lane,) = stepped.scheduler.lanes.values()
        with no_host_sync(), torch.no_grad():
            lane.runner.launch()
        stepped.finish(handles)

    @pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
    def test_a_thousand_steps_take_no_more_memory(self, compiled: bool) -> None:
        """Allocated memory does not grow over a thousand steps. The allocator's smallest block has 512 bytes, so one
        that every step left behind would be far above what is allowed for objects of other tests."""
        target, made = on_gpu("feature", Plan(drafts=3, length=4, nodes=9))
        engine = Engine(target, made, spectr.rule("race"))
        if compiled:
            engine.compile()
        held, steps = list[int](), 0
        while steps < 1000:
            steps += len(engine.generate([Request([3, 4], 1, 240)])[0].steps)
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
        assert held[-1] <= held[1] + 64 * 512

    def test_two_engines_capture_at_once(self) -> None:
        """Engines in two threads capture their steps at the same time, and both give the texts of eager steps."""
        target, made = on_gpu("feature", Plan(drafts=3, length=4, nodes=9))
        meant = [one.tokens for one in Engine(target, made, spectr.rule("race"), captures=False).generate(requests())]
        for _ in range(4):
            engines = [Engine(target, one, spectr.rule("race")) for one in (made, drafter("none"))]
            with ThreadPoolExecutor(2) as threads:
                found = list(threads.map(lambda engine: engine.generate(requests()), engines))
            assert all([one.tokens for one in texts] == meant for texts in found)
            assert all(lane.memory.graphs.graphs for engine in engines for lane in engine.scheduler.lanes.values())

    def test_rows_share_a_tree(self) -> None:
        """When rows share a budget of nodes, each has fewer than alone, and its text is the same."""
        target, made = on_gpu("feature", Plan(drafts=4, length=4, nodes=24, shared=24))
        texts, drafted, drafted_alone = sharing(Engine(target, made, spectr.rule("race")))
        plain = Engine(target, drafter("none"), spectr.rule("race")).generate(requests())
        assert texts == [r.tokens for r in plain]
        assert drafted <= 10 < drafted_alone

    def test_compiled_layers_give_the_same_text(self) -> None:
        target, made = on_gpu("feature", Plan(drafts=3, length=4, nodes=9))
        plain = Engine(target, made, spectr.rule("race"), captures=False).generate(requests(60))
        engine = Engine(target, made, spectr.rule("race"))
        engine.compile()
        assert [one.tokens for one in plain] == [one.tokens for one in engine.generate(requests(60))]

    @pytest.mark.parametrize("name", ["none", "feature", "light"])
    def test_nothing_is_captured_for_short_requests_after_the_warm_up(self, name: str) -> None:
        """After `warm_up(4)`, up to four requests are prefilled and decoded with the graphs that there are."""
        target, made = on_gpu(name, Plan(drafts=3, length=4, nodes=9))
        engine = Engine(target, made, spectr.rule("race"))
        engine.warm_up(4)
        (lane,) = engine.scheduler.lanes.values()

        def captured() -> int:
            prefills = [
                reader.prefill
                for reader in (lane.memory.session, getattr(lane.memory.drafting, "session", None))
                if reader is not None
            ]
            places = [place for reader in prefills for place in (reader._single, reader._several_rows) if place]
            return len(lane.memory.graphs.graphs) + sum(len(place.graphs.graphs) for place in places)

        before = captured()
        assert before
        for count in (4, 1, 3, 2):
            engine.generate([Request([4 + count, row, *[5] * 20], row, 24) for row in range(count)])
        assert captured() == before
