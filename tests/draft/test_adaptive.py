"""A drafter that chooses: the text of plain decoding with the race, the target's law with coupling rules, whatever is
chosen; and a chooser that is told what a step gave and took."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import pytest
import torch
from tests.chance import chi_square
from tests.tiny import llama
from transformers import PreTrainedModel

import spectr
from spectr import Growth, Shape
from spectr.audit import enumerate_steps
from spectr.audit.toys import toy_pair
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import AdaptiveDrafter, ByRows, Option, Timing, replanned
from spectr.draft.chooser import Fixed
from spectr.engine import Engine, Job, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.metrics import Stats
from spectr.models.blockwise import blockwise_of
from spectr.models.early import truncated
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.types import Draft, Drafter, Drafting, Opening, Scene
from spectr.verify import RULES

PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2], [3, 4, 5, 3, 4, 5, 3]]


@pytest.fixture(scope="module")
def net() -> PreTrainedModel:
    return llama(3, layers=3)


@pytest.fixture(scope="module")
def near(net: PreTrainedModel) -> Target:
    """The target's weights with a little noise."""
    copy, generator = llama(3, layers=3), torch.Generator().manual_seed(5)
    copy.load_state_dict(net.state_dict())
    with torch.no_grad():
        for weights in copy.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=generator)
    return Target(copy)


@pytest.fixture(scope="module")
def far() -> Target:
    """Another model."""
    return Target(llama(8))


@pytest.fixture(scope="module")
def bases(net: PreTrainedModel, near: Target) -> dict[str, Drafter]:
    """One of each kind that draws by a plan."""
    target, plan = Target(net), Plan()
    return {
        "random": drafter("random", plan=plan),
        "ngram": drafter("ngram", plan=plan, order=3, text=[1, 2, 3, 4] * 5),
        "model": drafter("model", model=near, plan=plan),
        "early_exit": drafter("early_exit", model=Target(truncated(net, 1)), plan=plan),
        "feature": drafter("feature", head=Target(head_of(net, 1)), target=target, plan=plan),
        "blockwise": drafter("blockwise", heads=blockwise_of(net, 6), target=target, plan=plan),
    }


