"""The closed forms of the comparison against couplings summed over every draft, the linear program, and the race run
with its own noise."""

import itertools
import json

import numpy as np
import pytest
import torch
from tests.oracles import iid_sets, lp_optimum
from torch import Tensor

from spectr.coins import gumbel
from spectr.errors import ArgumentError
from spectr.theory import COLUMNS, Comparison, Family, bernoulli, compare, uniform, zipf
from spectr.transport import coupling
from spectr.transport.coupling import Drafted
from spectr.transport.hybrid import fixed_count
from spectr.transport.laws import without

KS = (1, 2, 3)
FAMILIES = [
    bernoulli(0.25, 0.75),
    bernoulli(0.5, 0.5),
    bernoulli(1.0, 0.0),
    uniform(2, 4, offset=1),
    zipf(5, seed=1),
    zipf(5, noise=2.0, temperature=0.3, seed=2),
]
FLAT = zipf(8, temperature=30.0)  # so flat that of four drafts none is worth fixing


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def found(request: pytest.FixtureRequest) -> Comparison:
    return compare(request.param, KS)


def settled(name: str, family: Family, k: int, fixed: Tensor) -> float:
    """Return the acceptance summed over every tuple of drafts: `fixed` ones first, the others drawn outside them."""
    rest = k - len(fixed)
    law = without(family.draft, fixed, torch.ones_like(fixed, dtype=torch.bool)) if len(fixed) else family.draft
    support = [int(token) for token in law.nonzero()]
    draws = list(itertools.product(support, repeat=rest)) if support else [()]
    chance = torch.stack([law[list(draw)].prod() for draw in draws])
    tokens = torch.tensor([[*fixed.tolist(), *draw] for draw in draws])
    pinned = (torch.arange(tokens.shape[1]) < len(fixed)).expand_as(tokens)
    drafted = Drafted(tokens, torch.ones_like(pinned), pinned if len(fixed) else None)
    laws = (x.expand(len(draws), -1) for x in (family.target, family.draft))
    ending = coupling(name).outcome(*laws, drafted).ending.sum(-1)
    assert float(chance.sum()) == pytest.approx(1, abs=1e-12)
    return float((chance * ending).sum())


