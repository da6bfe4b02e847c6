"""Acceptance by the number of drafts K, for every method of verification that has a closed form. All in float64.

Acceptance is the probability that the next token is one of the K drafted ones. Every column is lossless; they differ
in how the drafts are drawn and in how well the rule couples them with the target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spectr.errors import ArgumentError
from spectr.theory.families import Family
from spectr.transport import coupling, optimal_acceptance, race_acceptance
from spectr.transport.laws import overlap, total_variation
from spectr.types import Siblings

__all__ = ["COLUMNS", "KS", "RACE_TOKENS", "Column", "Comparison", "compare"]

KS = (1, 2, 4, 8, 16)
RACE_TOKENS = 2048  # the race costs V²·K; it is not computed for larger vocabularies


def _coupled(name: str, **options: Any) -> Callable[[Tensor, Tensor, int], Tensor]:
    return lambda target, draft, k: coupling(name, **options).acceptance(target, draft, k)


def _top_k(target: Tensor, draft: Tensor, k: int) -> Tensor:
    """Return the target's mass on the k likeliest tokens of the draft law.

    Tokens that tie for the last places share them, so that the order of the vocabulary does not matter. A token without
    draft mass is never drafted."""
    least = draft.topk(min(k, len(draft))).values[-1]
    above, tied = draft > least, (draft == least) & (draft > 0)
    share = (k - above.sum()) / tied.sum().clamp_min(1)
    return target[above].sum() + share.clamp_max(1) * target[tied].sum()


@dataclass(frozen=True, slots=True)
class Column:
    """One method of drafting and verification."""

    label: str
    siblings: Siblings  # how its K drafts are drawn
    acceptance: Callable[[Tensor, Tensor, int], Tensor]  # target law, draft law, K

    @property
    def sampled(self) -> bool:
        """Whether at least some drafts are drawn from the draft law."""
        return self.siblings != "fixed"


COLUMNS: Mapping[str, Column] = {
    "optimum": Column("iid optimum", "iid", optimal_acceptance),
    "kseq": Column("K-SEQ", "iid", _coupled("kseq")),
    "kseq_plus": Column("K-SEQ+", "iid", _coupled("kseq_plus")),
    "recursive": Column("recursive rejection", "iid", _coupled("recursive")),
    "race": Column("race", "race", race_acceptance),
    "hybrid": Column("hybrid optimum", "hybrid", _coupled("hybrid", bins=0)),
    "top_k": Column("top-k", "fixed", _top_k),
    "one_draft": Column("one draft", "iid", lambda target, draft, _: overlap(target, draft)),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The acceptance of every column of `COLUMNS` at every K; None if it was too expensive to compute."""

    family: Family
    ks: tuple[int, ...]
    acceptance: Mapping[str, tuple[float | None, ...]]

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        return len(self.family.target)

    @property
    def total_variation(self) -> float:
        """The total variation ½ Σ |target − draft|."""
        return float(total_variation(self.family.target, self.family.draft))

    def best(self, at: int) -> float:
        """Return the highest acceptance with sampled drafts at the K of index `at`."""
        found = (values[at] for name, values in self.acceptance.items() if COLUMNS[name].sampled)
        return max(value for value in found if value is not None)

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "family": self.family.name,
            "vocabulary": self.vocabulary,
            "total_variation": self.total_variation,
            "ks": list(self.ks),
            "acceptance": {name: list(values) for name, values in self.acceptance.items()},
        }


def compare(family: Family, ks: Sequence[int] = KS, progress: Callable[[], None] = lambda: None) -> Comparison:
    """Compute every column at every K, in rising order; `progress` is called after each value.

    >>> from spectr.theory import bernoulli
    >>> found = compare(bernoulli(0.25, 0.75), (1, 2))
    >>> [round(value, 4) for value in found.acceptance["kseq"]], found.acceptance["optimum"]
    ([0.5, 0.6483], (0.5, 0.6875))
    """
    if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
        raise ArgumentError(f"ks must be integers of at least 1, and at least one of them, got {list(ks)}")

    ks = sorted(set(ks))

    def value(name: str, k: int) -> float | None:
        expensive = name == "race" and len(family.target) > RACE_TOKENS
        found = None if expensive else float(COLUMNS[name].acceptance(family.target, family.draft, k))
        progress()
        return found

    return Comparison(family, tuple(ks), {name: tuple(value(name, k) for k in ks) for name in COLUMNS})
