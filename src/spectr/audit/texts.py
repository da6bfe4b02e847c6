"""The target's exact distribution of short texts, and the tests that compare samples of any sampler with it.

Four tests use one set of samples, each with 16 cells that are fixed before anything is drawn:

- `first token`: the likeliest tokens, and all others together;
- `text`: the likeliest texts of three tokens, and all others together;
- `ranks`: the rank of each token in its own distribution. With F the mass of all likelier tokens, F + U·p of a token of
  probability p is uniform after any text and for any distribution (U is uniform and drawn here). All positions, texts
  and tails are thus compared at once, and a dependence between steps is detected;
- `neighbours`: the same for the first tokens of two neighbouring samples, which must be independent.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectr.audit.report import CELLS
from spectr.audit.statistics import GTest, compare_counts
from spectr.checks import whole
from spectr.errors import ArgumentError

__all__ = ["TESTS", "Cells", "LawsAfter", "Text", "TextLaw", "run_tests"]

Text = tuple[int, ...]
Floats = npt.NDArray[np.float64]
LawsAfter = Callable[[Sequence[Text]], Tensor]
"""Maps texts after the prompt to laws (n, V), float64."""

TESTS = ("first token", "text", "ranks", "neighbours")
_ALL = 1 - 1e-12  # a remaining mass beyond this is rounding
_CHUNK = 64  # laws computed at once
_TEXT = 3  # tokens of the texts that are counted individually


@dataclass(frozen=True, slots=True)
class Cells:
    """The likeliest first tokens and texts with their probabilities; they are fixed before samples are drawn."""

    firsts: list[tuple[Text, float]]
    texts: list[tuple[Text, float]]


@dataclass(frozen=True, slots=True)
class TextLaw:
    """The law of texts of up to `length` tokens after one prompt; a text ends at a stop token."""

    laws: LawsAfter
    length: int = 3
    stops: frozenset[int] = frozenset()
    closed: bool = True  # a shorter text must end with a stop token
    remembered: Callable[[Text], Text] = lambda text: text  # a shorter text after which the law is the same

    def __post_init__(self) -> None:
        whole("length", self.length, 1)

    def cells(self) -> Cells:
        """Return the cells of the tests, which must be fixed before samples are drawn."""
        return Cells(self.likeliest(CELLS - 1, 1), self.likeliest(CELLS - 1, min(_TEXT, self.length)))

    def check(self, text: Text) -> None:
        """Refuse a text of the wrong length."""
        ended = not self.closed or (bool(text) and text[-1] in self.stops)
        if len(text) > self.length or (len(text) < self.length and not ended):
            raise ArgumentError(
                f"a sampler must give texts of {self.length} tokens, or that end with a stop token, got {list(text)}"
            )

    def likeliest(self, count: int, length: int | None = None) -> list[tuple[Text, float]]:
        """Return the `count` likeliest texts and their probabilities, by best-first search."""
        most = self.length if length is None else length
        found: list[tuple[Text, float]] = []
        queue: list[tuple[float, Text]] = [(-1.0, ())]
        while queue and len(found) < count:
            chance, text = heapq.heappop(queue)
            if len(text) == most or (text and text[-1] in self.stops):
                found.append((text, -chance))
                continue
            law = self.laws([text])[0]
            best = law.topk(min(count, int((law > 0).sum())))
            for token, p in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                heapq.heappush(queue, (chance * p, (*text, token)))
        return found

    def places(self, texts: Sequence[Text]) -> tuple[Floats, Floats]:
        """Return, for every text (n) and position (length), the mass of all likelier tokens and the token's own mass.

        Beyond a text's end these are 0 and 1, so that a draw between them is uniform there too."""
        low, mass = np.zeros((len(texts), self.length)), np.ones((len(texts), self.length))
        users: dict[Text, list[tuple[int, int, int]]] = {}
        for row, text in enumerate(texts):
            for at, token in enumerate(text[: self.length]):
                users.setdefault(self.remembered(text[:at]), []).append((row, at, token))
        beginnings = list(users)
        for start in range(0, len(beginnings), _CHUNK):
            part = beginnings[start : start + _CHUNK]
            for beginning, law in zip(part, self.laws(part), strict=True):
                rows, ats, tokens = zip(*users[beginning], strict=True)
                low[rows, ats], mass[rows, ats] = _places(law, list(tokens))
        return low, mass


def _places(law: Tensor, tokens: list[int]) -> tuple[Floats, Floats]:
    """Return the mass of the tokens likelier than each (of equal ones, those with lower ids), and its own."""
    order = law.sort(descending=True, stable=True).indices
    sums = law[order].cumsum(0)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    at = rank[torch.tensor(tokens)]
    own = law[tokens]
    return ((sums[at] - own) / sums[-1]).clamp(0, 1).numpy(), (own / sums[-1]).numpy()


def _of_likeliest(counts: Counter[Text], best: Sequence[tuple[Text, float]]) -> GTest:
    """Test the likeliest texts individually and all others together."""
    total = sum(chance for _, chance in best)
    left = 1 - total if total < _ALL else 0.0
    found = [counts[text] for text, _ in best]
    chances = [chance / (total + left) for _, chance in best]
    return compare_counts([*found, counts.total() - sum(found)], [*chances, left / (total + left)])


def _of_uniforms(values: Floats, grid: Sequence[int]) -> GTest:
    """Test points (n, d) of the unit cube in equal boxes."""
    sides = np.asarray(grid)
    box = np.minimum((values * sides).astype(np.int64), sides - 1)
    size = int(np.prod(sides))
    counts = np.bincount(np.ravel_multi_index(tuple(box.T), tuple(grid)), minlength=size)
    return compare_counts(counts.tolist(), [1 / size] * size)


def _grid(length: int) -> tuple[int, ...]:
    """Return the number of parts of each position, such that there are 16 cells; long texts use the last four
    tokens."""
    short = {1: (16,), 2: (4, 4), 3: (4, 2, 2)}
    return short[length] if length in short else (*(1,) * (length - 4), 2, 2, 2, 2)


def run_tests(samples: Sequence[Sequence[int]], law: TextLaw, cells: Cells, seed: int = 0) -> dict[str, GTest]:
    """Run all tests on samples in the order they were drawn; `seed` seeds the uniforms of the ranks."""
    texts = [tuple(sample) for sample in samples]
    counts = Counter(texts)
    for text in counts:
        law.check(text)
    distinct = {text: at for at, text in enumerate(counts)}
    low, mass = law.places(list(distinct))
    lost = sum(counts[text] for text, at in distinct.items() if (mass[at] <= 0).any())
    if lost:
        return dict.fromkeys(TESTS, GTest(len(texts), CELLS, float("inf"), lost / len(texts), lost))
    index = np.array([distinct[text] for text in texts])
    noise = np.random.default_rng([abs(seed), len(texts)]).random((len(texts), law.length))
    uniform = low[index] + noise * mass[index]
    pairs = uniform[: len(texts) // 2 * 2, 0].reshape(-1, 2)
    firsts, threes = (Counter(text[:length] for text in texts) for length in (1, _TEXT))
    return {
        "first token": _of_likeliest(firsts, cells.firsts),
        "text": _of_likeliest(threes, cells.texts),
        "ranks": _of_uniforms(uniform, _grid(law.length)),
        "neighbours": _of_uniforms(pairs, (4, 4)),
    }
