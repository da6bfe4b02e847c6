"""One row of one step, decided anew: policy, coins or noise, and the rule, in float64 from the step's own logits.

Nothing here calls the code that decided: see `reference_policy`, `reference_coins`, `reference_couplings` and
`reference_rules`. Logits and draft laws are taken as given, so what the target computes is not checked.

The engine computes in float32, so at times it decides otherwise than float64 does and is right: the scores of two
tokens, a coin and its border, or a token and the border of a filter are as close as rounding. Such a decision is a
near-tie. Whether a difference is one is found by trying: logits and draft laws are shaken by up to `ROUNDINGS` float32
roundings of each number, several times, and if what was emitted comes out of any of them, rounding explains it. Equal
numbers stay equal when shaken, so that ties stay ties.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spectr.audit.reference_coins import mixed, scrambled
from spectr.audit.reference_policy import Mask, Numbers, ReferencePolicy, softmax
from spectr.audit.reference_rules import Decision, Decisions, Judged, Laws, Tree, reference_rule
from spectr.engine.readout import NO_NUMBERS, NO_TOKENS, SOUND
from spectr.engine.record import Evidence, StepRecord, WatchedRow
from spectr.policy import Policy

__all__ = ["ROUNDINGS", "Checked", "Failure", "as_numbers", "check_row", "uncovered"]

ROUNDINGS = 32
"""How many roundings of a number may explain a difference: policies round a logit about ten times."""

_TRIALS = 64
_SIZES = (1.0, 0.25, 0.06, 0.015)  # of trials in turn: near a border of many tokens small changes find it better
_SHAKING = 0x1F83D9ABFB41BD6B
_FAR = 40  # tokens so much below the likeliest, in units of the temperature, have no part in the law


@dataclass(frozen=True, slots=True)
class Failure:
    """A row whose tokens are not those that its settings, seed and logits give, and by more than rounding."""

    what: str  # in words
    rule: str
    policy: Policy
    seed: int
    position: int  # of the first token that differs, counted from the beginning of the prompt
    emitted: tuple[int, ...]  # by the step
    expected: tuple[int, ...]
    scores: tuple[float, float] | None = None  # in a race: of the token emitted, and of the one expected
    coins: tuple[str, ...] = ()  # under other rules: the coins at the node where they part, and their borders
    text: tuple[int, ...] | None = None  # prompt and text before the step, where a witness is to keep them

    def __str__(self) -> str:
        """One line, without the text."""
        scores = "" if self.scores is None else f", with scores {self.scores[0]:.6g} and {self.scores[1]:.6g}"
        coins = f"; {'; '.join(self.coins)}" if self.coins else ""
        return (
            f"{self.what} at position {self.position} under rule {self.rule!r}: emitted {list(self.emitted)}, expected "
            f"{list(self.expected)}{scores}{coins}; seed {self.seed}, {self.policy}"
        )


def as_numbers(values: Tensor) -> Numbers:
    """A tensor of the host as float64. By NumPy: torch would start threads of its own for the thread that checks."""
    if values.dtype == torch.bfloat16:  # the upper half of a float32
        bits = values.contiguous().view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)
    found: Numbers = values.numpy().astype(np.float64)
    return found


def uncovered(record: StepRecord, evidence: Evidence, row: WatchedRow) -> str | None:
    """Why a row cannot be checked; None if it can."""
    policy, is_masked = row.request.policy, evidence.allowed is not None
    if reference_rule(record.rule) is None:
        return f"rule {record.rule.card.name}"
    if policy.processors:
        return "processors"
    if policy.allowed is not None and not is_masked:
        return "allowed"
    if getattr(row.request, "grammar", None) is not None and not is_masked:
        return "grammar"
    return "logits that are no numbers" if row.verdict.fault == NO_NUMBERS else None


class _RowLaws:
    """The laws at the nodes of one row, computed where they are asked for."""

    def __init__(self, row: WatchedRow, evidence: Evidence, tree: Tree, stops: frozenset[int]) -> None:
        request = row.request
        self.policy = ReferencePolicy(request.policy, stops | request.stop_ids, request.max_new_tokens)
        self.prompt, self.generated = row.text[: len(request.prompt)], row.text[len(request.prompt) :]
        self.row, self.evidence, self.tree = row.row, evidence, tree
        self._edited = dict[int, Numbers]()
        self._logits = dict[int, Numbers]()
        self._target = dict[int, Numbers]()

    def raw(self, node: int) -> Numbers:
        """The model's logits (V,)."""
        return as_numbers(self.evidence.logits[self.row, node])

    def edited(self, node: int) -> Numbers:
        """The logits before temperature and filters, which may exclude every token."""
        if node not in self._edited:
            allowed, generated = self.evidence.allowed, (*self.generated, *self.tree.texts[node])
            mask: Mask | None = None if allowed is None else allowed[self.row, node].numpy()
            self._edited[node] = self.policy.edited(self.raw(node), self.prompt, generated, mask)
        return self._edited[node]

    def is_dead(self, node: int) -> bool:
        """Whether the settings leave no token."""
        return not self.edited(node).max() > -np.inf

    def before_filters(self, node: int) -> Numbers:
        """What the engine shapes: the model's own logits where the settings leave no token."""
        return self.raw(node) if self.is_dead(node) else self.edited(node)

    def logits(self, node: int) -> Numbers:
        """After the policy."""
        if node not in self._logits:
            self._logits[node] = self.policy.shaped(self.before_filters(node))
        return self._logits[node]

    def target(self, node: int) -> Numbers:
        """The law that they stand for."""
        if node not in self._target:
            self._target[node] = softmax(self.logits(node))
        return self._target[node]

    def draft(self, node: int) -> Numbers:
        """The law that drawn children came from."""
        assert self.evidence.draft.laws is not None
        return as_numbers(self.evidence.draft.laws[self.row, node])


