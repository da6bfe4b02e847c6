"""Computes the exact distribution of a rule's output by full enumeration on small autoregressive models.

All drafts and all decisions are enumerated through the code that generates text. The number of outcomes grows as V to
the number of nodes, so models and trees must be small. Many pairs of models are enumerated together, because the cost
depends on the number of tensor operations much more than on their size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spectr.audit.decisions import ExactCoins, KnownCoins
from spectr.audit.step_law import LanguageModel, StepLaw, law_after
from spectr.errors import ArgumentError, MismatchError
from spectr.policy import History, Past, Policy, PolicyRows
from spectr.transport.laws import law_of
from spectr.trees.grow import Growth, grow
from spectr.trees.shape import Shape, as_shape
from spectr.types import Draft, Verdict
from spectr.verify import Rule
from spectr.verify import rule as named_rule

__all__ = ["Fault", "Loop", "Models", "Shaping", "enumerate_pairs", "enumerate_steps", "exact_step_law"]

Models = tuple[LanguageModel, LanguageModel]
"""Target and draft model."""

_MOST_ROWS = 1 << 16  # rows enumerated at once; larger batches are split
_MOST_BITS = 62  # bits of the integer that encodes a text


class _LawTable:
    """The laws of several models after texts, which are encoded as integers.

    The empty text has code 0, and the text followed by token x has code · V + x + 1."""

    def __init__(self, models: Sequence[LanguageModel], name: str) -> None:
        self._models, self._name = models, name
        self._known = {which: law_after(model, (), name) for which, model in enumerate(models)}
        sizes = {len(law) for law in self._known.values()}
        if len(sizes) > 1:
            raise MismatchError(f"models that are enumerated together must have one vocabulary, got {sorted(sizes)}")
        self.size = sizes.pop()

    def text(self, code: int) -> tuple[int, ...]:
        """Return the tokens of the text with this code."""
        tokens: list[int] = []
        while code:
            code, token = divmod(code - 1, self.size)
            tokens.append(token)
        return tuple(reversed(tokens))

    def laws(self, models: Tensor, codes: Tensor) -> Tensor:
        """Return the laws (R, M, V) of the models with indices (R,) after the texts with codes (R, M)."""
        distinct, where = (codes * len(self._models) + models[:, None]).unique(return_inverse=True)
        table = []
        for key in distinct.tolist():
            if key not in self._known:
                code, which = divmod(key, len(self._models))
                self._known[key] = law_after(self._models[which], self.text(code), self._name)
            table.append(self._known[key])
        return torch.stack(table)[where]


@dataclass(slots=True)
class _States:
    """Possible states of a generation: the models, the text so far, its probability, and coins that may be used
    again."""

    model: Tensor  # (R,) int64
    code: Tensor  # (R,) int64
    length: Tensor  # (R,) int64
    ended: Tensor  # (R,) bool: the text ends with a stop token or has reached its limit
    weight: Tensor  # (R,) float64
    coins: KnownCoins

    def rows(self, index: Tensor) -> "_States":
        model, code, length = self.model[index], self.code[index], self.length[index]
        return _States(model, code, length, self.ended[index], self.weight[index], self.coins.rows(index))

    def merged(self) -> "_States":
        """Merge the rows of equal texts, unless some coin may be used again."""
        if self.coins.time.shape[1]:
            return self
        count = int(self.model.max()) + 1
        key, where = (self.code * count + self.model).unique(return_inverse=True)
        weight = torch.zeros(len(key), dtype=torch.float64).index_add_(0, where, self.weight)
        length = torch.zeros_like(key).scatter_(0, where, self.length)
        ended = torch.zeros_like(key, dtype=torch.bool).scatter_(0, where, self.ended)
        return _States(key % count, key // count, length, ended, weight, KnownCoins.none(len(key)))


def _joined(parts: Sequence[_States]) -> _States:
    model, code, length, ended, weight = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("model", "code", "length", "ended", "weight")
    )
    return _States(model, code, length, ended, weight, KnownCoins.joined([part.coins for part in parts]))


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault, to show that the enumeration detects it; the default is none."""

    coins: type[ExactCoins] = ExactCoins  # determines how coins are keyed
    change: Callable[[Draft], Draft] = lambda draft: draft  # applied to a draft before the rule sees it


