"""The reference implementations that a witness uses are correct by themselves, and equal to those of generation."""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from spectr.audit.reference_coins import coin, noise
from spectr.audit.reference_couplings import Children, ReferenceCoupling
from spectr.coins import Purpose, gumbel, uniform
from spectr.transport import coupling
from spectr.transport.coupling import Drafted
from spectr.transport.kseq import KSeq
from spectr.transport.selection import SelectingCoupling
from spectr.verify.lossy.lenience import LenientCoupling
from spectr.verify.lossy.pareto import ParetoCoupling

Law = npt.NDArray[np.float64]
NAMES = ["maximal", "kseq", "kseq_plus", "optimal", "optimal_binned", "hybrid", "recursive", "recursive_wor", "match"]


def test_coins_are_those_of_generation() -> None:
    draw = np.random.default_rng(1)
    for _ in range(300):
        seed, committed = int(draw.integers(-(2**63), 2**63 - 1)), int(draw.integers(0, 1 << 40))
        node, purpose = int(draw.integers(0, 300)), int(draw.choice(list(Purpose)))
        meant = uniform(torch.tensor([seed]), torch.tensor([committed]), torch.tensor([[node]]), purpose)
        assert coin(seed, committed, node, purpose) == float(meant)
    assert coin(2**64 + 5, 7, 1, 2) == coin(5, 7, 1, 2)


def test_noise_is_that_of_generation() -> None:
    """Logarithms may differ in their last bits."""
    tokens = np.arange(5000)
    for seed, position in [(0, 0), (-5, 77), (2**62, 1 << 40)]:
        meant = gumbel(torch.tensor([seed]), torch.tensor([[position]]), 5000)[0, 0].numpy()
        np.testing.assert_allclose(noise(seed, position, tokens), meant, rtol=0, atol=1e-13)
        np.testing.assert_array_equal(noise(seed, position, tokens[::7]), noise(seed, position, tokens)[::7])


def law(draw: np.random.Generator, size: int, zeros: float = 0.3) -> Law:
    weights = draw.exponential(size=size) ** 2 * (draw.random(size) > zeros)
    weights[draw.integers(size)] += 0.1
    return weights / weights.sum()


def drafts(draw: np.random.Generator, draft: Law, name: str) -> Children:
    """Return drafts of which some are fixed, if the coupling supports that."""
    k = int(draw.integers(1, 6))
    if name == "recursive_wor":
        k = min(k, int((draft > 0).sum()))
        return Children(tuple(draw.choice(len(draft), k, replace=False, p=draft).tolist()), None, k)
    fixed = np.argsort(-draft)[: draw.integers(0, k + 1)].tolist() if draw.random() < 0.5 else []
    off = draft.copy()
    off[fixed] = 0
    drawn = draw.choice(len(draft), k - len(fixed), p=off / off.sum()).tolist() if off.sum() > 0 else []
    both = [(token, True) for token in fixed] + [(token, False) for token in drawn] or [(int(draft.argmax()), True)]
    order = draw.permutation(len(both))
    tokens, flags = zip(*(both[at] for at in order), strict=True)
    return Children(tokens, flags if fixed or not drawn else None, len(both) + int(draw.integers(0, 2)))


def as_drafted(children: Children) -> Drafted:
    """Return the drafts in the form of the engine's couplings, with dead slots at the end."""
    dead = children.width - len(children.tokens)
    live = torch.tensor([True] * len(children.tokens) + [False] * dead)
    fixed = None if children.fixed is None else torch.tensor([*children.fixed, *[False] * dead])
    return Drafted(torch.tensor([*children.tokens, *[0] * dead]), live, fixed)


