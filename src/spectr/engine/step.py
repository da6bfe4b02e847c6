"""One step of the first rows of a lane: draft, score, settle.

The functions take and return tensors and never wait for the device, so that they run eagerly and can be captured.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spectr.coins import SeededCoins
from spectr.engine.grammars import RowGrammars
from spectr.engine.metrics import best_possible
from spectr.engine.readout import Fault, StepReadout, TreeReadout, pack
from spectr.engine.record import Evidence
from spectr.engine.rows import Rows
from spectr.grammar.masks import allowed, keep_allowed
from spectr.policy import Past
from spectr.rows import cached_arange, pick_rows
from spectr.transport.laws import law_of, zero_undefined
from spectr.trees import Topology, path_tokens, topology
from spectr.types import Draft, Drafting, LogitsAt, Scene, TreeModel, Verdict
from spectr.verify import Rule

__all__ = ["Scored", "StepParts", "draft_trees", "run_step", "score_trees", "settle"]


@dataclass(frozen=True, slots=True)
class StepParts:
    """What takes part in a step, and what the step has to compute."""

    target: TreeModel
    session: Any  # the target's, for the rows that take part
    drafting: Drafting
    rule: Rule
    rows: Rows  # the rows that take part
    policy_stages: frozenset[str]  # the stages of policies that are computed
    longest: int  # an upper bound of the tokens of a row
    # An upper bound of the tokens that the last step added to a row; None: wait for the exact number.
    unread: int | None = None
    logprobs: int | None = None  # of emitted tokens, and of this many of the likeliest tokens
    optimality_gap: bool = False
    traces: bool = False  # whether the readout has the trees
    keeps_evidence: bool = False  # whether the readout has the evidence for a witness
    grammars: RowGrammars | None = None  # None if no row has one


@dataclass(frozen=True, slots=True)
class Scored:
    """A draft and the target's logits."""

    draft: Draft
    tree: Topology
    path_tokens: Tensor  # (B, N, D): the tokens from below the root to each node, padded with -1
    coins: SeededCoins
    logits: Tensor  # (B, N, V), before the policy; finite
    finite: Tensor  # (B, N) bool: whether the target's logits were finite
    masks: Tensor | None = None  # (B, N, W) int32: the tokens that grammars allow after each node

    def logits_at(self, nodes: Tensor | None) -> Tensor:
        """Return logits (B, M, V) after nodes (B, M), or after all nodes for None, masked by grammars."""
        logits = pick_rows(self.logits, nodes)
        return logits if self.masks is None else keep_allowed(logits, pick_rows(self.masks, nodes))


def run_step(parts: StepParts, marks: list[float]) -> StepReadout:
    """Run one step: draft trees, score them in one call of the target, and settle. Append the times before,
    between and after to `marks`."""
    marks.append(time.perf_counter())
    draft, coins = draft_trees(parts)
    marks.append(time.perf_counter())
    scored = score_trees(parts, draft, coins)
    marks.append(time.perf_counter())
    readout = settle(parts, scored)
    marks.append(time.perf_counter())
    return replace(readout, evidence=_evidence(scored)) if parts.keeps_evidence else readout


def _evidence(scored: Scored) -> Evidence:
    """What the verdict was computed from."""
    masks = scored.masks
    can_follow = None if masks is None else allowed(masks, scored.logits.shape[-1]) | (masks == 0).all(-1)[..., None]
    return Evidence(scored.draft, scored.logits, can_follow)


