"""The exact law of what a rule emits, by full enumeration on small autoregressive models.

Drafts and decisions are all enumerated, through the code that generates text. Small means small: the number of ways
grows with V to the number of nodes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spectr.audit.decisions import ExactCoins, Memory
from spectr.errors import ArgumentError, MismatchError
from spectr.transport.laws import check_law
from spectr.trees.grow import Growth, grow
from spectr.trees.shape import Shape, as_shape
from spectr.types import Draft, Verdict
from spectr.verify import Rule
from spectr.verify import rule as named_rule

__all__ = ["Fault", "LanguageModel", "StepLaw", "enumerate_steps", "exact_step_law"]

LanguageModel = Callable[[tuple[int, ...]], Tensor | Sequence[float]]
"""A small autoregressive model: the tokens so far → the law of the next one, V probabilities."""

_MOST_ROWS = 1 << 16  # rows enumerated at once; more are done in turns
_MOST_TEXT = 24  # tokens; longer texts do not fit the code of a prefix


def _law_after(model: LanguageModel, text: tuple[int, ...], name: str) -> Tensor:
    """A model's law, checked as given, float64; what float32 leaves of its sum is divided out, so that enumeration is
    exact. Plain lists are taken as float64."""
    given = model(text)
    law = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given, dtype=np.float64))
    check_law(f"{name}{text}", law)
    return law.double() / law.double().sum()


class StepLaw(Mapping[tuple[int, ...], float]):
    """The law of the emitted tokens: a mapping from each text to its probability."""

    def __init__(self, chances: Mapping[tuple[int, ...], float]) -> None:
        self._chances = dict(chances)

    def __getitem__(self, text: tuple[int, ...]) -> float:
        return self._chances[text]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._chances)

    def __len__(self) -> int:
        return len(self._chances)

    @property
    def expected_tokens(self) -> float:
        """Mean number of emitted tokens."""
        return sum(len(text) * chance for text, chance in self._chances.items())

    def deviation(self, target_lm: LanguageModel) -> float:
        """Largest |probability − target's| over all texts, once every text is completed by the target to one length."""
        return max((abs(found - meant) for found, meant in self._completed(target_lm)), default=0.0)

    def total_variation(self, target_lm: LanguageModel) -> float:
        """½ Σ |probability − target's| over the completed texts."""
        return sum(abs(found - meant) for found, meant in self._completed(target_lm)) / 2

    def _completed(self, target_lm: LanguageModel) -> Iterator[tuple[float, float]]:
        horizon = max(map(len, self._chances))
        stack: list[tuple[tuple[int, ...], float, float]] = [((), 0.0, 1.0)]
        while stack:
            text, inflow, meant = stack.pop()
            found = inflow + self._chances.get(text, 0.0)
            if len(text) == horizon:
                yield found, meant
            else:
                law = _law_after(target_lm, text, "target_lm").tolist()
                stack += [((*text, x), found * chance, meant * chance) for x, chance in enumerate(law)]


class _Codes:
    """Texts as integers, and the laws of a model at them. The empty text is 0; text + x is code · V + x + 1."""

    def __init__(self, model: LanguageModel, name: str) -> None:
        self._model, self._name = model, name
        self._known = {0: _law_after(model, (), name)}
        self.size = len(self._known[0])

    def text(self, code: int) -> tuple[int, ...]:
        """The tokens behind a code."""
        tokens: list[int] = []
        while code:
            code, token = divmod(code - 1, self.size)
            tokens.append(token)
        return tuple(reversed(tokens))

    def laws(self, codes: Tensor) -> Tensor:
        """Laws (…, V) at codes (…)."""
        distinct, where = codes.unique(return_inverse=True)
        table = []
        for code in distinct.tolist():
            if code not in self._known:
                self._known[code] = _law_after(self._model, self.text(code), self._name)
            table.append(self._known[code])
        return torch.stack(table)[where]


@dataclass(slots=True)
class _States:
    """Where a generation may stand: the text so far, how likely, and the coins that may come again."""

    code: Tensor  # (R,) int64
    length: Tensor  # (R,) int64
    weight: Tensor  # (R,) float64
    memory: Memory

    def rows(self, index: Tensor) -> "_States":
        return _States(self.code[index], self.length[index], self.weight[index], self.memory.rows(index))

    def merged(self) -> "_States":
        """Rows of one text put together, where no coin of theirs can come again."""
        if self.memory.time.shape[1]:
            return self
        code, where = self.code.unique(return_inverse=True)
        weight = torch.zeros(len(code), dtype=torch.float64).index_add_(0, where, self.weight)
        length = torch.zeros_like(code).scatter_(0, where, self.length)
        return _States(code, length, weight, Memory.empty(len(code)))


