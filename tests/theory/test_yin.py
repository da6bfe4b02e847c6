"""Expected rejections against every text, draft and coin of short chains; and the value of more drafts."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from spectr.errors import LawError, UnknownNameError
from spectr.theory import (
    ChainPair,
    Family,
    batch_rejections,
    bernoulli,
    drafts_worth,
    expected_rejections,
    limit_rejections,
    rejections_by_position,
    repeated,
    steady_rejections,
    uniform,
    zipf,
    zipf_chain,
)
from spectr.transport import coupling
from spectr.transport.coupling import Drafted
from spectr.transport.laws import normalise

Law = Callable[[tuple[int, ...]], Tensor]


def after(laws: Tensor) -> Law:
    """Return a chain's laws as a function of texts."""
    size = laws.shape[-1]
    return lambda text: laws[text[-1] if text else size]


def models(pair: ChainPair) -> tuple[Law, Law]:
    return after(pair.target), after(pair.draft)


def settled(target: Tensor, draft: Tensor, drafts: int, name: str) -> Iterator[tuple[int, float, bool]]:
    """Yield every (token, probability, rejected) of a coupling of iid drafts, summed over all draft tuples."""
    made = coupling(name)
    for tokens in itertools.product(range(len(draft)), repeat=drafts):
        chance = float(draft[list(tokens)].prod())
        if chance == 0:
            continue
        drawn = torch.tensor(tokens)
        outcome = made.settle(target, draft, Drafted(drawn, torch.ones(drafts, dtype=torch.bool)))
        for token, ending in zip(tokens, outcome.ending.tolist(), strict=True):
            yield token, chance * ending, False
        rest = normalise(outcome.residual.all(), target)
        missed = chance * float(outcome.choices[-1])
        for token, share in enumerate(rest.tolist()):
            yield token, missed * share, True