@pytest.mark.parametrize("name", ["kseq", "kseq_plus", "recursive"])
def test_a_coupling_summed_over_all_drafts(found: Comparison, name: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    direct = [settled(name, found.family, k, none) for k in KS]
    assert found.acceptance[name] == pytest.approx(direct, abs=1e-9)


def test_the_optimum_is_the_linear_programs(found: Comparison) -> None:
    target, draft = found.family.target.numpy(), found.family.draft.numpy()
    direct = [lp_optimum(target, iid_sets(draft, k)) for k in KS]
    assert found.acceptance["optimum"] == pytest.approx(direct, abs=1e-8)


def test_one_draft_is_the_overlap(found: Comparison) -> None:
    once = settled("maximal", found.family, 1, torch.zeros(0, dtype=torch.int64))
    assert found.acceptance["one_draft"] == pytest.approx([once] * len(KS), abs=1e-12)
    assert once == pytest.approx(1 - found.total_variation, abs=1e-12)


@pytest.mark.parametrize("family", [*FAMILIES, FLAT], ids=lambda family: family.name)
def test_hybrid_fixes_the_top_and_samples_the_rest(family: Family) -> None:
    ks = (1, 4, 6)
    got = compare(family, ks).acceptance["hybrid"]
    for k, value in zip(ks, got, strict=True):
        count = int(fixed_count(family.draft, k))
        fixed = family.draft.argsort(descending=True, stable=True)[:count]
        assert value == pytest.approx(settled("optimal_sorted", family, k, fixed), abs=1e-9)


def test_the_hybrids_of_these_families_do_fix_something() -> None:
    counts = {int(fixed_count(family.draft, k)) for family in (*FAMILIES, FLAT) for k in (4, 6)}
    assert counts >= {0, 1, 2, 3}


def test_top_k_is_the_targets_mass_on_the_drafts_top(found: Comparison) -> None:
    """The average over every order of the vocabulary, which is how ties are shared."""
    target, draft = found.family.target.numpy(), found.family.draft.numpy()
    orders = list(itertools.permutations(range(len(draft))))
    for at, k in enumerate(KS):
        masses = []
        for order in orders:
            top = sorted(order, key=lambda token: -draft[token])[:k]  # stable: ties in the order given
            masses.append(sum(target[token] for token in top if draft[token] > 0))
        assert found.acceptance["top_k"][at] == pytest.approx(np.mean(masses), abs=1e-12)


def test_the_race_with_one_draft_has_its_closed_form(found: Comparison) -> None:
    target, draft = found.family.target.tolist(), found.family.draft.tolist()
    both = [v for v in range(len(target)) if target[v] > 0 and draft[v] > 0]
    rivals = [sum(max(target[w] / target[v], draft[w] / draft[v]) for w in range(len(target))) for v in both]
    assert found.acceptance["race"][0] == pytest.approx(sum(1 / rival for rival in rivals), abs=1e-9)


@pytest.mark.parametrize("k", [2, 4])
def test_the_race_as_it_is_run(k: int) -> None:
    """200,000 races with a fixed seed; five standard deviations are a false-alarm rate below 1e-6."""
    family, races = zipf(20, seed=5), 200_000
    noise = gumbel(torch.tensor([7]), torch.arange(races)[None], 20)[0]
    winner = (family.target.log() + noise).argmax(-1, keepdim=True)
    hits = ((family.draft.log() + noise).topk(k).indices == winner).any(-1).double().mean()
    (value,) = compare(family, (k,)).acceptance["race"]
    assert value is not None
    assert abs(float(hits) - value) < 5 * (value * (1 - value) / races) ** 0.5


def test_no_iid_rule_beats_the_optimum_and_more_drafts_never_hurt() -> None:
    found = compare(zipf(60))
    optimum = found.acceptance["optimum"]
    for name, values in found.acceptance.items():
        assert list(values) == sorted(values), name
        if COLUMNS[name].siblings == "iid":
            assert all(value <= best + 1e-12 for value, best in zip(values, optimum, strict=True)), name
    assert found.acceptance["kseq"] < found.acceptance["kseq_plus"] < optimum  # strictly, from the first that differs


def test_json_is_plain_and_complete() -> None:
    found = compare(zipf(30), (4, 1, 4))
    data = json.loads(json.dumps(found.as_data(), allow_nan=False))
    assert list(data) == ["family", "vocabulary", "total_variation", "ks", "acceptance"]
    assert (data["family"], data["vocabulary"], data["ks"]) == ("zipf(T=1)", 30, [1, 4])
    assert list(data["acceptance"]) == list(COLUMNS)
    assert {len(values) for values in data["acceptance"].values()} == {2}
    assert data["total_variation"] == pytest.approx(1 - data["acceptance"]["one_draft"][0])


def test_best_looks_at_sampled_drafts_only() -> None:
    found = compare(bernoulli(0.9, 0.8), (1,))
    assert found.acceptance["top_k"][0] == found.best(0) == pytest.approx(0.9)
    fixed_wins = compare(bernoulli(1.0, 0.6), (1,))
    assert fixed_wins.acceptance["top_k"] == (1.0,)
    assert fixed_wins.best(0) == pytest.approx(0.6)


def test_the_race_is_not_computed_for_large_vocabularies() -> None:
    counted: list[int] = []
    found = compare(zipf(2049), (1, 2), lambda: counted.append(1))
    assert found.acceptance["race"] == (None, None)
    assert all(None not in values for name, values in found.acceptance.items() if name != "race")
    assert len(counted) == 2 * len(COLUMNS)
    assert found.best(1) == pytest.approx(found.acceptance["hybrid"][1], abs=1e-12)


@pytest.mark.parametrize("ks", [(), (0,), (1, -1), (1.5,), (True,)])
def test_ks_are_counts(ks: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="ks must be integers of at least 1"):
        compare(bernoulli(), ks)
