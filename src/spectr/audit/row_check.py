"""Recomputes the decision of one row of one step: policy, coins or noise, and rule, in float64 from the step's logits.

Nothing here calls the code that made the decision: see `reference_policy`, `reference_coins`, `reference_couplings` and
`reference_rules`. Logits and draft laws are inputs, so the target's own computation is not checked.

The engine computes in float32, so its decision may correctly differ from float64's if the scores of two tokens, a coin
and its border, or a token and the border of a filter differ only by rounding. Such a decision is a near-tie. Near-ties
are found by trials: logits and laws are changed by up to `ROUNDINGS` float32 roundings of each number, in favour of the
emitted token and at random. If any trial emits that token, rounding explains the difference. In a race this tests
whether the scores of the two tokens are that close.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from spectr.audit.reference_coins import mixed, scrambled
from spectr.audit.reference_policy import Numbers, ReferencePolicy, softmax
from spectr.audit.reference_rules import Decision, Decisions, ReferenceRule, ReferenceVerdict, Tree, reference_rule
from spectr.engine.readout import Fault
from spectr.engine.record import Evidence, RecordedRow, StepRecord
from spectr.policy import Policy

__all__ = ["ROUNDINGS", "Checked", "Failure", "as_numbers", "check_row", "uncovered"]

ROUNDINGS = 32
"""How many roundings of a number may explain a difference; policies round a logit about ten times."""

_TRIALS = 128
_SIZES = (1.0, 0.25, 0.06, 0.015)  # relative sizes of the changes; small ones help if many tokens are nearly equal
_SHAKING = 0x1F83D9ABFB41BD6B
_FAR = 40  # tokens this far below the likeliest, in units of the temperature, have no influence


@dataclass(frozen=True, slots=True)
class Failure:
    """A row whose tokens differ from those that follow from its settings, seed and logits, by more than rounding."""

    what: str  # a description
    rule: str
    policy: Policy
    seed: int
    position: int  # of the first token that differs, counted from the beginning of the prompt
    emitted: tuple[int, ...]  # tokens emitted by the step
    expected: tuple[int, ...]
    scores: tuple[float, float] | None = None  # in a race: the scores of the emitted and of the expected token
    coins: tuple[str, ...] = ()  # with other rules: the coins at the node where they differ, and their borders
    text: tuple[int, ...] | None = None  # prompt and text before the step, if the witness keeps texts

    def __str__(self) -> str:
        """Return one line, without the text."""
        scores = "" if self.scores is None else f", with scores {self.scores[0]:.6g} and {self.scores[1]:.6g}"
        coins = f"; {'; '.join(self.coins)}" if self.coins else ""
        return (
            f"{self.what} at position {self.position} under rule {self.rule!r}: emitted {list(self.emitted)}, expected "
            f"{list(self.expected)}{scores}{coins}; seed {self.seed}, {self._settings()}"
        )

    def _settings(self) -> str:
        """Return the policy without default settings."""
        plain, settings = Policy(), {field.name: getattr(self.policy, field.name) for field in fields(self.policy)}
        used = [f"{name}={value!r}" for name, value in settings.items() if value != getattr(plain, name)]
        return f"Policy({', '.join(used)})"


def as_numbers(values: Tensor) -> Numbers:
    """Convert a host tensor to float64 with NumPy; torch would start its own threads for the checking thread."""
    if values.dtype == torch.bfloat16:  # the upper half of a float32
        bits = values.contiguous().view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)
    numbers: Numbers = values.numpy().astype(np.float64)
    return numbers


def uncovered(record: StepRecord, evidence: Evidence, row: RecordedRow) -> str | None:
    """Return why a row cannot be checked, or None."""
    request = row.request
    if reference_rule(record.rule) is None:
        return f"rule {record.rule.card.name}"
    if request.policy.processors:
        return "processors"
    if request.policy.allowed is not None:
        return "allowed"
    if request.grammar is not None and evidence.allowed is None:
        return "grammar"
    return "logits that are no numbers" if row.verdict.fault == Fault.NONFINITE_LOGITS else None


class _RowLaws:
    """The laws at the nodes of one row, computed on demand."""

    def __init__(self, row: RecordedRow, evidence: Evidence, tree: Tree, stops: frozenset[int]) -> None:
        request = row.request
        self.policy = ReferencePolicy(request.policy, stops | request.stop_ids, request.max_new_tokens)
        self.prompt, self.generated = row.text[: len(request.prompt)], row.text[len(request.prompt) :]
        self.row, self.evidence, self.tree = row.row, evidence, tree
        kind = torch.promote_types(evidence.logits.dtype, torch.float32)  # the dtype in which policies are computed
        self.rounding = ROUNDINGS * torch.finfo(kind).eps / 2
        self._edited = dict[int, Numbers]()
        self._logits = dict[int, Numbers]()
        self._target = dict[int, Numbers]()

    def raw(self, node: int) -> Numbers:
        """Return the model's logits (V,)."""
        return as_numbers(self.evidence.logits[self.row, node])

    def masked(self, node: int) -> Numbers:
        """Return the logits with tokens that the grammar forbids set to −inf."""
        allowed = self.evidence.allowed
        return self.raw(node) if allowed is None else np.where(allowed[self.row, node].numpy(), self.raw(node), -np.inf)

    def edited(self, node: int) -> Numbers:
        """Return the logits before temperature and filters, which may exclude every token."""
        if node not in self._edited:
            generated = (*self.generated, *self.tree.texts[node])
            self._edited[node] = self.policy.edited(self.masked(node), self.prompt, generated)
        return self._edited[node]

    def is_dead(self, node: int) -> bool:
        """Return whether the settings exclude every token."""
        return not self.edited(node).max() > -np.inf

    def before_filters(self, node: int) -> Numbers:
        """Return the engine's input to temperature and filters: the logits without edits if these exclude every
        token."""
        return self.masked(node) if self.is_dead(node) else self.edited(node)

    def logits(self, node: int) -> Numbers:
        """Return the logits after the policy."""
        if node not in self._logits:
            self._logits[node] = self.policy.shaped(self.before_filters(node))
        return self._logits[node]

    def target(self, node: int) -> Numbers:
        """Return the softmax of `logits`."""
        if node not in self._target:
            self._target[node] = softmax(self.logits(node))
        return self._target[node]

    def free_choice(self, node: int) -> None:
        """Return None: every selection follows from the laws."""

    def draft(self, node: int) -> Numbers:
        """Return the law from which the children were drawn."""
        assert self.evidence.draft.laws is not None
        return as_numbers(self.evidence.draft.laws[self.row, node])


