"""Claims of docs/mathematics.md that no other test checks: the clip, the level swaps, hybrids, blocks, bounds."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.oracles import lp_optimum
from torch import Tensor

import spectr
from spectr.audit.toys import RandomModel, toy_pair
from spectr.transport import coupling
from spectr.transport.coupling import Drafted
from spectr.transport.kseq import KSeq
from spectr.transport.laws import overlap, residual, total_variation, without
from spectr.transport.optimal import Optimal, level_law, level_swaps, sorted_classes
from spectr.transport.selection import SelectingCoupling

Pair = tuple[Tensor, Tensor]


@st.composite
def law_pairs(draw: st.DrawFn, most: int = 5) -> Pair:
    """Draw target and draft laws over 2 … `most` tokens, with zeros and ties."""
    size = draw(st.integers(2, most))
    entry = st.one_of(st.just(0.0), st.integers(1, 4).map(float), st.floats(-6, 0).map(lambda e: 10.0**e))
    weights = st.lists(entry, min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-2)
    target, draft = (torch.tensor(draw(weights), dtype=torch.float64) for _ in range(2))
    return target / target.sum(), draft / draft.sum()


def subsets(size: int) -> list[list[int]]:
    return [list(a) for n in range(size + 1) for a in itertools.combinations(range(size), n)]


def every_tuple(draft: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return all possible drafts and their probabilities."""
    tuples = torch.cartesian_prod(*[draft.nonzero().flatten()] * k).view(-1, k)
    return tuples, draft[tuples].prod(-1)


