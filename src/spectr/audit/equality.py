"""Comparisons without statistics: texts that must be equal token by token, and logits that must be equal.

With the race a text is a function of the seed alone; greedy text is the plain model's with every rule; no text depends
on the others of its batch. On a real model another tree changes the order of summation, so that the last bit may decide
a near-tie: a difference counts as rounding, and is reported, if the scores of the two tokens differ by less than 1e-3.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.replay import RowsAfter
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.setup import Setup
from spectr.coins import gumbel
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Request
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.transport.laws import law_of, total_variation
from spectr.types import TreeModel
from spectr.verify import Rule, rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = [
    "Compared", "Pair", "RealTexts", "Scores", "batch_case", "compare", "greedy_case", "rows_finding", "seed_case",
]  # fmt: skip

_TIE = 1e-3  # difference of scores that rounding may reverse
_ROWS = 1e-3  # total variation that another order of summation may cause


@dataclass(slots=True)
class Compared:
    """The differences between two sets of texts."""

    texts: int = 0
    tokens: int = 0
    partings: list[dict[str, Any]] = field(default_factory=list)
    ties: int = 0  # the number of partings that rounding explains

    @property
    def holds(self) -> bool:
        """Whether rounding explains every difference."""
        return len(self.partings) == self.ties

    def measured(self, what: str) -> str:
        """Return the result as a sentence."""
        compared = f"{self.texts} texts, {self.tokens:,} tokens {what}"
        if not self.partings:
            return f"{compared}: all equal"
        ties = f", {self.ties} at ties of rounding" if self.ties else ""
        return f"{compared}: {len(self.partings)} part{ties}"


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that decide a position of a text: log-probabilities, plus the race's noise if `noisy`."""

    model: TreeModel
    noisy: bool
    stops: frozenset[int] = frozenset()

    def gap(self, request: Request, text: Sequence[int], tokens: tuple[int, int]) -> float:
        """Return the difference of the scores of two tokens after prompt and text."""
        words = [*request.prompt, *text]
        session = self.model.open(1, len(words) + 1)
        self.model.read(session, [words[:-1]])
        one = torch.ones(1, 1, 1, dtype=torch.bool, device=self.model.device)
        last = torch.tensor([[words[-1]]], device=self.model.device)
        logits = self.model.score(session, last, one, torch.zeros_like(last))[0, 0].tolist()
        reference = ReferencePolicy(request.policy.for_drafts, self.stops, request.max_new_tokens)
        law = reference.law(logits, request.prompt, text)
        scores = torch.tensor(law, dtype=torch.float64).log()
        if self.noisy and request.policy.temperature > 0:
            scores += gumbel(torch.tensor([request.seed]), torch.tensor([[len(words)]]), len(law))[0, 0]
        return float((scores[tokens[0]] - scores[tokens[1]]).abs())


def compare(
    requests: Sequence[Request],
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    scores: Scores | None,
) -> Compared:
    """Compare text by text; `scores` distinguishes near-ties from faults if rounding can differ."""
    result = Compared(len(requests), sum(map(len, expected)))
    for row, (one, other) in enumerate(zip(expected, found, strict=True)):
        at = _first_difference(one, other)
        if at is None:
            continue
        gap = None
        if scores is not None and at < min(len(one), len(other)):
            gap = scores.gap(requests[row], one[:at], (one[at], other[at]))
        result.ties += gap is not None and gap < _TIE
        result.partings.append({"text": row, "position": at, "gap": gap})
    return result


@dataclass(frozen=True, slots=True)
class Pair:
    """Texts that must be equal: those of an engine that runs all requests at once, and the expected ones."""

    name: str
    what: str  # the comparison, in words
    requests: Sequence[Request]
    expected: Callable[[], list[list[int]]]
    engine: Callable[[], Engine]  # called when the case is run
    scores: Scores | None = None
    claim: Claim = "lossless"

    def case(self) -> Case:
        """Return the comparison as a case."""
        return Case("equal", self.name, self._run)

    def _run(self, _: Level) -> Sequence[Finding]:
        found = texts_of(self.engine(), self.requests)
        compared = compare(self.requests, self.expected(), found, self.scores)
        return [Finding("equal", self.name, compared.holds, compared.measured(self.what), asdict(compared), self.claim)]