@dataclass(frozen=True, slots=True)
class _ShakenLaws:
    """The same laws from logits and draft laws that are changed by rounding errors, differently in each trial.

    Changes favour the token that was emitted next, so that its score or its share of the coin grows or moves; or they
    are random."""

    laws: _RowLaws
    emitted: tuple[int, ...]
    trial: int
    kept: Mapping[int, int]  # nodes that use another trial

    def of(self, node: int) -> int:
        """Return the trial of a node."""
        return self.kept.get(node, self.trial)

    def _size(self, node: int) -> float:
        """Return the largest relative change of a number."""
        return self.laws.rounding * _SIZES[self.of(node) // 4 % len(_SIZES)]

    def _direction(self, node: int, values: Numbers) -> Numbers:
        """Return the direction of the change of each token, between −1 and 1; equal values change equally."""
        text, kind = self.laws.tree.texts[node], self.of(node) % 4
        if kind == 3 or self.emitted[: len(text)] != text:
            key = np.uint64(mixed(_SHAKING, self.of(node)))
            return (scrambled(values.view(np.uint64) ^ key) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
        emitted, tokens = self.emitted[len(text)], np.arange(len(values))
        ahead = (tokens == emitted, tokens <= emitted, tokens >= emitted)[kind]
        return np.where(ahead, 1.0, -1.0)

    def _scale(self, node: int) -> Numbers:
        """Return the size of the numbers that were rounded in the computation of the logits."""
        raw, held = self.laws.raw(node), self.laws.before_filters(node)
        largest = np.maximum(np.maximum(abs(raw), abs(held)), self.laws.policy.temperature)
        return np.where(held > -np.inf, largest, 0.0)

    def logits(self, node: int) -> Numbers:
        """Return the logits after the policy."""
        policy, held = self.laws.policy, self.laws.before_filters(node)
        by, possible = self._scale(node) * self._size(node), held > -np.inf
        moved = np.where(possible, held + by * self._direction(node, held), -np.inf)
        slack = 0.0
        if self.of(node) // 16 % 2 and policy.temperature > 0:  # tokens equal to a kept one up to rounding are kept
            slack = float(by[held > held.max() - _FAR * policy.temperature].max()) / policy.temperature
        return policy.with_slack(slack).shaped(moved)

    def target(self, node: int) -> Numbers:
        """Return the softmax of `logits`; in float32 it does not sum exactly to one."""
        if self.of(node) % 16 == 3 and self.laws.evidence.draft.laws is not None:
            return self._snapped(node)
        law = softmax(self.logits(node))
        return law * (1 + self._size(node) * self._direction(node, law))

    def _snapped(self, node: int) -> Numbers:
        """Return the target's law, set equal to the draft's wherever they differ only by rounding."""
        target, draft = self.laws.target(node), self.laws.draft(node)
        scale = self._scale(node) / (self.laws.policy.temperature or 1.0)
        return np.where(abs(target - draft) <= self.laws.rounding * scale * target, draft, target)

    def free_choice(self, node: int) -> int | None:
        """Return the token emitted next if target and draft law are equal up to rounding.

        Their ratio, by which drafts are selected, is then rounding error alone, and any selection is correct."""
        text = self.laws.tree.texts[node]
        if self.of(node) % 16 != 3 or self.emitted[: len(text)] != text:
            return None
        return self.emitted[len(text)] if np.array_equal(self._snapped(node), self.laws.draft(node)) else None

    def draft(self, node: int) -> Numbers:
        """Return the law from which the children were drawn."""
        law = self.laws.draft(node)
        if self.of(node) % 16 == 3:
            return law
        return law * (1 - self._size(node) * self._direction(node, law))


def _explained(rule: ReferenceRule, laws: _RowLaws, row: RecordedRow) -> bool:
    """Return whether some trial emits the same tokens.

    Every other group of trials keeps the changes of the best trial so far at the nodes that lead to it."""
    emitted, most, best = row.verdict.tokens, 0, dict[int, int]()
    for trial in range(_TRIALS):
        shaken = _ShakenLaws(laws, emitted, trial, best if trial // 4 % 2 else {})
        judged = rule.judge(laws.tree, shaken, Decisions(row.request.seed, len(row.text)))
        if _is_same(judged, row):
            return True
        same = next((at for at, pair in enumerate(zip(judged.tokens, emitted, strict=False)) if len(set(pair)) > 1), 0)
        if same > most:
            on_path = [node for node, text in enumerate(laws.tree.texts) if text == emitted[: len(text)]]
            most, best = same, {node: shaken.of(node) for node in on_path if len(laws.tree.texts[node]) < same}
    return False


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check."""

    is_near_tie: bool = False
    failure: Failure | None = None


def check_row(record: StepRecord, evidence: Evidence, row: RecordedRow) -> Checked:
    """Recompute the decision of a row that is not `uncovered`, and compare."""
    rule, tree = reference_rule(record.rule), _tree(evidence, row.row)
    assert rule is not None
    if tree.tokens[0] != row.text[-1]:
        return Checked(failure=_failure(record, row, "a tree that grows from another text", (row.text[-1],)))
    laws = _RowLaws(row, evidence, tree, record.stops)
    decisions = Decisions(row.request.seed, len(row.text))
    expected = rule.judge(tree, laws, decisions)
    is_near_tie = not _is_same(expected, row)
    if is_near_tie and not _explained(rule, laws, row):
        return Checked(failure=_parting(record, row, expected, laws, decisions))
    return Checked(is_near_tie, _wrong_end(record, row, laws))


def _tree(evidence: Evidence, row: int) -> Tree:
    draft = evidence.draft
    tokens, parents, alive, fixed = (
        values[row].tolist() for values in (draft.tokens, draft.parents, draft.alive, draft.fixed)
    )
    return Tree(tokens, parents, alive, fixed, draft.siblings, draft.width)


def _is_same(judged: ReferenceVerdict, row: RecordedRow) -> bool:
    found = row.verdict
    return (judged.tokens, judged.accepted, judged.corrected) == (found.tokens, found.accepted, found.corrected)


def _failure(record: StepRecord, row: RecordedRow, what: str, expected: tuple[int, ...], at: int = 0) -> Failure:
    request = row.request
    return Failure(
        what, record.rule.card.name, request.policy, request.seed, len(row.text) + at, row.verdict.tokens, expected,
        text=row.text,
    )  # fmt: skip


def _parting(
    record: StepRecord, row: RecordedRow, judged: ReferenceVerdict, laws: _RowLaws, decisions: Decisions
) -> Failure:
    """Describe where the emitted and the expected tokens differ, and the decisions made there."""
    emitted, expected = row.verdict.tokens, judged.tokens
    pairs = enumerate(zip(emitted, expected, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), None)
    if at is None:
        what = f"{row.verdict.accepted} drafts accepted in place of {judged.accepted}"
        what = what if row.verdict.accepted != judged.accepted else "a correction counted wrongly"
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


def _wrong_end(record: StepRecord, row: RecordedRow, laws: _RowLaws) -> Failure | None:
    """Return a failure if the emitted tokens end elsewhere than at a stop token, the limit, or where no token is
    left."""
    verdict, request = row.verdict, row.request
    stops = record.stops | request.stop_ids
    until_stop = next((at for at, token in enumerate(verdict.tokens, 1) if token in stops), len(verdict.tokens) + 1)
    left = len(request.prompt) + request.max_new_tokens - len(row.text)
    count = min(len(verdict.tokens), until_stop, left)
    reason = "stop" if count == until_stop else "length" if count >= left else None
    nodes = [laws.tree.at(verdict.tokens[:depth]) for depth in range(count)]
    dead = next((depth for depth, node in enumerate(nodes) if laws.is_dead(node)), None)
    if verdict.fault == Fault.GRAMMAR_DEAD_END and request.grammar is not None:
        return None  # the grammar allows no token here, which masks do not show
    if dead is not None:
        count, reason = dead, None
    expected = (count, reason, Fault.NONE if dead is None else Fault.NO_TOKEN_LEFT)
    if expected == (verdict.count, verdict.finish_reason, verdict.fault):
        return None
    what = f"{verdict.count} tokens kept, ended by {verdict.finish_reason}, in place of {count}, ended by {reason},"
    return _failure(record, row, what, verdict.tokens[:count], min(count, verdict.count))