@pytest.mark.parametrize("name", [*NAMES, "lenience", "pareto"])
def test_couplings_are_those_of_generation(name: str) -> None:
    """Random laws with zeros, and random drafts with copies."""
    inner = coupling("optimal")
    assert isinstance(inner, SelectingCoupling)
    relaxed = {"lenience": LenientCoupling(inner, 0.8), "pareto": ParetoCoupling(inner, 0.05)}
    made = relaxed[name] if name in relaxed else coupling(name)
    reference, draw = ReferenceCoupling.of(made), np.random.default_rng(3)
    assert reference is not None
    for _ in range(150):
        size = int(draw.integers(2, 30))
        target, draft = law(draw, size), law(draw, size)
        children = drafts(draw, draft, name)
        laws, drafted = (torch.from_numpy(target), torch.from_numpy(draft)), as_drafted(children)
        meant, found = made.outcome(*laws, drafted), reference.outcome(target, draft, children)
        np.testing.assert_allclose(found.ending, meant.ending[: len(children.tokens)].numpy(), rtol=0, atol=1e-12)
        if found.ending.sum() < 1 - 1e-9:
            residual = meant.residual.all().numpy()
            np.testing.assert_allclose(
                found.residual / found.residual.sum(), residual / residual.sum(), rtol=0, atol=1e-9
            )
        if isinstance(made, SelectingCoupling):
            wanted, chosen = made.selection(*laws, drafted), reference.selection(target, draft, children)
            np.testing.assert_allclose(chosen.chance, wanted.chance[: len(children.tokens)].numpy(), rtol=0, atol=1e-12)
            np.testing.assert_allclose(chosen.law, wanted.law.all().numpy(), rtol=0, atol=1e-12)


def smallest_rho(target: Law, draft: Law, k: int) -> float:
    """Return the root of 1 − (1 − S / ρ)^k = S with S = Σ min(target, ρ·draft), by bisection."""
    low, high = 1.0, float(k)
    for _ in range(60):
        rho = (low + high) / 2
        mass = np.minimum(target, rho * draft).sum()
        low, high = (rho, high) if -np.expm1(k * np.log1p(-min(mass / rho, 1 - 1e-16))) > mass else (low, rho)
    return high


@pytest.mark.parametrize("apart", [1e-2, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_generation_finds_the_smallest_rho(apart: float, dtype: torch.dtype) -> None:
    """Also for nearly equal laws, for which false position alone is off by up to 4e-3. In float32 the tolerance is
    4.8e-7."""
    draw = np.random.default_rng(5)
    for _ in range(40):
        k, logits = int(draw.integers(2, 6)), 2 * draw.standard_normal(12)
        other = logits + apart * draw.standard_normal(12)
        target, draft = (torch.from_numpy(values).to(dtype).softmax(-1) for values in (logits, other))
        meant = smallest_rho(target.double().numpy(), draft.double().numpy(), k)
        assert float(KSeq()._rho(target, draft, torch.tensor(k))[0]) == pytest.approx(meant, rel=2e-6)


def tuples(draft: Law, k: int, name: str) -> Iterator[tuple[tuple[int, ...], float]]:
    """Return all possible drafts and their probabilities."""
    if name != "recursive_wor":
        for tokens in itertools.product(range(len(draft)), repeat=k):
            yield tokens, float(np.prod(draft[list(tokens)]))
        return
    for tokens in itertools.permutations(np.flatnonzero(draft).tolist(), k):
        chance, left = 1.0, 1.0
        for token in tokens:
            chance, left = chance * draft[token] / left, left - draft[token]
        yield tokens, float(chance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_comes_out_of_a_reference_has_the_targets_law(name: str, k: int) -> None:
    """The sum over all drafts is the target's law, so a reference is correct independently of what it checks."""
    reference, draw = ReferenceCoupling.of(coupling(name)), np.random.default_rng(k)
    assert reference is not None
    for _ in range(8):
        target, draft = law(draw, 4), law(draw, 4, zeros=0.0)
        total = np.zeros(4)
        for tokens, chance in tuples(draft, k, name):
            found = reference.outcome(target, draft, Children(tokens, None, k))
            np.add.at(total, list(tokens), chance * found.ending)
            total += chance * max(0.0, 1 - found.ending.sum()) * found.residual / found.residual.sum()
        np.testing.assert_allclose(total, target, rtol=0, atol=1e-12)