def rounds(
    target: Law, draft: Law, length: int, drafts: int = 1, name: str = "maximal"
) -> dict[tuple[int, ...], Tensor]:
    """Every text of `length` tokens → its probability and its expected rejections times that probability, when `drafts`
    drafts are made where a round begins and one where it goes on."""
    states: dict[tuple[tuple[int, ...], bool], Tensor] = {((), True): torch.tensor([1.0, 0.0], dtype=torch.float64)}
    for _ in range(length):
        new: dict[tuple[tuple[int, ...], bool], Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        for (text, fresh), mass in states.items():
            ways = settled(target(text), draft(text), drafts if fresh else 1, name if fresh else "maximal")
            for token, chance, rejected in ways:
                here = chance * mass
                new[(*text, token), rejected] += here + rejected * torch.stack([torch.zeros(()), here[0]])
        states = dict(new)
    texts: dict[tuple[int, ...], Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
    for (text, _), mass in states.items():
        texts[text] += mass
    return dict(texts)


def probability(model: Law, text: tuple[int, ...]) -> float:
    found = 1.0
    for at, token in enumerate(text):
        found *= float(model(text[:at])[token])
    return found


def with_zeros(seed: int, size: int = 3) -> ChainPair:
    """Return laws with zeros: in some contexts the drafter cannot draw tokens of the target, and vice versa."""
    rng = np.random.default_rng(seed)
    laws = rng.dirichlet(np.ones(size), (2, size + 1)) * (rng.random((2, size + 1, size)) < 0.7)
    laws[laws.sum(-1) == 0] = np.eye(size)[0]
    target, draft = torch.from_numpy(laws / laws.sum(-1, keepdims=True))
    return ChainPair(f"zeros {seed}", target, draft)


PAIRS = [repeated(bernoulli(0.25, 0.75)), zipf_chain(3, seed=1), zipf_chain(3, temperature=0.4, seed=2), with_zeros(0),
         with_zeros(5)]  # fmt: skip
NAMES = [pair.name for pair in PAIRS]


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_expected_rejections_of_one_draft(pair: ChainPair) -> None:
    """The texts also have the target's law."""
    texts = rounds(*models(pair), length=4)
    assert sum(float(mass[1]) for mass in texts.values()) == pytest.approx(expected_rejections(pair, 4), abs=1e-10)
    for text, mass in texts.items():
        assert float(mass[0]) == pytest.approx(probability(models(pair)[0], text), abs=1e-10)


def least_rejection(target: Tensor, draft: Tensor) -> float:
    """The linear program over all lossless rules that accept a drafted token or resample: accepted masses m ≤ draft,
    and any resampling law, with m + resampled = target."""
    size = len(target)
    equal = np.hstack([np.eye(size), np.eye(size)])  # accepted mass, resampled mass
    bounds = [*((0, q) for q in draft.tolist()), *((0, None),) * size]
    found = linprog([0.0] * size + [1.0] * size, A_eq=equal, b_eq=target.numpy(), bounds=bounds, method="highs")
    return float(found.fun)


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_no_lossless_rule_rejects_less(pair: ChainPair) -> None:
    """Holds position by position, because the prefix has the target's law with every lossless rule."""
    floor = [least_rejection(p, q) for p, q in zip(pair.target, pair.draft, strict=True)]
    assert floor == pytest.approx(pair.gap.tolist(), abs=1e-10)
    assert float(rejections_by_position(pair, 3)[0]) == pytest.approx(floor[-1], abs=1e-10)


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
@pytest.mark.parametrize(("root", "name"), [("recursive", "recursive"), ("optimal", "optimal_sorted")])
@pytest.mark.parametrize("drafts", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_batch(pair: ChainPair, root: str, name: str, drafts: int) -> None:
    length = 4 if drafts < 3 else 3  # enough rounds, and not too many texts
    texts = rounds(*models(pair), length=length, drafts=drafts, name=name)
    counted = sum(float(mass[1]) for mass in texts.values())
    assert counted == pytest.approx(batch_rejections(pair, length, drafts, root), abs=1e-10)
    for text, mass in texts.items():
        assert float(mass[0]) == pytest.approx(probability(models(pair)[0], text), abs=1e-10)


@pytest.mark.parametrize("pair", [*PAIRS, zipf_chain(8, seed=3)], ids=[*NAMES, "zipf 8"])
def test_more_drafts_never_hurt_and_the_optimum_is_never_worse(pair: ChainPair) -> None:
    by_root = {root: [batch_rejections(pair, 9, m, root) for m in range(1, 12)] for root in ("recursive", "optimal")}
    limit = limit_rejections(pair, 9)
    for found in by_root.values():
        assert all(more <= less + 1e-12 for less, more in itertools.pairwise(found))
        assert found[0] == pytest.approx(expected_rejections(pair, 9), abs=1e-12)
        assert found[-1] >= limit - 1e-12
    assert all(o <= r + 1e-12 for o, r in zip(by_root["optimal"], by_root["recursive"], strict=True))


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
@pytest.mark.parametrize("root", ["recursive", "optimal"])
def test_endlessly_many_drafts(pair: ChainPair, root: str) -> None:
    """Draft laws have no tiny masses, so that a thousand drafts are close to the limit."""
    draft = torch.where(pair.draft > 0, pair.draft + 0.1, 0.0)
    even = ChainPair(pair.name, pair.target, draft / draft.sum(-1, keepdim=True))
    assert batch_rejections(even, 6, 1000, root) == pytest.approx(limit_rejections(even, 6), abs=1e-10)


@pytest.mark.parametrize("family", [bernoulli(0.25, 0.75), uniform(4, 8, offset=2), zipf(6)], ids=lambda f: f.name)
@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_the_steady_rate_of_one_pair_of_laws(family: Family, drafts: int) -> None:
    pair = repeated(family)
    gap, rejected = float(pair.gap[0]), batch_rejections(pair, 1, drafts)
    per_token = batch_rejections(pair, 401, drafts) - batch_rejections(pair, 400, drafts)
    assert per_token == pytest.approx(steady_rejections(gap, rejected), abs=1e-10)


@pytest.mark.parametrize("root", ["recursive", "optimal"])
@pytest.mark.parametrize("cost", [0.4, 0.1, 0.01])
def test_the_number_worth_paying_for_is_the_best_of_all(root: str, cost: float) -> None:
    pair = zipf_chain(6, seed=4)
    times = [(1 + batch_rejections(pair, 30, m, root)) * (1 + m * cost) for m in range(1, 60)]
    assert drafts_worth(pair, 30, cost, root) == 1 + times.index(min(times))


def test_equal_laws_reject_nothing() -> None:
    same = repeated(bernoulli(0.4, 0.4))
    assert expected_rejections(same, 20) == limit_rejections(same, 20) == 0
    assert drafts_worth(same, 20, 0.1) == 1


def test_bad_arguments_are_refused() -> None:
    law = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    with pytest.raises(LawError, match=r"has laws \(V \+ 1, V\)"):
        ChainPair("square", law, law)
    with pytest.raises(UnknownNameError, match="did you mean optimal"):
        batch_rejections(PAIRS[0], 3, 2, "optimum")