def selected(made: SelectingCoupling, target: Tensor, draft: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the law of the selected token, summed over all drafts, and the law that the coupling states."""
    tokens, chance = every_tuple(draft, k)
    laws = (law.expand(len(tokens), -1) for law in (target, draft))
    chosen = made.select(*laws, Drafted(tokens, torch.ones_like(tokens, dtype=torch.bool)))
    weight = chance[:, None] * chosen.chance
    return torch.zeros_like(target).index_add_(0, tokens.flatten(), weight.flatten()), chosen.law.all()[0]


@settings(max_examples=60)
@given(law_pairs(), st.integers(1, 4), st.sampled_from(["maximal", "kseq_plus", "optimal", "optimal_binned"]))
def test_a_selection_has_the_stated_law_and_leaves_no_set_less_than_it_must(pair: Pair, k: int, name: str) -> None:
    target, draft = pair
    law, stated = selected(coupling(name), target, draft, k)
    assert (law - stated).abs().max() < 1e-12
    for a in subsets(len(target)):
        assert float(law[a].sum()) >= float(draft[a].sum() ** k) - 1e-12


@settings(max_examples=100)
@given(law_pairs(most=7), st.integers(1, 6))
def test_the_optimal_selected_law_is_a_clip(pair: Pair, k: int) -> None:
    """r = clip(target, c_lo·draft, c_hi·draft); the mass cut off above and the mass added below both equal the loss."""
    target, draft = pair
    live = draft > 0
    classes, member = sorted_classes(target, draft)
    mean = level_swaps(classes, torch.tensor(k), k).mean.gather(-1, member)
    law = torch.where(live, draft * mean, 0.0)
    loss = 1 - float(spectr.optimal_acceptance(target, draft, k))
    assert float(law.sum()) == pytest.approx(1, abs=1e-9)
    assert float(overlap(target, law)) == pytest.approx(1 - loss, abs=1e-9)
    low, high = float(mean[live].min()), float(mean[live].max())
    inside = live & (mean > low + 1e-9) & (mean < high - 1e-9)
    assert mean[inside].tolist() == pytest.approx((target / draft)[inside].tolist(), rel=1e-6)
    assert float((law - target).clamp_min(0).sum()) == pytest.approx(loss, abs=1e-9)
    assert float((target - law).clamp_min(0).sum()) == pytest.approx(loss, abs=1e-9)
    assert high <= k + 1e-9


@settings(max_examples=100)
@given(law_pairs(most=7), st.integers(2, 5))
def test_swaps_keep_the_mass_of_every_level_and_give_every_token_its_mean(pair: Pair, k: int) -> None:
    classes, _ = sorted_classes(*pair)
    levels = level_swaps(classes, torch.tensor(k), k)
    kernel = level_law(levels, torch.arange(len(classes.draft)))  # (token, level)
    held = classes.draft > 0
    assert (kernel.sum(-1) - 1).abs().max() < 1e-12
    assert (classes.draft @ kernel - classes.draft).abs().max() < 1e-9
    assert ((kernel @ levels.value - levels.mean)[held] * classes.draft[held]).abs().max() < 1e-9


@pytest.mark.parametrize("bins", [4, 8, 64])
def test_a_few_classes_are_lossless_too(bins: int) -> None:
    accepted = []
    for seed in range(5):
        target, draft = (model(()) for model in toy_pair("plain", 5, seed))
        made = Optimal(bins=bins, sort_below=0)
        tokens, chance = every_tuple(draft, 3)
        assert (chance @ made.output_law(target, draft, tokens) - target).abs().max() < 1e-12
        accepted.append(float(made.acceptance(target, draft, 3) - spectr.optimal_acceptance(target, draft, 3)))
    assert max(accepted) <= 1e-12


@settings(max_examples=60)
@given(law_pairs(), st.integers(2, 5))
def test_kseq_falls_in_rho_and_every_rho_from_the_root_on_is_lossless(pair: Pair, k: int) -> None:
    target, draft = pair
    root = float(KSeq()._rho(target, draft, torch.tensor(k))[0])
    assert 1 <= root <= k * (1 + 1e-12)
    tokens, chance = every_tuple(draft, k)
    kept = []
    for rho in (root, (root + k) / 2, float(k), 2.0 * k):
        made = KSeq(rho=max(rho, root))
        assert (chance @ made.output_law(target, draft, tokens) - target).abs().max() < 1e-9
        kept.append(float(made.acceptance(target, draft, k)))
    assert kept == pytest.approx(sorted(kept, reverse=True), abs=1e-12)
    assert kept[0] == pytest.approx(float(torch.minimum(target, root * draft).sum()), abs=1e-7)


@settings(max_examples=60)
@given(law_pairs(), st.integers(1, 3), st.integers(1, 2))
def test_hybrid_drafts_are_coupled_optimally(pair: Pair, k: int, pinned: int) -> None:
    """Solve the linear program over the sets of fixed and sampled drafts together."""
    target, draft = pair
    fixed = draft.topk(pinned).indices
    off = without(draft, fixed, torch.ones_like(fixed, dtype=torch.bool))
    sets: dict[frozenset[int], float] = {}
    tokens, chance = every_tuple(off, k) if off.sum() > 0 else (torch.zeros(1, 0, dtype=torch.int64), torch.ones(1))
    for row, weight in zip(tokens.tolist(), chance.tolist(), strict=True):
        both = frozenset(row) | frozenset(fixed.tolist())
        sets[both] = sets.get(both, 0.0) + weight
    found = float(coupling("hybrid").acceptance(target, draft, k, fixed=fixed))
    assert found == pytest.approx(lp_optimum(target.numpy(), sets), abs=1e-8)


def paths(model: RandomModel, length: int) -> dict[tuple[int, ...], float]:
    """Return every text of this length and its probability."""
    found = {(): 1.0}
    for _ in range(length):
        found = {(*text, x): chance * float(p) for text, chance in found.items() for x, p in enumerate(model(text))}
    return found


def kept_chance(target: RandomModel, draft: RandomModel, text: tuple[int, ...]) -> float:
    """Return w, the probability that block verification keeps at least this path."""
    kept = 1.0
    for at, token in enumerate(text):
        kept = min(1.0, kept * float(target(text[:at])[token]) / float(draft(text[:at])[token]))
    return kept


@pytest.mark.parametrize("seed", range(4))
def test_block_keeps_a_prefix_with_its_chance(seed: int) -> None:
    target, draft = toy_pair("plain", 3, seed)
    meant = sum(q * kept_chance(target, draft, text) for n in (1, 2, 3) for text, q in paths(draft, n).items())
    kept = spectr.exact_step_law("block", target, draft, (1, 1, 1)).expected_tokens - 1
    assert kept == pytest.approx(meant, abs=1e-12)


def best_one_path_verifier(target: RandomModel, draft: RandomModel, size: int, length: int) -> float:
    """Solve the linear program over all ways to keep n tokens of a drafted path and emit one more, such that the
    output, completed by the target, has the target's law."""
    drafts, texts = list(paths(draft, length).items()), list(paths(target, length + 1).items())
    ways = [(x, n, z) for x in range(len(drafts)) for n in range(length + 1) for z in range(size)]
    equal = np.zeros((len(drafts) + len(texts), len(ways)))
    for column, (x, n, z) in enumerate(ways):
        equal[x, column] = 1.0
        emitted = (*drafts[x][0][:n], z)
        for row, (text, _) in enumerate(texts):
            if text[: n + 1] == emitted:
                rest = [float(target(text[:at])[text[at]]) for at in range(n + 1, length + 1)]
                equal[len(drafts) + row, column] = float(np.prod(rest))
    meant = [chance for _, chance in (*drafts, *texts)]
    return -float(linprog([-n for _, n, _ in ways], A_eq=equal, b_eq=meant, method="highs").fun)


@pytest.mark.parametrize(("size", "length"), [(2, 2), (3, 2), (2, 3)])
def test_no_one_path_verifier_keeps_more_than_block(size: int, length: int) -> None:
    for seed in range(3):
        target, draft = toy_pair("plain", size, seed)
        kept = spectr.exact_step_law("block", target, draft, (1,) * length).expected_tokens - 1
        assert kept == pytest.approx(best_one_path_verifier(target, draft, size, length), abs=1e-7)


@settings(max_examples=100)
@given(law_pairs(most=7))
def test_the_race_of_one_child_lies_between_its_bounds(pair: Pair) -> None:
    gap = float(total_variation(*pair))
    accepted = float(spectr.race_acceptance(*pair, 1))
    assert (1 - gap) / (1 + gap) - 1e-9 <= accepted <= 1 - gap + 1e-9


@settings(max_examples=60)
@given(law_pairs(most=6))
def test_the_race_with_all_tokens_as_children_never_misses_a_drafted_one(pair: Pair) -> None:
    target, draft = pair
    found = [float(spectr.race_acceptance(target, draft, k)) for k in range(1, len(target) + 1)]
    assert found == pytest.approx(sorted(found), abs=1e-9)
    assert found[-1] == pytest.approx(float(target[draft > 0].sum()), abs=1e-9)


@settings(max_examples=200)
@given(law_pairs(most=6), st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(0, 2**31))
def test_no_test_of_one_draft_lies_below_the_frontier(pair: Pair, accept: list[float], seed: int) -> None:
    """Any acceptance and any law after a rejection: bias ≥ TV − P(reject)."""
    target, draft = pair
    taken = draft * torch.tensor(accept[: len(draft)], dtype=torch.float64)
    rejected = 1 - taken.sum()
    after = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(len(target))))
    for law in (after, target, residual(target, draft) / residual(target, draft).sum()):
        bias = total_variation(taken + rejected * law, target)
        assert float(bias) >= float(total_variation(target, draft) - rejected) - 1e-12