def draft_trees(parts: StepParts) -> tuple[Draft, SeededCoins]:
    """Draft a tree for each row; return it with the coins that it was drawn with."""
    rows, history, stages = parts.rows, parts.rows.history, parts.policy_stages
    temperature = rows.policies.number("temperature")
    coins = SeededCoins(rows.seed, history.length, temperature == 0)
    wants_laws = parts.optimality_gap or parts.traces
    # Rough filters change which nodes are drafted and the distributions that are recorded for them, so they are for
    # rules whose text depends on no draft, and only if nobody asks for those distributions.
    roughly = not parts.rule.card.text_depends_on_drafts and not wants_laws

    def masked(logits: Tensor, paths: Tensor) -> Tensor:
        masks = None if parts.grammars is None else parts.grammars.of_drafts(paths)
        return logits if masks is None else keep_allowed(logits, masks)

    def draft_logits(logits: Tensor, paths: Tensor) -> Tensor:
        return rows.policies(masked(logits, paths), Past(history, paths, drafting=True), stages=stages)

    def ranking_logits(logits: Tensor, paths: Tensor) -> Tensor:
        past = Past(history, paths, drafting=True)
        return rows.policies(masked(logits, paths), past, stages=stages, ranked=True, roughly=roughly)

    scene = Scene(
        history, rows.root, rows.active, coins, draft_logits, ranking_logits, temperature, parts.longest, parts.unread,
        wants_laws,
    )  # fmt: skip
    return parts.drafting.propose(scene), coins


def score_trees(parts: StepParts, draft: Draft, coins: SeededCoins) -> Scored:
    """Score all nodes in one call of the target. Meanwhile the host computes the masks of rows with grammars."""
    tree = topology(draft)
    paths = path_tokens(draft.tokens, tree.path[..., 1:])
    pending = None if parts.grammars is None else parts.grammars.send(paths)
    raw = parts.target.score(parts.session, draft.tokens, tree.ancestors, tree.depth)
    masks = None if pending is None else pending.walk()
    logits, finite = zero_undefined(raw)
    return Scored(draft, tree, paths, coins, logits, finite, masks)


def settle(parts: StepParts, scored: Scored) -> StepReadout:
    """Decide which path of each tree is accepted, by policy and rule; keep the path in the caches of target and
    drafter; append the tokens to the texts, end those that end, and return what the host reads.

    Rows that have ended are computed and ignored: nothing is accepted, kept or appended for them, `active` stays False,
    and the other values of their readout are arbitrary."""
    rows, draft, tree = parts.rows, scored.draft, scored.tree

    def policy_logits(nodes: Tensor | None) -> Tensor:
        past = Past(rows.history, pick_rows(scored.path_tokens, nodes))
        return rows.policies(scored.logits_at(nodes), past, stages=parts.policy_stages)

    verdict = _of_active_rows(parts.rule(policy_logits, draft, scored.coins, tree=tree), rows.active)
    _keep(parts, verdict)
    best = best_possible(policy_logits, draft, tree, verdict) if parts.optimality_gap else None
    emitted = _emitted_tokens(draft, verdict)
    until_end, end_reason = _end(rows, emitted, verdict.length + 1)
    fault, kept = _fault(parts, scored, verdict, until_end)
    reason = torch.where(fault == Fault.NONE, end_reason, 0)
    readout = StepReadout(
        pack(draft, tree, verdict, (emitted, kept, reason), fault), *_logprobs(parts, scored, verdict, emitted), best,
        _tree(scored, verdict, policy_logits) if parts.traces else None,
    )  # fmt: skip
    rows.history.append(emitted, kept)
    rows.active &= (reason == 0) & (fault == Fault.NONE)
    return readout


def _tree(scored: Scored, verdict: Verdict, policy_logits: LogitsAt) -> TreeReadout:
    """The trees of all rows, with the probabilities of their tokens."""
    draft = scored.draft
    target = law_of(policy_logits(None))  # (B, N, V)

    def probability(laws: Tensor, nodes: Tensor, tokens: Tensor) -> Tensor:
        return pick_rows(laws, nodes).gather(-1, tokens.clamp(0, laws.shape[-1] - 1)[..., None])[..., 0].float()

    own = probability(target, draft.parents, draft.tokens)
    drafted = torch.full_like(own, -1.0) if draft.laws is None else probability(draft.laws, draft.parents, draft.tokens)
    last = torch.nn.functional.pad(verdict.path, (1, 0)).gather(1, verdict.length[:, None])  # (B, 1)
    added = probability(target, last, verdict.bonus[:, None])
    origin = torch.full_like(draft.tokens, -1) if draft.origin is None else draft.origin
    nodes = torch.stack([draft.tokens, draft.parents, draft.alive.long(), origin], -1)
    return TreeReadout(nodes, torch.stack([drafted, own], -1), verdict.path, added[:, 0])