def _shaken(values: Numbers, by: Numbers, key: int) -> Numbers:
    """Each number changed by up to so much, and equal numbers by the same."""
    bits = scrambled(values.view(np.uint64) ^ np.uint64(key)) >> np.uint64(11)
    moved: Numbers = values + by * (bits.astype(np.float64) * 2.0**-52 - 1)
    return moved


@dataclass(frozen=True, slots=True)
class _Shaken:
    """The same laws, from logits and draft laws that differ by rounding."""

    laws: _RowLaws
    size: float  # relative to each number
    key: int
    widens: bool  # the borders of filters: what rounding makes equal to a token that stays, stays as well
    snaps: bool = False  # the target's law is the draft's wherever the two are that close

    def logits(self, node: int) -> Numbers:
        """After the policy."""
        policy, held = self.laws.policy, self.laws.before_filters(node)
        possible = held > -np.inf
        by = self._scale(node) * self.size
        moved = np.where(possible, _shaken(np.where(possible, held, 0.0), by, self.key), -np.inf)
        return policy.with_slack(self._slack(held, by)).shaped(moved)

    def _scale(self, node: int) -> Numbers:
        """How large the numbers were that were rounded on the way."""
        raw, held = self.laws.raw(node), self.laws.before_filters(node)
        largest = np.maximum(np.maximum(abs(raw), abs(held)), self.laws.policy.temperature)
        return np.where(held > -np.inf, largest, 0.0)

    def _slack(self, held: Numbers, by: Numbers) -> float:
        temperature = self.laws.policy.temperature
        if not self.widens or temperature == 0:
            return 0.0
        return float(by[held > held.max() - _FAR * temperature].max()) / temperature

    def target(self, node: int) -> Numbers:
        """The law that they stand for."""
        if not self.snaps:
            return softmax(self.logits(node))
        target, draft = self.laws.target(node), self.laws.draft(node)
        scale = self._scale(node) / (self.laws.policy.temperature or 1.0)
        return np.where(abs(target - draft) <= self.size * scale * target, draft, target)

    def draft(self, node: int) -> Numbers:
        """The law that drawn children came from."""
        law = self.laws.draft(node)
        return law if self.snaps else _shaken(law, self.size * law, self.key)


