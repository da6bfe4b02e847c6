"""With several drafters in one, the text under the race is that of plain decoding, whichever drafter is used in a step,
captured or not; and observers get the tokens and seconds of steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from tests.asking import EndReader, Stepped, trace, under
from tests.chance import chi_square
from tests.late import run_as_on_a_gpu
from tests.tiny import llama, noisy_copy
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import SwitchingDrafter, adaptive, replanned
from spectr.engine import Engine, Request
from spectr.errors import MismatchError
from spectr.models.blockwise import blockwise_of
from spectr.models.early import truncated
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.types import Draft, Drafter, Drafting, Opening, Scene

PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2], [3, 4, 5, 3, 4, 5, 3]]


@pytest.fixture(scope="module")
def net() -> PreTrainedModel:
    return llama(3, layers=3)


@pytest.fixture(scope="module")
def near(net: PreTrainedModel) -> Target:
    """A model with the target's weights and a little noise."""
    return Target(noisy_copy(net))


@pytest.fixture(scope="module")
def far() -> Target:
    """A model that is unrelated to the target."""
    return Target(llama(8))


@pytest.fixture(scope="module")
def bases(net: PreTrainedModel, near: Target) -> dict[str, Drafter]:
    """One drafter of each kind that has a plan."""
    target, plan = Target(net), Plan()
    return {
        "random": drafter("random", plan=plan),
        "ngram": drafter("ngram", plan=plan, order=3, text=[1, 2, 3, 4] * 5),
        "model": drafter("model", model=near, plan=plan),
        "early_exit": drafter("early_exit", model=Target(truncated(net, 1)), plan=plan),
        "feature": drafter("feature", head=Target(head_of(net, 1)), target=target, plan=plan),
        "blockwise": drafter("blockwise", heads=blockwise_of(net, 6), target=target, plan=plan),
    }


PRUNED = (Plan(drafts=1, length=1, nodes=2), Plan(drafts=3, length=4, nodes=10), Plan(drafts=2, length=3, nodes=5))
ORDER = (1, 0, 2, 2, 0, 0, 0, 3, 1, 0, 3, 2)


def in_turn(drafters: Sequence[Drafter], order: Sequence[int] = ORDER) -> tuple[SwitchingDrafter, list[int]]:
    """Return a drafter that uses several in the given order, and a list of those that drafted the observed steps."""
    steps, used = count(), list[int]()

    def observe(_rows: int, plan: int, _tokens: float, _seconds: float) -> None:
        used.append(plan)

    return SwitchingDrafter(tuple(drafters), lambda _: order[next(steps) % len(order)], observe), used


def with_plans(base: Drafter, plans: Sequence[Plan]) -> list[Drafter]:
    return [drafter("none"), *(replanned(base, plan) for plan in plans)]


def requests(length: int = 24) -> list[Request]:
    return [Request(prompt, seed=9 + i, max_new_tokens=length - 3 * i) for i, prompt in enumerate(PROMPTS)]


def tokens_of(net: PreTrainedModel, made: Drafter, policy: Policy, rule: str = "race") -> list[list[int]]:
    return [r.tokens for r in Engine(Target(net), made, spectr.rule(rule)).generate(under(policy, requests()))]


POLICIES = {
    "plain": Policy(),
    "cool": Policy(0.6, top_p=0.9),
    "greedy": Policy(0),
    "penalties": Policy(0.9, repetition_penalty=1.3, bad_words=[[3, 4], [7]], min_new_tokens=4),
}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if (i + j) % 2 == 0 else pytest.mark.slow)
        for i, name in enumerate(["random", "ngram", "model", "early_exit", "feature", "blockwise"])
        for j, policy in enumerate(POLICIES)
    ],
)
def test_the_text_is_that_of_plain_decoding(
    net: PreTrainedModel, bases: dict[str, Drafter], name: str, policy: str
) -> None:
    """The text does not change when trees of several sizes and plain decoding alternate, in a batch of different
    lengths with a repeated prompt."""
    made, used = in_turn(with_plans(bases[name], PRUNED))
    assert tokens_of(net, made, POLICIES[policy]) == tokens_of(net, drafter("none"), POLICIES[policy])
    assert set(used) == {0, 1, 2, 3}