class InTurn:
    """One after the other, as a list says; and what was heard."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order, self.at = order, 0
        self.told: list[tuple[int, float, float]] = []

    def pick(self) -> int:
        self.at += 1
        return self.order[(self.at - 1) % len(self.order)]

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        self.told.append((index, tokens, seconds))


NOTHING = Option(drafter("none"))
PRUNED = (Plan(drafts=1, length=1, nodes=2), Plan(drafts=3, length=4, nodes=10), Plan(drafts=2, length=3, nodes=5))
ORDER = (1, 0, 2, 2, 0, 0, 0, 3, 1, 0, 3, 2)


def menu_of(base: Drafter, plans: Sequence[Plan]) -> tuple[Option, ...]:
    return (NOTHING, *(Option(replanned(base, plan)) for plan in plans))


def requests(length: int = 24) -> list[Request]:
    return [Request(prompt, seed=9 + i, max_new_tokens=length - 3 * i) for i, prompt in enumerate(PROMPTS)]


def tokens_of(net: PreTrainedModel, made: Drafter, rule: str, policy: Policy) -> list[list[int]]:
    return [r.tokens for r in Engine(Target(net), made, spectr.rule(rule)).generate(Job(requests(), policy))]


POLICIES = {
    "plain": Policy(),
    "cool": Policy(0.6, top_p=0.9),
    "greedy": Policy(0),
    "penalties": Policy(0.9, repetition_penalty=1.3, bad_words=[[3, 4], [7]], min_new_tokens=4),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["random", "ngram", "model", "early_exit", "feature", "blockwise"])
def test_the_race_does_not_mind(net: PreTrainedModel, bases: dict[str, Drafter], name: str, policy: str) -> None:
    """Trees of all sizes and none, in turn, on a ragged batch with a repeated prompt: the text of no drafter."""
    meant = tokens_of(net, drafter("none"), "race", POLICIES[policy])
    made = AdaptiveDrafter(menu_of(bases[name], PRUNED), ByRows(lambda _: InTurn(ORDER)))
    assert tokens_of(net, made, "race", POLICIES[policy]) == meant


def test_drafters_of_all_kinds_in_one_menu(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    """Different drafters, another spread, a lookup, a mix: each catches up with what it missed."""
    meant = tokens_of(net, drafter("none"), "race", Policy())
    mix = drafter("mixed", parts=[drafter("lookup"), bases["model"]])
    several = (
        *menu_of(bases["feature"], PRUNED), Option(replanned(bases["feature"], PRUNED[1]), 2.0),
        Option(drafter("lookup", shortest=1)), Option(bases["model"]), Option(mix),
    )  # fmt: skip
    log: list[Timing] = []
    order = [*range(len(several)), 0, 0, 0, 5, 4, 7, 1]
    made = AdaptiveDrafter(several, ByRows(lambda _: InTurn(order)), log.append)
    assert tokens_of(net, made, "race", Policy()) == meant
    assert {timing.index for timing in log} == set(range(len(several)))
    assert sum(timing.tokens - 1 for timing in log if timing.index) > 3


def test_spread_changes_the_tree_and_not_the_text(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    plan = Plan(drafts=4, length=4, nodes=9)
    seen = {}
    for spread in (1.0, 4.0):
        menu = (NOTHING, Option(replanned(bases["model"], plan), spread))
        engine = Engine(Target(net), AdaptiveDrafter(menu, lambda _: Fixed(1)), spectr.rule("race"))
        found = engine.generate(Job(requests(40)))
        seen[spread] = ([r.tokens for r in found], [r.stats.steps for r in found])
    assert seen[1.0][0] == seen[4.0][0]
    assert seen[1.0][1] != seen[4.0][1]


@pytest.mark.parametrize("name", [name for name in RULES if spectr.rule(name).card.lossless])
def test_every_rule_takes_a_step_without_a_draft(net: PreTrainedModel, near: Target, name: str) -> None:
    """Nothing drafted, then something, then nothing: with a greedy policy every lossless rule has one text."""
    card = spectr.rule(name).card
    plan = Plan(card.draws or card.siblings[0], **({"drafts": 2, "length": 2} if card.tree else {"drafts": 1}))
    menu = menu_of(drafter("model", model=near, plan=plan), [plan])
    meant = tokens_of(net, drafter("none"), "race", Policy(0))
    for order in ((0,), (0, 1, 0, 0, 1)):
        made = AdaptiveDrafter(menu, ByRows(lambda _, order=order: InTurn(order)))
        assert tokens_of(net, made, name, Policy(0)) == meant


# The law under coupling rules.


@pytest.mark.parametrize("name", ["optimal", "kseq", "path_block", "block", "hybrid"])
def test_plans_that_follow_acceptance_are_exact(name: str) -> None:
    """Enumerated: the tree of the second step depends on how many drafts the first accepted, that of the third on both.
    The law of the text is the target's."""
    rule = spectr.rule(name)
    siblings = rule.card.draws or rule.card.siblings[0]
    shapes = [(1,), (2,), (2, 1)] if rule.card.tree else [(1,), (1, 1), (1, 1, 1)]
    growths = [Growth(Shape.branching(widths), siblings) for widths in shapes]
    target, draft = toy_pair("plain", 2, 7)
    states: dict[tuple[tuple[int, ...], int], float] = {((), 0): 1.0}  # text, draft tokens accepted so far
    for _ in range(3):
        after: dict[tuple[tuple[int, ...], int], float] = {}
        for (text, accepted), chance in states.items():
            models = (lambda t, text=text: target(text + t), lambda t, text=text: draft(text + t))
            step = enumerate_steps(rule, models, growths[accepted % 3])
            for emitted, share in step.items():
                key = (text + emitted, accepted + len(emitted) - 1)
                after[key] = after.get(key, 0.0) + chance * share
        states = after
    law: dict[tuple[int, ...], float] = {}
    for (text, _), chance in states.items():
        law[text] = law.get(text, 0.0) + chance
    assert len({accepted for _, accepted in states}) > 3
    assert spectr.StepLaw(law).deviation(target) < 1e-12


class Follower:
    """Much after a step that accepted much, nothing after one that did not, little after nothing."""

    def __init__(self, picked: list[int]) -> None:
        self.next, self.picked = 1, picked

    def pick(self) -> int:
        self.picked.append(self.next)
        return self.next

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        self.next = 2 if tokens > 1.42 else 0 if index else 1


@dataclass(frozen=True)
class Peeking:
    """Planted: draws first, and drafts nothing where it does not like what it drew."""

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

    def keep(self, path: torch.Tensor) -> None:
        self.inner.keep(path)

    def take_rows(self, rows: torch.Tensor) -> None:
        self.inner.take_rows(rows)


LENGTH, ROWS, TOGETHER = 3, 2_400, 20