def _keep(parts: StepParts, verdict: Verdict) -> None:
    """Keep the accepted path in the caches of target and drafter; nothing for rows that have ended."""
    root = torch.where(parts.rows.active, 0, -1)[:, None]
    parts.target.keep(parts.session, torch.cat([root, verdict.path], 1))
    parts.drafting.keep(verdict.path)


def _of_active_rows(verdict: Verdict, active: Tensor) -> Verdict:
    """The verdict with nothing accepted in rows that have ended."""
    path = torch.where(active[:, None], verdict.path, -1)
    return Verdict(path, torch.where(active, verdict.length, 0), verdict.bonus, verdict.corrected & active)


def _emitted_tokens(draft: Draft, verdict: Verdict) -> Tensor:
    """(B, D + 1): the accepted tokens, then the bonus; the rest is arbitrary."""
    accepted = draft.tokens.gather(1, verdict.path.clamp_min(0))
    return torch.nn.functional.pad(accepted, (0, 1)).scatter(1, verdict.length[:, None], verdict.bonus[:, None])


def _end(rows: Rows, emitted: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of the first `count` (B,) emitted tokens (B, W) belong to each text, and why it ends: 0 it does
    not, 1 at a stop token, 2 at its length, whichever comes first. A stop token at the limit counts as a stop."""
    places, history = cached_arange(emitted.shape[1], emitted.device), rows.history
    stops = (emitted[..., None] == history.stop_ids[:, None]).any(-1) & (places < count[:, None])
    until_stop = torch.where(stops, places + 1, emitted.shape[1] + 1).amin(-1)
    cut = torch.minimum(torch.minimum(count, until_stop), history.left)
    cut = torch.where(rows.active, cut, 0)
    stopped, full = cut == until_stop, cut >= history.left
    return cut, torch.where(rows.active, torch.where(stopped, 1, torch.where(full, 2, 0)), 0)


def _fault(parts: StepParts, scored: Scored, verdict: Verdict, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is wrong (B,) at the first of the nodes from which the first `count` (B,) tokens were sampled, if
    one had no distribution, and how many tokens (B,) came before that node."""
    nodes = torch.nn.functional.pad(verdict.path, (1, 0))  # (B, D + 1): the root first
    sampled = (cached_arange(nodes.shape[1], nodes.device) < count[:, None]) & parts.rows.active[:, None]
    at, policies = nodes.clamp_min(0), parts.rows.policies
    nonfinite = ~scored.finite.gather(1, at)
    faults = torch.where(nonfinite & sampled, Fault.NONFINITE_LOGITS, Fault.NONE)
    if policies.may_leave_none(parts.rows.history, parts.policy_stages):
        past = Past(parts.rows.history, pick_rows(scored.path_tokens, at))
        dead = policies.leave_none(scored.logits_at(at), past, parts.policy_stages)
        faults = torch.where(dead & sampled & ~nonfinite, Fault.NO_TOKEN_LEFT, faults)
    if scored.masks is not None:
        closed = (pick_rows(scored.masks, at) == 0).all(-1)
        faults = torch.where(closed & sampled & ~nonfinite, Fault.GRAMMAR_DEAD_END, faults)
    first = (faults != Fault.NONE).long().argmax(-1)
    fault = faults.gather(1, first[:, None])[:, 0]
    return fault, torch.where(fault == Fault.NONE, count, first)


def _logprobs(
    parts: StepParts, scored: Scored, verdict: Verdict, emitted: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Log-probabilities (B, W, 1 + K) of the emitted tokens (B, W) and of the K likeliest tokens under the model's own
    distributions, and the likeliest tokens (B, W, K); None if no request asks for them."""
    if parts.logprobs is None:
        return None, None
    nodes = torch.nn.functional.pad(verdict.path, (1, 0)).clamp_min(0)
    logprobs = pick_rows(scored.logits, nodes).float().log_softmax(-1)
    own = logprobs.gather(-1, emitted.clamp(0, logprobs.shape[-1] - 1)[..., None])
    if not parts.logprobs:
        return own, None
    best = logprobs.topk(min(parts.logprobs, logprobs.shape[-1]), -1)
    return torch.cat([own, best.values], -1), best.indices