def _joined(parts: Sequence[_States]) -> _States:
    code, length, weight = (torch.cat([getattr(part, f) for part in parts]) for f in ("code", "length", "weight"))
    return _States(code, length, weight, Memory.joined([part.memory for part in parts]))


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault, to show that the harness sees it; the default is none."""

    coins: type[ExactCoins] = ExactCoins  # how coins are keyed
    change: Callable[[Draft], Draft] = lambda draft: draft  # what befalls a draft before the rule sees it


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of generation on codes: draft, target laws, verdict."""

    rule: Rule
    target: _Codes
    draft: _Codes
    growth: Growth
    fault: Fault

    def __call__(self, states: _States, coins: ExactCoins) -> _States:
        codes = torch.zeros(len(states.code), len(self.growth.shape.parents), dtype=torch.int64)

        def law_at(tokens: Tensor, nodes: list[int]) -> Tensor:
            return self.draft.laws(self._codes(states.code, tokens, codes)[:, nodes])

        root = torch.zeros_like(states.code)
        draft = self.fault.change(grow(root, law_at, self.growth, coins))
        logits = self.target.laws(self._codes(states.code, draft.tokens, codes)).log()
        verdict = self.rule(logits, draft, coins)
        code, length = self._emit(states, draft, verdict)
        weight = states.weight * coins.weight
        return _States(code, length, weight, coins.memory.forget_before(length))

    def _codes(self, start: Tensor, tokens: Tensor, codes: Tensor) -> Tensor:
        codes[:, 0] = start
        for node, parent in enumerate(self.growth.shape.parents[1:], start=1):
            codes[:, node] = codes[:, parent] * self.target.size + tokens[:, node] + 1
        return codes

    def _emit(self, states: _States, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
        code = states.code
        for depth in range(verdict.path.shape[1]):
            node = verdict.path[:, depth]
            token = draft.tokens.gather(-1, node.clamp_min(0)[:, None]).squeeze(1)
            code = torch.where(node >= 0, code * self.target.size + token + 1, code)
        return code * self.target.size + verdict.bonus + 1, states.length + verdict.length + 1


def _every_way(step: _Step, states: _States) -> _States:
    """All ways one step can go from `states`."""
    ended, work = [], [states]
    while work:
        batch = work.pop()
        if len(batch.code) > _MOST_ROWS:
            work += [batch.rows(part) for part in torch.arange(len(batch.code)).split(_MOST_ROWS)]
            continue
        coins = step.fault.coins(batch.length, batch.memory)
        ended.append(step(batch, coins))
        if coins.branches:
            work.append(_joined([_branch(batch, *branch) for branch in coins.branches]))
    return _joined(ended)


def _branch(batch: _States, rows: Tensor, memory: Memory, chance: Tensor) -> _States:
    return replace(batch.rows(rows), memory=memory, weight=batch.weight[rows] * chance)


def enumerate_steps(
    rule: Rule, models: tuple[LanguageModel, LanguageModel], growth: Growth, steps: int = 1, fault: Fault | None = None
) -> StepLaw:
    """The law of the text after `steps` steps for models (target, draft) and a given way of growing trees."""
    target, draft = _Codes(models[0], "target_lm"), _Codes(models[1], "draft_lm")
    if target.size != draft.size:
        raise MismatchError(
            f"both models must have one vocabulary; target has {target.size} tokens, draft {draft.size}"
        )
    if steps < 1 or steps * (growth.shape.depth + 1) > _MOST_TEXT:
        raise ArgumentError(f"steps must be at least 1 and emit at most {_MOST_TEXT} tokens, got {steps} steps")
    step = _Step(rule, target, draft, growth, fault or Fault())
    zero = torch.zeros(1, dtype=torch.int64)
    states = _States(zero, zero, torch.ones(1, dtype=torch.float64), Memory.empty(1))
    for _ in range(steps):
        states = _every_way(step, states).merged()
    chances: dict[tuple[int, ...], float] = {}
    for code, weight in zip(states.code.tolist(), states.weight.tolist(), strict=True):
        text = target.text(code)
        chances[text] = chances.get(text, 0.0) + weight
    return StepLaw(chances)


def exact_step_law(
    rule: str | Rule,
    target_lm: LanguageModel,
    draft_lm: LanguageModel,
    tree: Growth | Shape | Sequence[int],
    steps: int = 1,
) -> StepLaw:
    """Enumerate the output law of one or more steps of `rule`.

    `tree`: the number of children at each depth, or a `Shape`, with siblings of the first kind the rule holds
    for; or a `Growth`, which also says how children are drawn.

    >>> target = lambda text: torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    >>> draft = lambda text: torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    >>> law = exact_step_law("block", target, draft, (1, 1))
    >>> round(law.expected_tokens - 1, 6), law.deviation(target) < 1e-12
    (1.222222, True)
    """
    made = named_rule(rule) if isinstance(rule, str) else rule
    growth = tree if isinstance(tree, Growth) else Growth(as_shape(tree), made.card.siblings[0])
    return enumerate_steps(made, (target_lm, draft_lm), growth, steps)