def texts_of(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Return the texts of requests that run at once."""
    return [result.tokens for result in engine.generate(requests)]


def one_by_one(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Return the texts of requests that run one at a time."""
    return [texts_of(engine, [request])[0] for request in requests]


class RealTexts:
    """The plain texts of a real model for a few prompts, computed once; every drafter must reproduce them."""

    def __init__(self, opened: "OpenedModel", prompts: Sequence[Sequence[int]], length: int, policy: Policy) -> None:
        self.opened = opened
        self.requests = [Request(prompt, seed, length, policy) for seed, prompt in enumerate(prompts)]

    def race_case(self, drafter: Any, *, captures: bool | None = None) -> Case:
        """Compare the race's texts with a drafter in one batch with those of single requests without a drafter.

        Steps are captured if possible; `captures=False` disables that."""
        name = f"race × {_called(drafter)}{', not captured' if captures is False else ''}"
        scores = Scores(self.opened.target, noisy=True)
        engine = partial(self._engine, drafter, rule("race"), captures=captures)
        what = "in a batch with drafts, and alone without"
        return Pair(name, what, self.requests, lambda: self._plain, engine, scores).case()

    def greedy_case(self, drafter: Any, made: Rule) -> Case:
        """Compare texts at temperature 0 with the greedy texts of transformers."""
        name = f"greedy {made.card.name} × {_called(drafter)}"
        requests = [replace(request, policy=Policy(0)) for request in self.requests]
        scores = Scores(self.opened.target, noisy=False)
        engine = partial(self._engine, drafter, made)
        what = "against the greedy text of transformers"
        return Pair(name, what, requests, lambda: self._greedy, engine, scores).case()

    def _engine(self, drafter: Any, made: Rule, *, captures: bool | None = None) -> Engine:
        options = DraftOptions() if drafter in ("none", "lookup") else DraftOptions(length=3)
        drafting = pair(drafter, self.opened, made.card, options)
        return Engine(self.opened.target, drafting, made, self.opened.stops, captures=captures)

    @cached_property
    def _plain(self) -> list[list[int]]:
        return one_by_one(self._engine("none", rule("race")), self.requests)

    @cached_property
    def _greedy(self) -> list[list[int]]:
        from spectr.models.baselines import greedy_text

        length = self.requests[0].max_new_tokens
        return [greedy_text(self.opened, request.prompt, length) for request in self.requests]


def _called(drafter: Any) -> str:
    return drafter if isinstance(drafter, str) else str(getattr(drafter, "name", type(drafter).__name__))


def greedy_case(setup: Setup, drafter: Any, made: Rule) -> Case:
    """Compare texts at temperature 0 with the likeliest token after every text."""
    greedy = setup.under(Policy(0))
    requests = greedy.requests(12, range(4))
    name = f"greedy {made.card.name} × {_called(drafter)}, replayed"

    def expected() -> list[list[int]]:
        rows, text = setup.model(), list(setup.prompt)
        while len(text) < len(setup.prompt) + 12 and (len(text) == len(setup.prompt) or text[-1] not in setup.stops):
            text.append(int(rows.logits_after([tuple(text)])[0].argmax()))
        return [text[len(setup.prompt) :] for _ in requests]

    engine = partial(greedy.engine, drafter, made)
    return Pair(name, "against the likeliest tokens", requests, expected, engine).case()


def batch_case(setup: Setup, drafter: Any, made: Rule, claim: Claim = "lossless") -> Case:
    """Compare texts of different lengths in one batch with single ones. Rows are replayed, so they are exactly
    equal."""
    requests = [Request(setup.prompt, 7 * seed - 90, 3 + seed % 11, setup.policy) for seed in range(24)]
    engine = partial(setup.engine, drafter, made)
    name = f"batch {made.card.name} × {_called(drafter)}"

    def expected() -> list[list[int]]:
        return one_by_one(engine(), requests)

    return Pair(name, "in one batch and alone", requests, expected, engine, claim=claim).case()


def seed_case(setup: Setup, drafter: Any, made: Rule) -> Case:
    """Compare texts with those of the same seeds in another order; if texts do not depend on drafts, as for the race,
    with texts without a drafter."""
    requests = setup.requests(10, range(64))
    engine = partial(setup.engine, drafter, made)
    alike = not made.card.text_depends_on_drafts
    name = f"seed {made.card.name} × {_called(drafter)}"

    def expected() -> list[list[int]]:
        other = setup.engine("none", made) if alike else engine()
        return texts_of(other, requests[::-1])[::-1]

    what = "with drafts and without" if alike else "in another order"
    return Pair(name, what, requests, expected, engine).case()


def _forest(prompt: Sequence[int], vocabulary: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a random tree below a prompt's last token: tokens (N), ancestors (N, N), depth (N)."""
    draw = np.random.default_rng(seed)
    parents = [0, *(int(draw.integers(0, node)) for node in range(1, 8))]
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        seen[node] |= seen[parents[node]]
    tokens = torch.from_numpy(draw.integers(0, vocabulary, len(parents)))
    tokens[0] = prompt[-1]
    return tokens, seen, seen.sum(-1) - 1


def rows_finding(model: TreeModel, plain: RowsAfter, prompts: Sequence[Sequence[int]], claim: Claim) -> Finding:
    """Compare random trees scored in one call with every path scored alone."""
    worst, looked = 0.0, 0
    for seed, prompt in enumerate(prompts):
        tokens, seen, depth = _forest(prompt, model.vocabulary, seed)
        session = model.open(1, len(prompt) + len(tokens))
        model.read(session, [list(prompt[:-1])])
        inputs = (x[None].to(model.device) for x in (tokens, seen, depth))
        found = model.score(session, *inputs)[0].float().cpu()
        paths = [tuple(prompt[:-1]) + tuple(tokens[row].tolist()) for row in seen]
        distance = total_variation(law_of(found.double()), law_of(plain(paths).double()))
        worst, looked = max(worst, float(distance.max())), looked + len(paths)
    measured = f"{looked} rows of random trees and of plain texts: total variation at most {worst:.1e}"
    details = {"rows": looked, "total_variation": worst, "tolerance": _ROWS}
    return Finding("rows", "tree rows", worst < _ROWS, measured, details, claim)
