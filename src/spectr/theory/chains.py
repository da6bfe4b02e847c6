"""A target and a drafter as two Markov chains over one vocabulary: small enough for exact computation, with different
laws in every context. A context is the previous token, or the beginning of the text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.errors import LawError
from spectr.theory.families import Family, zipf
from spectr.transport.laws import check_pair, total_variation

__all__ = ["ChainPair", "contexts", "repeated", "zipf_chain"]


@dataclass(frozen=True, slots=True, eq=False)
class ChainPair:
    """The laws after every context: row v < V after token v, row V at the beginning of a text."""

    name: str
    target: Tensor  # (V + 1, V) float64
    draft: Tensor  # (V + 1, V) float64

    def __post_init__(self) -> None:
        check_pair(self.target, self.draft)
        shape = tuple(self.target.shape)
        if shape != tuple(self.draft.shape) or len(shape) != 2 or shape[0] != shape[1] + 1:
            raise LawError(f"a chain over V tokens has laws (V + 1, V), got {shape} and {tuple(self.draft.shape)}")

    @property
    def size(self) -> int:
        """The size of the vocabulary."""
        return self.target.shape[-1]

    @property
    def gap(self) -> Tensor:
        """TV(target, draft) after every context, (V + 1,)."""
        return total_variation(self.target, self.draft)

    def context(self, text: Sequence[int]) -> int:
        """Return the row of the laws after `text`."""
        return text[-1] if text else self.size


def contexts(laws: Tensor, length: int) -> Tensor:
    """Return the law (length, V + 1) of the context at each position of a text of a chain with `laws` (V + 1, V)."""
    size = laws.shape[-1]
    here = torch.zeros(size + 1, dtype=torch.float64)
    here[size] = 1.0
    positions = []
    for _ in range(whole("length", length, 1)):
        positions.append(here)
        here = torch.cat([here @ laws, torch.zeros(1, dtype=torch.float64)])
    return torch.stack(positions)


def repeated(family: Family) -> ChainPair:
    """Return the chains with the same pair of laws after every context.

    >>> from spectr.theory import bernoulli
    >>> repeated(bernoulli(0.25, 0.75)).gap.tolist()
    [0.5, 0.5, 0.5]
    """
    rows = len(family.target) + 1
    return ChainPair(family.name, family.target.expand(rows, -1), family.draft.expand(rows, -1))


def zipf_chain(size: int = 12, noise: float = 1.0, temperature: float = 1.0, seed: int = 0) -> ChainPair:
    """Return a model-like pair of chains: the ranks of the tokens and the errors of the drafter differ between
    contexts."""
    targets, drafts = [], []
    for row in range(size + 1):
        family = zipf(size, noise=noise, temperature=temperature, seed=1000 * seed + row)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(1000 * seed + row))
        targets.append(family.target[order])
        drafts.append(family.draft[order])
    return ChainPair(f"zipf chain of {size} tokens", torch.stack(targets), torch.stack(drafts))