def _shaken_laws(laws: _RowLaws, *, has_drafts: bool) -> Iterator[Laws]:
    """Laws that rounding may have made of the same numbers."""
    kind = laws.evidence.logits.dtype
    most = ROUNDINGS * torch.finfo(torch.promote_types(kind, torch.float32)).eps / 2
    if has_drafts:
        yield _Shaken(laws, most, 0, widens=False, snaps=True)
    for trial in range(_TRIALS):
        yield _Shaken(laws, most * _SIZES[trial % len(_SIZES)], mixed(_SHAKING, trial), widens=trial % 8 >= 4)


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check."""

    is_near_tie: bool = False
    failure: Failure | None = None


def check_row(record: StepRecord, evidence: Evidence, row: WatchedRow) -> Checked:
    """Decide a row of a step anew, and compare. For rows that are not `uncovered`."""
    rule, tree = reference_rule(record.rule), _tree(evidence, row.row)
    assert rule is not None
    if tree.tokens[0] != row.text[-1]:
        return Checked(failure=_failure(record, row, "a tree that grows from another text", (row.text[-1],)))
    laws = _RowLaws(row, evidence, tree, record.stops)
    decisions = Decisions(row.request.seed, len(row.text))
    meant = rule.judge(tree, laws, decisions)
    is_near_tie = not _is_same(meant, row)
    if is_near_tie and not any(
        _is_same(rule.judge(tree, shaken, Decisions(decisions.seed, decisions.committed)), row)
        for shaken in _shaken_laws(laws, has_drafts=rule.needs_laws)
    ):
        return Checked(failure=_parting(record, row, meant, laws, decisions))
    return Checked(is_near_tie, _wrong_end(record, row, laws))


def _tree(evidence: Evidence, row: int) -> Tree:
    draft = evidence.draft
    tokens, parents, alive, fixed = (
        values[row].tolist() for values in (draft.tokens, draft.parents, draft.alive, draft.fixed)
    )
    return Tree(tokens, parents, alive, fixed, draft.siblings, draft.width)


def _is_same(judged: Judged, row: WatchedRow) -> bool:
    found = row.verdict
    return (judged.tokens, judged.accepted, judged.corrected) == (found.tokens, found.accepted, found.corrected)


def _failure(record: StepRecord, row: WatchedRow, what: str, expected: tuple[int, ...], at: int = 0) -> Failure:
    request = row.request
    return Failure(
        what, record.rule.card.name, request.policy, request.seed, len(row.text) + at, row.verdict.tokens, expected,
        text=row.text,
    )  # fmt: skip


def _parting(record: StepRecord, row: WatchedRow, meant: Judged, laws: _RowLaws, decisions: Decisions) -> Failure:
    """Where what was emitted parts from what was expected, and what decided there."""
    emitted, expected = row.verdict.tokens, meant.tokens
    pairs = enumerate(zip(emitted, expected, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), None)
    if at is None:
        what = f"{row.verdict.accepted} drafts accepted in place of {meant.accepted}"
        what = what if row.verdict.accepted != meant.accepted else "a correction counted wrongly"
        return _failure(record, row, what, expected, min(len(emitted), len(expected)) - 1)
    failure = _failure(record, row, "another token than expected", expected, at)
    node = laws.tree.at(expected[:at])
    if record.rule.card.name == "race":
        scores = tuple(decisions.score(laws.logits(node), tokens[at], at) for tokens in (emitted, expected))
        return replace(failure, scores=(scores[0], scores[1]))
    made = [decision for decision in decisions.made if laws.tree.texts[decision.node] == expected[:at]]
    return replace(failure, coins=tuple(map(_in_words, made)))


def _in_words(decision: Decision) -> str:
    return f"coin {decision.coin:.9f} of {decision.what} in [{decision.low:.9f}, {decision.high:.9f})"


def _wrong_end(record: StepRecord, row: WatchedRow, laws: _RowLaws) -> Failure | None:
    """Whether the tokens emitted were cut elsewhere than at a stop token, at the limit, or where no token was left."""
    verdict, request = row.verdict, row.request
    stops = record.stops | request.stop_ids
    until_stop = next((at for at, token in enumerate(verdict.tokens, 1) if token in stops), len(verdict.tokens) + 1)
    left = len(request.prompt) + request.max_new_tokens - len(row.text)
    count = min(len(verdict.tokens), until_stop, left)
    reason = "stop" if count == until_stop else "length" if count >= left else None
    nodes = [laws.tree.at(verdict.tokens[:depth]) for depth in range(count)]
    dead = next((depth for depth, node in enumerate(nodes) if laws.is_dead(node)), None)
    if dead is not None:
        count, reason = dead, None
    meant = (count, reason, SOUND if dead is None else NO_TOKENS)
    if meant == (verdict.count, verdict.finish_reason, verdict.fault):
        return None
    what = (
        f"a text of {verdict.count} tokens of the step that ends by {verdict.finish_reason!r}, in place of {count} by "
    )
    return _failure(record, row, f"{what}{reason!r}", verdict.tokens[:count], min(count, verdict.count))