@dataclass(frozen=True, slots=True)
class Shaping:
    """A policy that is applied to both laws at every node, as in generation.

    The raw logits of the models are the logarithms of their laws plus `shift`, which changes no law and makes some
    logits positive."""

    policy: Policy = field(default_factory=Policy)
    prompt: tuple[int, ...] = ()
    stops: frozenset[int] = frozenset()
    limit: int | None = None  # maximum number of generated tokens
    shift: float = 1.5
    computed: type[PolicyRows] = PolicyRows  # the implementation of the policy

    def history(self, texts: Sequence[tuple[int, ...]], vocabulary: int) -> History | None:
        """Return the policy's history for texts that were generated after the prompt."""
        if not self.policy.remembers:
            return None
        limits = None if self.limit is None else [self.limit] * len(texts)
        history = History.of([list(self.prompt) for _ in texts], vocabulary, stops=self.stops, limits=limits)
        history.commit([list(text) for text in texts])
        return history

    def logits(self, laws: Tensor, history: History | None, paths: Tensor, *, drafting: bool) -> Tensor:
        """Return policy logits (R, M, V) for laws (R, M, V) at nodes with paths of tokens `paths` (R, M, D)."""
        past = None if history is None else Past(history, paths, drafting=drafting)
        return self.computed.of([self.policy] * len(laws), laws.shape[-1])(laws.log() + self.shift, past)