def test_drafters_of_all_kinds_in_one(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    """Drafters of all kinds can alternate: each one reads the tokens of the steps that it missed."""
    mix = drafter("mixed", parts=[drafter("lookup"), bases["model"]])
    several = [*with_plans(bases["feature"], PRUNED), drafter("lookup", shortest=1), bases["model"], mix]
    made, used = in_turn(several, [*range(len(several)), 0, 0, 0, 5, 4, 6, 1])
    assert tokens_of(net, made, Policy()) == tokens_of(net, drafter("none"), Policy())
    assert set(used) == set(range(len(several)))


def test_it_chooses_while_running(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    """The text is that of plain decoding whatever drafters are chosen by their measured speed."""
    made = adaptive([drafter("none"), bases["model"], bases["feature"]], lambda rows: min(rows, 2))
    plain = tokens_of(net, drafter("none"), Policy())
    assert [tokens_of(net, made, Policy()) for _ in range(3)] == [plain] * 3


def by_rows(drafters: Sequence[Drafter]) -> SwitchingDrafter:
    """Return a drafter that uses the first for one row, the second for two, and the third for more."""
    return SwitchingDrafter(tuple(drafters), lambda rows: min(rows, 3) - 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_drafter_for_each_number_of_rows(
    net: PreTrainedModel, bases: dict[str, Drafter], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are right when the drafter changes with the number of rows, which come and go."""
    if late:
        run_as_on_a_gpu(monkeypatch)
    several = [replanned(bases["model"], PRUNED[1]), bases["feature"], replanned(bases["model"], PRUNED[0])]
    engine = Engine(Target(net), by_rows(several), spectr.rule("race"))
    plain = Engine(Target(net), drafter("none"), spectr.rule("race"))
    for rows in (4, 1, 2, 3, 1, 4):
        asked = [*requests()[: rows - 1], requests()[-1]]
        assert [r.tokens for r in engine.generate(asked)] == [r.tokens for r in plain.generate(asked)]


@pytest.mark.parametrize("late", [False, True])
def test_plain_decoding_for_some_rows(
    net: PreTrainedModel, bases: dict[str, Drafter], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If plain decoding is selected for a number of rows, nothing is drafted and the draft model is not called."""
    scored = count()

    class Counting(Target):
        def score(self, *arguments: object, **options: object) -> torch.Tensor:
            next(scored)
            return super().score(*arguments, **options)  # type: ignore[arg-type]

    if late:
        run_as_on_a_gpu(monkeypatch)
    near = drafter("model", model=Counting(bases["model"].model.model), plan=PRUNED[1])  # type: ignore[attr-defined]
    engine = Engine(Target(net), by_rows([near, near, drafter("none")]), spectr.rule("race"))
    several = [Request([3 + row, 4], row, 8) for row in range(4)]
    assert sum(result.stats.drafted for result in engine.generate(several)) == 0
    assert next(scored) == 0
    assert engine.generate(several[:1])[0].stats.drafted > 0


def test_drafters_on_the_host_are_not_captured(bases: dict[str, Drafter]) -> None:
    """Steps can be captured only if none of the drafters runs on the host."""
    assert by_rows([drafter("none"), bases["model"], bases["feature"]]).capturable
    assert by_rows([drafter("none"), drafter("lookup"), bases["feature"]]).capturable
    assert not by_rows([drafter("none"), bases["ngram"], bases["feature"]]).capturable


@pytest.mark.gpu
def test_captured_on_a_gpu() -> None:
    """Captured and eager steps give the text of plain decoding when the drafter changes with the number of rows."""
    target = Target(llama(3, layers=3).float().to("cuda"))  # type: ignore[arg-type]
    near = drafter("model", model=Target(llama(3, layers=3).float().to("cuda")), plan=PRUNED[1])  # type: ignore[arg-type]
    made = by_rows([near, drafter("none"), replanned(near, PRUNED[0])])
    engines = [
        Engine(target, one, spectr.rule("race"), captures=captures)
        for one, captures in ((made, True), (made, False), (drafter("none"), False))
    ]
    for rows in (1, 2, 4, 1, 4):
        late, eager, plain = ([r.tokens for r in engine.generate(requests()[:rows])] for engine in engines)
        assert late == eager == plain


def test_plans_of_one_drafter_share_its_session(net: PreTrainedModel, near: Target) -> None:
    """Several plans of one draft model open a single session."""
    opened = count()

    class Counting(Target):
        def open(self, *arguments: object, **options: object) -> object:
            next(opened)
            return super().open(*arguments, **options)  # type: ignore[arg-type]

    made, used = in_turn(with_plans(drafter("model", model=Counting(near.model), plan=Plan()), PRUNED))
    tokens_of(net, made, Policy())
    assert set(used) == {0, 1, 2, 3}
    assert next(opened) == 1


def test_room_is_made_for_the_largest_tree(
    net: PreTrainedModel, bases: dict[str, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has room for the largest tree even if a smaller one is in use when texts get longer."""
    run_as_on_a_gpu(monkeypatch)
    plans, chosen = (PRUNED[0], Plan(drafts=16, length=8, nodes=10)), [0]
    made = SwitchingDrafter(tuple(replanned(bases["model"], plan) for plan in plans), lambda _: chosen[0])
    stepped = Stepped(Engine(Target(net), made, spectr.rule("race")))
    stepped.finish([stepped.submit(Request([3, 4], 1, 9))])
    request = Request([3, 4, 5], 1, 253)
    handle = stepped.submit(request)
    stepped.turn(2)
    chosen[0] = 1
    plain = Engine(Target(net), drafter("none"), spectr.rule("race")).generate([request])[0]
    assert stepped.finish([handle])[0].tokens == plain.tokens


def test_a_drafter_that_paused_remembers_no_other_text(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    """A draft model that begins in the middle of a text has the same steps in a row that had other texts before as in a
    new one."""
    chosen = [0]

    def steps(stepped: Stepped, request: Request) -> object:
        handle = stepped.submit(request)
        for at, turns in ((0, 4), (1, 5), (0, 1)):
            chosen[0] = at
            stepped.turn(turns)
        return trace(stepped.finish([handle])[0])

    def fresh() -> Stepped:
        made = SwitchingDrafter((drafter("none"), replanned(bases["model"], PRUNED[1])), lambda _: chosen[0])
        return Stepped(Engine(Target(net), made, spectr.rule("race"), rows=1))

    used = fresh()
    for request in (
        Request([7, 8] * 20, 1, 40),
        Request([3, 4, 5], 2, 30),
        Request([1] * 12, 3, 60),
        Request([2], 4, 30),
    ):
        assert steps(used, request) == steps(fresh(), request)


@pytest.mark.parametrize("mixes", [False, True])
def test_a_draft_model_reads_what_it_missed(net: PreTrainedModel, mixes: bool) -> None:
    """After steps without it a draft model, alone or in a mix, says that it is behind, so that the step waits for the
    number of tokens it lacks. It is the target itself here, and every draft is accepted."""
    same = drafter("model", model=Target(net), plan=Plan(drafts=1, length=3, nodes=4))
    base = drafter("mixed", parts=[drafter("none"), same]) if mixes else same
    steps = count()
    made = SwitchingDrafter((drafter("none"), base), lambda _: int(next(steps) % 12 < 4))
    stats = Engine(Target(net), made, spectr.rule("race")).generate([Request([3, 4, 5], 1, 60)])[0].stats
    assert stats.drafted > 20
    assert stats.corrections == 0
    order = iter((0, 0, 1, 1))
    drafting = SwitchingDrafter(made.drafters, lambda _: next(order)).open(Opening(1, 64, 16, None))
    assert [(drafting.choose(1), drafting.is_behind) for _ in range(3)] == [(0, False), (1, True), (1, False)]


def test_other_rules_refuse_it(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    """Coupling rules refuse a drafter that alternates between drafters."""
    made = in_turn([drafter("none"), replanned(bases["model"], Plan("iid", 2, 2))])[0]
    with pytest.raises(MismatchError, match="holds for siblings"):
        Engine(Target(net), made, spectr.rule("optimal"))


# What observers get.


@dataclass
class Clock:
    """A clock that tests advance."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Slow:
    """Drafts the tokens of a list, and takes two seconds of the test's clock."""

    clock: Clock
    text: list[int]
    name: str = "slow"
    siblings: str = "fixed"
    nodes: int = 4
    gives_laws: bool = False

    def open(self, opening: Opening) -> Drafting:
        from spectr.draft.stateless import Stateless
        from spectr.draft.trie import draft_of_paths

        def propose(scene: Scene) -> Draft:
            self.clock.now += 2.0
            paths = [[self.text[length : length + 3]] for length in scene.texts.length.tolist()]
            return draft_of_paths(scene.root, paths, 4)

        return Stateless(propose)


def test_observers_get_tokens_and_seconds_of_steps(net: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are counted by the growth of texts, and seconds are those of steps only: here a draft takes two seconds,
    and the reader fifty between steps."""
    prompt, clock = [3, 4, 5], Clock()

    def slowly(_: list[int]) -> None:
        clock.now += 50.0

    meant = Engine(Target(net), drafter("none"), spectr.rule("race")).generate([Request(prompt, 5, 16)])[0].tokens
    monkeypatch.setattr("spectr.engine.step.time", SimpleNamespace(perf_counter=clock))
    calls, order = list[tuple[int, int, float, float]](), iter((0, 1, 0, 1, 1, 1))  # the first is for no step
    several = (drafter("none"), Slow(clock, [*prompt, *meant]))
    made = SwitchingDrafter(several, lambda _: next(order), lambda *step: calls.append(step))
    Engine(Target(net), made, spectr.rule("race")).generate([Request(prompt, 5, 16, reader=EndReader(slowly))])
    assert calls == [(1, 1, 4, 2), (1, 0, 1, 0), (1, 1, 4, 2), (1, 1, 4, 2), (1, 1, 3, 2)]  # the last is cut


def test_rows_that_leave(net: PreTrainedModel) -> None:
    """The number of tokens is the mean over the rows that are still active."""
    calls = list[tuple[int, int, float, float]]()
    made = SwitchingDrafter((drafter("none"), drafter("lookup")), lambda _: 0, lambda *step: calls.append(step))
    lengths = (2, 4, 6, 9, 9)
    asked = [Request([3, 4], seed=i, max_new_tokens=length) for i, length in enumerate(lengths)]
    Engine(Target(net), made, spectr.rule("race")).generate(asked)
    assert [(rows, tokens) for rows, _, tokens, _ in calls] == [(rows, 1) for rows in (5, 5, 4, 4, 3, 3, 2, 2, 2)]


# A choice that depends on the draw is biased under rules that couple distributions.


@dataclass(frozen=True)
class Peeking:
    """A planted fault: it draws first, and drafts nothing for some draws."""

    inner: Drafter
    name: str = "peeking"

    @property
    def siblings(self) -> str:
        return self.inner.siblings

    @property
    def nodes(self) -> int:
        return self.inner.nodes

    gives_laws: bool = True

    def open(self, opening: Opening) -> Drafting:
        return _PeekingDrafting(self.inner.open(opening))


class _PeekingDrafting:
    def __init__(self, inner: Drafting) -> None:
        self.inner = inner

    def propose(self, scene: Scene) -> Draft:
        draft = self.inner.propose(scene)
        dropped = (draft.tokens[:, 1:] % 2 == 1).any(-1, keepdim=True)
        return replace(draft, alive=draft.alive & ~(dropped & (torch.arange(draft.alive.shape[1]) > 0)))

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


LENGTH, ROWS = 3, 1_200


def exact(net: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """Return the exact probability of every continuation of `LENGTH` tokens, (V, …, V), from plain forward passes."""
    law, texts = torch.ones(1, dtype=torch.float64), [prompt]
    for _ in range(LENGTH):
        with torch.no_grad():
            logits = net(torch.tensor(texts)).logits[:, -1].double()
        law = (law[:, None] * logits.softmax(-1)).flatten()
        texts = [[*text, token] for text in texts for token in range(logits.shape[-1])]
    return law.view(*[logits.shape[-1]] * LENGTH)


def surprise(net: PreTrainedModel, make: Callable[[], Drafter], rule: str) -> float:
    """Return the chi-square statistic of texts against exact probabilities, relative to its 1 − 1e-8 quantile."""
    prompt = [3, 4, 3, 4, 3]
    expected = exact(net, prompt) * ROWS
    found, engine = torch.zeros_like(expected), Engine(Target(net), make(), spectr.rule(rule))
    for result in engine.generate([Request(prompt, seed=i, max_new_tokens=LENGTH) for i in range(ROWS)]):
        found[tuple(result.tokens)] += 1
    return chi_square(found, expected, 1e-8)


def test_a_choice_that_looks_at_the_draft_is_seen(net: PreTrainedModel, far: Target) -> None:
    """Planted fault: whether to draft is decided after the draw. The correct drafter has a false-alarm rate of 1e-8."""
    base = drafter("model", model=far, plan=Plan("iid", drafts=1, length=1))
    assert surprise(net, lambda: base, "optimal") < 1
    assert surprise(net, lambda: Peeking(base), "optimal") > 1