def exact(net: PreTrainedModel, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Probabilities of every continuation of three tokens, from plain forwards."""
    law = {(): 1.0}
    for _ in range(LENGTH):
        texts = list(law)
        with torch.no_grad():
            logits = net(torch.tensor([[*prompt, *text] for text in texts])).logits[:, -1].double()
        chances = logits.softmax(-1).tolist()
        law = {(*t, x): law[t] * c for t, row in zip(texts, chances, strict=True) for x, c in enumerate(row)}
    return law


def surprise(net: PreTrainedModel, make: Callable[[], Drafter], rule: str) -> float:
    """Chi-square of texts against exact probabilities, as a multiple of what is exceeded once in 10^8. A few rows run
    together, with a chooser of their own, so that picks follow what these rows accepted."""
    prompt, found = [3, 4, 3, 4, 3], dict[tuple[int, ...], int]()
    for start in range(0, ROWS, TOGETHER):
        engine = Engine(Target(net), make(), spectr.rule(rule))
        job = Job([Request(prompt, seed=start + i, max_new_tokens=LENGTH) for i in range(TOGETHER)])
        for result in engine.generate(job):
            text = tuple(result.tokens)
            found[text] = found.get(text, 0) + 1
    law = exact(net, prompt)
    counts = torch.tensor([float(found.get(text, 0)) for text in law], dtype=torch.float64)
    return chi_square(counts, ROWS * torch.tensor(list(law.values()), dtype=torch.float64), 1e-8)


def test_law_under_a_coupling_rule(net: PreTrainedModel, far: Target) -> None:
    """The engine itself; false alarms once in 10^8."""
    plans = [Plan("iid", drafts=1, length=1), Plan("iid", drafts=2, length=2)]
    base = drafter("model", model=far, plan=plans[0])
    picked: list[int] = []

    def make() -> Drafter:
        follower = Follower(picked)
        return AdaptiveDrafter(menu_of(base, plans), lambda _: follower)

    assert surprise(net, make, "optimal") < 1
    assert min(picked.count(index) for index in range(3)) > 20


def test_a_choice_that_looks_at_the_draft_is_seen(net: PreTrainedModel, far: Target) -> None:
    """Planted: whether to draft is decided after the draw."""
    base = drafter("model", model=far, plan=Plan("iid", drafts=1, length=1))
    assert surprise(net, lambda: Peeking(base), "optimal") > 1


# What choosers are told.


@dataclass
class Clock:
    """Moves when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Slow:
    """Drafts what a list says comes next, and takes its time."""

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
            paths = [[self.text[len(text) : len(text) + 3]] for text in scene.texts]
            return draft_of_paths(scene.root, paths, 4)

        return Stateless(propose)


def test_what_a_chooser_hears(net: PreTrainedModel) -> None:
    """Tokens by the growth of texts, seconds without the reader's pauses."""
    prompt = [3, 4, 5]
    meant = Engine(Target(net), drafter("none"), spectr.rule("race")).generate(Job([Request(prompt, 5, 16)]))[0].tokens
    clock, chooser, log = Clock(), InTurn((1, 0, 1, 1)), list[Timing]()
    slow = Slow(clock, [*prompt, *meant])
    made = AdaptiveDrafter((NOTHING, Option(slow)), lambda _: chooser, log.append, clock)
    engine, pauses = Engine(Target(net), made, spectr.rule("race")), iter((50.0, 0.25, 40.0, 0.5, 30.0))
    for _ in engine.stream(Job([Request(prompt, 5, 16)]), [Stats()]):
        clock.now += next(pauses)
    assert chooser.told == [(1, 4, 52), (0, 1, 0.25), (1, 4, 2.25), (1, 4, 2.25)]  # nobody reports the last step
    assert [timing.drafting for timing in log] == [2, 0, 2, 2]
    assert [timing.rest for timing in log] == [50, 0.25, 0.25, 0.25]
    assert [timing.nodes for timing in log] == [4, 1, 4, 4]


def test_rows_that_leave(net: PreTrainedModel) -> None:
    """The mean over the rows that are still there; and a chooser for every size of a batch."""
    choosers: dict[int, InTurn] = {}

    def make(rows: int) -> InTurn:
        return choosers.setdefault(rows, InTurn((0,)))

    made = AdaptiveDrafter((NOTHING, Option(drafter("lookup"))), ByRows(make))
    lengths = (2, 4, 6, 9, 9)
    Engine(Target(net), made, spectr.rule("race")).generate(
        Job([Request([3, 4], seed=i, max_new_tokens=length) for i, length in enumerate(lengths)])
    )
    assert {rows: len(chooser.told) for rows, chooser in choosers.items()} == {8: 2, 4: 4, 2: 2}
    assert all(tokens == 1 for chooser in choosers.values() for _, tokens, _ in chooser.told)


def test_plans_of_one_drafter_share_its_session(net: PreTrainedModel, near: Target) -> None:
    opened = count()

    class Counting(Target):
        def open(self, rows: int, slots: int, *, features: tuple[int, ...] | None = None) -> object:
            next(opened)
            return super().open(rows, slots, features=features)

    base = drafter("model", model=Counting(near.model), plan=Plan())
    made = AdaptiveDrafter(menu_of(base, PRUNED), lambda _: InTurn(ORDER))
    tokens_of(net, made, "race", Policy())
    assert next(opened) == 1


def test_what_is_refused(net: PreTrainedModel, bases: dict[str, Drafter]) -> None:
    with pytest.raises(ArgumentError, match="must draft nothing"):
        AdaptiveDrafter((Option(bases["model"]),), lambda _: Fixed(0))
    with pytest.raises(ArgumentError, match="spread must be a number above 0"):
        Option(bases["model"], 0.0)
    both = (*menu_of(bases["model"], [Plan("iid", 2, 2)]), Option(drafter("lookup")))
    with pytest.raises(MismatchError, match="holds for siblings"):
        Engine(Target(net), AdaptiveDrafter(both, lambda _: Fixed(0)), spectr.rule("optimal"))
