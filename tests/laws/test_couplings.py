"""Every registered coupling has the target's law as its output, summed over all drafts, and the stated acceptance."""

import itertools

import pytest
import torch
from torch import Tensor

import spectr
from spectr.audit.toys import CORNERS, toy_pair
from spectr.transport import COUPLINGS

VOCABULARY = 4
OPTIONS = {"optimal_binned": {"bins": 64}}  # fewer classes of tokens; the coupling is exact with any number
SAMPLED = [name for name in COUPLINGS if "iid" in spectr.coupling(name).siblings]
HYBRID = [name for name in COUPLINGS if "hybrid" in spectr.coupling(name).siblings]


def laws(corner: str, seed: int) -> tuple[Tensor, Tensor]:
    target, draft = toy_pair(corner, VOCABULARY, seed)
    return target(()), draft(())


def every_draft(law: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return all k-tuples of iid draws and their probabilities."""
    tuples = torch.tensor(list(itertools.product(range(len(law)), repeat=k)))
    chance = law[tuples].prod(-1)
    return tuples[chance > 0], chance[chance > 0]


def every_order(law: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return all ordered draws without replacement and their probabilities."""
    found = []
    for tokens in itertools.permutations(range(len(law)), k):
        left, chance = 1.0, 1.0
        for token in tokens:
            chance *= float(law[token]) / left if left > 1e-12 else 0.0
            left -= float(law[token])
        if chance > 0:
            found.append((tokens, chance))
    return torch.tensor([t for t, _ in found]), torch.tensor([c for _, c in found], dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("name", SAMPLED)
def test_iid_drafts(name: str, k: int) -> None:
    coupling = spectr.coupling(name, **OPTIONS.get(name, {}))
    for corner, seed in itertools.product(CORNERS, range(2)):
        target, draft = laws(corner, seed)
        tokens, chance = every_draft(draft, k)
        law = chance @ coupling.output_law(target, draft, tokens)
        assert (law - target).abs().max() < 1e-12
        outcome = coupling.outcome(*coupling._arguments(target, draft, tokens, None))
        assert abs(float(chance @ outcome.ending.sum(-1)) - float(coupling.acceptance(target, draft, k))) < 1e-12


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", HYBRID)
def test_hybrid_drafts(name: str, k: int) -> None:
    coupling = spectr.coupling(name, **OPTIONS.get(name, {}))
    for corner, count in itertools.product(CORNERS, (1, 2)):
        target, draft = laws(corner, count)
        fixed = draft.topk(count).indices
        off = draft.clone()
        off[fixed] = 0
        if off.sum() <= 0:
            continue
        off /= off.sum()
        tokens, chance = every_draft(off, k)
        law = chance @ coupling.output_law(target, draft, tokens, fixed=fixed)
        assert (law - target).abs().max() < 1e-12
        outcome = coupling.outcome(*coupling._arguments(target, draft, tokens, fixed))
        found = float(chance @ outcome.ending.sum(-1))
        assert abs(found - float(coupling.acceptance(target, draft, k, fixed=fixed))) < 1e-12 or name == "match"


@pytest.mark.parametrize("name", HYBRID)
def test_fixed_drafts_alone(name: str) -> None:
    coupling = spectr.coupling(name)
    target, draft = laws("plain", 5)
    fixed = torch.tensor([2, 0])
    none = torch.zeros(0, dtype=torch.int64)
    law = coupling.output_law(target, draft, none, fixed=fixed)
    assert (law - target).abs().max() < 1e-15


@pytest.mark.parametrize("k", [1, 2, 3])
def test_drafts_without_replacement(k: int) -> None:
    coupling = spectr.coupling("recursive_wor")
    for corner, seed in itertools.product(CORNERS, range(3)):
        target, draft = laws(corner, seed)
        if int((draft > 0).sum()) < k:
            continue
        tokens, chance = every_order(draft, k)
        outcome = coupling.outcome(*coupling._arguments(target, draft, tokens, None))
        assert (chance @ outcome.law(tokens) - target).abs().max() < 1e-12
        assert abs(float(chance @ outcome.ending.sum(-1)) - float(coupling.acceptance(target, draft, k))) < 1e-12


@pytest.mark.parametrize("name", SAMPLED)
def test_number_of_drafts_may_differ_by_row(name: str) -> None:
    """A batch with 1, 2 and 3 live drafts gives the same as each row alone."""
    coupling = spectr.coupling(name)
    pairs = [laws("plain", seed) for seed in range(3)]
    target, draft = (torch.stack(side) for side in zip(*pairs, strict=True))
    counts = torch.tensor([1, 2, 3])
    together = coupling.acceptance(target, draft, counts)
    alone = [float(coupling.acceptance(*pair, int(k))) for pair, k in zip(pairs, counts, strict=True)]
    assert together.tolist() == pytest.approx(alone, abs=1e-14)


@pytest.mark.parametrize("name", SAMPLED)
def test_draw_follows_the_law(name: str) -> None:
    """Draw with a fine grid of coins reproduce the law, up to the width of the grid."""
    coupling = spectr.coupling(name, **OPTIONS.get(name, {}))
    target, draft = laws("plain", 1)
    tokens = torch.tensor([0, 3, 1])
    grid = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    coins = torch.cartesian_prod(grid, grid)
    slot, token = coupling.draw(target, draft, tokens.expand(len(coins), 3), coins)
    found = torch.bincount(token, minlength=VOCABULARY).double() / len(coins)
    assert (found - coupling.output_law(target, draft, tokens)).abs().max() < 0.04
    drafted = slot < 3
    assert bool((tokens[slot[drafted]] == token[drafted]).all())
