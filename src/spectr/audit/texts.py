"""The target's exact law of short texts, and the tests that compare samples with it, whatever drew them.

Four tests look at one set of samples, each with 16 cells that are fixed before anything is drawn:

- `first token`: the likeliest tokens, and all others together;
- `text`: the likeliest texts of three tokens, and all others together;
- `ranks`: where each token stands in its own law. With F the mass of all likelier tokens, F + U·p of a token that comes
  with chance p is uniform, after any text and whatever the law (U uniform, made here). So positions, all texts and
  tails are compared at once, and a later step that depends on an earlier one shows;
- `neighbours`: the same of the first tokens of two neighbouring samples, which must be independent.
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
"""Texts after the prompt → laws (n, V), float64."""

TESTS = ("first token", "text", "ranks", "neighbours")
_ALL = 1 - 1e-12  # what is left of the mass beyond this is rounding
_CHUNK = 64  # laws looked at together
_TEXT = 3  # tokens of the texts that are counted one by one


@dataclass(frozen=True, slots=True)
class Cells:
    """The likeliest first tokens and texts with their probabilities, which are counted; chosen before any is drawn."""

    firsts: list[tuple[Text, float]]
    texts: list[tuple[Text, float]]


@dataclass(frozen=True, slots=True)
class TextLaw:
    """Texts of up to `length` tokens after one prompt; a text ends at a stop token."""

    laws: LawsAfter
    length: int = 3
    stops: frozenset[int] = frozenset()
    closed: bool = True  # a text that is shorter must end with a stop token
    remembered: Callable[[Text], Text] = lambda text: text  # a shorter text after which the law is the same

    def __post_init__(self) -> None:
        whole("length", self.length, 1)

    def cells(self) -> Cells:
        """The cells of the tests, which must be known before samples are drawn."""
        return Cells(self.likeliest(CELLS - 1, 1), self.likeliest(CELLS - 1, min(_TEXT, self.length)))

    def check(self, text: Text) -> None:
        """Refuse a text that this law cannot have."""
        ended = not self.closed or (bool(text) and text[-1] in self.stops)
        if len(text) > self.length or (len(text) < self.length and not ended):
            raise ArgumentError(
                f"a sampler must give texts of {self.length} tokens, or that end with a stop token, got {list(text)}"
            )

    def likeliest(self, count: int, length: int | None = None) -> list[tuple[Text, float]]:
        """The `count` likeliest texts and their probabilities: the best beginning is always continued first."""
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
        """For every text (n) and position (length): the mass of all likelier tokens there, and the token's own. Beyond
        a text's end nothing is likelier and the mass is 1, so that what is drawn between them is uniform there, too."""
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
    """Mass of the tokens likelier than each, of equals those with lower ids, and its own."""
    order = law.sort(descending=True, stable=True).indices
    sums = law[order].cumsum(0)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    at = rank[torch.tensor(tokens)]
    own = law[tokens]
    return ((sums[at] - own) / sums[-1]).clamp(0, 1).numpy(), (own / sums[-1]).numpy()


def _of_likeliest(counts: Counter[Text], best: Sequence[tuple[Text, float]]) -> GTest:
    """The likeliest texts one by one, all others together."""
    total = sum(chance for _, chance in best)
    left = 1 - total if total < _ALL else 0.0
    found = [counts[text] for text, _ in best]
    chances = [chance / (total + left) for _, chance in best]
    return compare_counts([*found, counts.total() - sum(found)], [*chances, left / (total + left)])


def _of_uniforms(values: Floats, grid: Sequence[int]) -> GTest:
    """Points (n, d) of the unit cube, in equal boxes."""
    sides = np.asarray(grid)
    box = np.minimum((values * sides).astype(np.int64), sides - 1)
    size = int(np.prod(sides))
    counts = np.bincount(np.ravel_multi_index(tuple(box.T), tuple(grid)), minlength=size)
    return compare_counts(counts.tolist(), [1 / size] * size)


def _grid(length: int) -> tuple[int, ...]:
    """How finely each position is cut, so that there are as many cells as usual: the last four in halves."""
    short = {1: (16,), 2: (4, 4), 3: (4, 2, 2)}
    return short[length] if length in short else (*(1,) * (length - 4), 2, 2, 2, 2)


def run_tests(samples: Sequence[Sequence[int]], law: TextLaw, cells: Cells, seed: int = 0) -> dict[str, GTest]:
    """All tests of samples in the order they were drawn; `seed` is of the uniforms that ranks need."""
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