@dataclass(frozen=True, slots=True)
class Loop:
    """Settings of the enumerated loop around a rule."""

    steps: int = 1
    fault: Fault = field(default_factory=Fault)
    shaping: Shaping | None = None  # None: the models' laws without a policy
    lazily: bool = True  # rules visit nodes one by one down the path, or all at once


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of generation on encoded texts: draft, target laws, verdict."""

    rule: Rule
    target: _LawTable
    draft: _LawTable
    growth: Growth
    loop: Loop

    @property
    def shaping(self) -> Shaping | None:
        return self.loop.shaping

    def __call__(self, states: _States, coins: ExactCoins) -> _States:
        """Return the states after the step, for the choices that `coins` make."""
        codes = torch.zeros(len(states.code), len(self.growth.shape.parents), dtype=torch.int64)
        history = self._history(states)

        def law_at(tokens: Tensor, nodes: list[int]) -> Tensor:
            laws = self.draft.laws(states.model, self._codes(states.code, tokens, codes)[:, nodes])
            if self.shaping is None:
                return laws
            return law_of(self.shaping.logits(laws, history, self._paths(tokens)[:, nodes], drafting=True))

        root = torch.zeros_like(states.code)
        draft = self.loop.fault.change(grow(root, law_at, self.growth, coins))
        laws = self.target.laws(states.model, self._codes(states.code, draft.tokens, codes))
        logits = laws.log()
        if self.shaping is not None:
            logits = self.shaping.logits(laws, history, self._paths(draft.tokens), drafting=False)
        verdict = self.rule(logits, draft, coins, lazily=self.loop.lazily)
        code, length, ended = self._emit(states, draft, verdict)
        weight = states.weight * coins.weight
        return _States(states.model, code, length, ended, weight, coins.known.forget_before(length))

    def _history(self, states: _States) -> History | None:
        if self.shaping is None or not self.shaping.policy.remembers:
            return None
        return self.shaping.history([self.target.text(code) for code in states.code.tolist()], self.target.size)

    def _codes(self, start: Tensor, tokens: Tensor, codes: Tensor) -> Tensor:
        codes[:, 0] = start
        for node, parent in enumerate(self.growth.shape.parents[1:], start=1):
            codes[:, node] = codes[:, parent] * self.target.size + tokens[:, node] + 1
        return codes

    def _paths(self, tokens: Tensor) -> Tensor:
        """Return the tokens (R, N, D) from below the root to each node, padded with -1."""
        shape = self.growth.shape
        paths = tokens.new_full((*tokens.shape, shape.depth), -1)
        for node in range(1, len(shape.parents)):
            nodes = shape.way(node)[1:]
            paths[:, node, : len(nodes)] = tokens[:, nodes]
        return paths

    def _emit(self, states: _States, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
        """Append the accepted path and the bonus token, up to the first stop token or the limit."""
        stops = () if self.shaping is None else sorted(self.shaping.stops)
        limit = None if self.shaping is None else self.shaping.limit
        code, length, ended = states.code, states.length, states.ended
        path = torch.where(verdict.path >= 0, draft.tokens.gather(-1, verdict.path.clamp_min(0)), -1)
        for token in torch.cat([path, verdict.bonus[:, None]], 1).unbind(-1):
            added = (token >= 0) & ~ended
            code = torch.where(added, code * self.target.size + token + 1, code)
            length = length + added
            for stop in stops:
                ended = ended | (added & (token == stop))
            if limit is not None:
                ended = ended | (length >= limit)
        return code, length, ended


def _all_outcomes(step: _Step, states: _States) -> _States:
    """Return all outcomes of one step from `states`."""
    ended, work = [], [states]
    while work:
        batch = work.pop()
        if len(batch.code) > _MOST_ROWS:
            work += [batch.rows(part) for part in torch.arange(len(batch.code)).split(_MOST_ROWS)]
            continue
        coins = step.loop.fault.coins(batch.length, batch.coins)
        ended.append(step(batch, coins))
        if coins.branches:
            work.append(_joined([_branch(batch, *branch) for branch in coins.branches]))
    return _joined(ended)


def _branch(batch: _States, rows: Tensor, coins: KnownCoins, chance: Tensor) -> _States:
    return replace(batch.rows(rows), coins=coins, weight=batch.weight[rows] * chance)


def _check_size(growth: Growth, steps: int, vocabulary: int, pairs: int) -> None:
    longest = steps * (growth.shape.depth + 1)
    if steps < 1 or longest * math.log2(vocabulary + 1) + math.log2(pairs) > _MOST_BITS:
        raise ArgumentError(
            f"steps must be at least 1 and so few that a text fits into {_MOST_BITS} bits, got {steps} steps of up to "
            f"{growth.shape.depth + 1} of {vocabulary} tokens; use fewer steps or a smaller tree"
        )


def enumerate_pairs(rule: Rule, pairs: Sequence[Models], growth: Growth, loop: Loop | None = None) -> list[StepLaw]:
    """Return the law of the emitted text for each of several pairs (target, draft) with one vocabulary."""
    loop, count = loop or Loop(), len(pairs)
    target = _LawTable([pair[0] for pair in pairs], "target_lm")
    draft = _LawTable([pair[1] for pair in pairs], "draft_lm")
    if target.size != draft.size:
        raise MismatchError(
            f"both models must have one vocabulary; target has {target.size} tokens, draft {draft.size}"
        )
    _check_size(growth, loop.steps, target.size, count)
    step = _Step(rule, target, draft, growth, loop)
    zero, one = torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.float64)
    states = _States(torch.arange(count), zero, zero, zero > 0, one, KnownCoins.none(count))
    ended: list[_States] = []
    for _ in range(loop.steps):
        ended.append(states.rows(states.ended))
        states = states.rows(~states.ended)
        if len(states.code):
            states = _all_outcomes(step, states).merged()
    return _step_laws(_joined([*ended, states]), target, count, loop.shaping)


def _step_laws(states: _States, target: _LawTable, pairs: int, shaping: Shaping | None) -> list[StepLaw]:
    chances: list[dict[tuple[int, ...], float]] = [{} for _ in range(pairs)]
    rows = zip(states.model.tolist(), states.code.tolist(), states.weight.tolist(), strict=True)
    for model, code, weight in rows:
        text = target.text(code)
        chances[model][text] = chances[model].get(text, 0.0) + weight
    stops = frozenset[int]() if shaping is None else shaping.stops
    return [StepLaw(found, stops) for found in chances]


def enumerate_steps(
    rule: Rule, models: Models, growth: Growth, steps: int = 1, fault: Fault | None = None
) -> StepLaw:  # fmt: skip
    """Return the law of the text after `steps` steps, for models (target, draft) and trees drawn by `growth`."""
    return enumerate_pairs(rule, [models], growth, Loop(steps, fault or Fault()))[0]


def exact_step_law(
    rule: str | Rule,
    target_lm: LanguageModel,
    draft_lm: LanguageModel,
    tree: Growth | Shape | Sequence[int],
    steps: int = 1,
) -> StepLaw:
    """Enumerate the output distribution of one or more steps of `rule`.

    `tree` is the number of children at each depth or a `Shape`, with siblings of the first kind the rule is valid for;
    or a `Growth`, which also determines how children are drawn.

    >>> target = lambda text: torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    >>> draft = lambda text: torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    >>> law = exact_step_law("block", target, draft, (1, 1))
    >>> round(law.expected_tokens - 1, 6), law.deviation(target) < 1e-12
    (1.222222, True)
    """
    chosen = named_rule(rule) if isinstance(rule, str) else rule
    growth = tree if isinstance(tree, Growth) else Growth(as_shape(tree), chosen.card.siblings[0])
    return enumerate_steps(chosen, (target_lm, draft_lm), growth, steps)
