"""Oracles: the linear program of optimal transport with membership cost, and its min-cut, by brute force.

Both are exponential in the vocabulary.
"""

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

__all__ = ["cut_optimum", "iid_sets", "lp_optimum"]

Law = npt.NDArray[np.float64]


def iid_sets(draft: Law, k: int) -> dict[frozenset[int], float]:
    """Return the law of the *set* of tokens among k iid drafts."""
    sets: dict[frozenset[int], float] = {}
    for tokens in itertools.product(range(len(draft)), repeat=k):
        chance = float(np.prod(draft[list(tokens)]))
        if chance > 0:
            sets[frozenset(tokens)] = sets.get(frozenset(tokens), 0.0) + chance
    return sets


def lp_optimum(target: Law, sets: Mapping[frozenset[int], float]) -> float:
    """Return max Σ π(S, y ∈ S) subject to Σ_y π(S, y) ≤ P(S) and Σ_S π(S, y) ≤ target(y)."""
    flows = [(row, token) for row, tokens in enumerate(sets) for token in sorted(tokens)]
    limits = np.zeros((len(sets) + len(target), len(flows)))
    for column, (row, token) in enumerate(flows):
        limits[row, column] = limits[len(sets) + token, column] = 1.0
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(
        -np.ones(len(flows)),
        A_ub=limits,
        b_ub=np.concatenate([list(sets.values()), target]),
        method="highs",
        options=tight,
    )
    return -float(found.fun)


def cut_optimum(target: Law, sets: Mapping[frozenset[int], float]) -> float:
    """Return 1 − max_A [P(all drafts in A) − target(A)]⁺ over every subset A."""
    worst = 0.0
    for size in range(1, len(target) + 1):
        for subset in map(frozenset, itertools.combinations(range(len(target)), size)):
            inside = sum(chance for tokens, chance in sets.items() if tokens <= subset)
            worst = max(worst, inside - float(target[list(subset)].sum()))
    return 1 - worst
