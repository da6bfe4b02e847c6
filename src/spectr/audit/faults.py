"""Deliberate faults in rules, drafts and coins, enumerated so that their bias is exact."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.audit.decisions import ExactCoins
from spectr.audit.exact import Fault, enumerate_steps
from spectr.audit.proofs import LOSSY, ROUNDING
from spectr.audit.report import Finding, Level
from spectr.audit.toys import toy_pair
from spectr.coins import Purpose
from spectr.rows import LazyRows, pick_rows
from spectr.transport.coupling import Coupling, Drafted, Outcome
from spectr.transport.kseq import KSeq
from spectr.transport.laws import take
from spectr.transport.maximal import Maximal
from spectr.trees import Growth, Shape
from spectr.types import Coins, Draft, LogitsAt, Siblings, Verdict
from spectr.verify import Rule, rule
from spectr.verify.block import Block
from spectr.verify.descent import conclude, descend
from spectr.verify.follow import child_in_slot, drafted_at, node_ids
from spectr.verify.rule import Descent, law_of, laws_in
from spectr.verify.walk import Walk

__all__ = ["SECTION", "ExactFault", "argmax_with_soft_law", "exact_faults"]

SECTION = "planted"


@dataclass(frozen=True, slots=True)
class ExactFault:
    """A fault, and the tree on which it is detected."""

    name: str
    rule: Rule
    widths: tuple[int, ...]
    fault: Fault | None = None
    siblings: Siblings = "iid"
    fixed: Callable[[Tensor, int], Tensor] | None = None
    steps: int = 1
    vocabulary: int = 3

    def run(self, _: Level) -> Sequence[Finding]:
        """Return a finding with the bias of the fault."""
        models = toy_pair("plain", self.vocabulary, 1)
        growth = Growth(Shape.branching(self.widths), self.siblings)
        if self.fixed is not None:
            growth = replace(growth, fixed=self.fixed)
        distance = enumerate_steps(self.rule, models, growth, self.steps, self.fault).total_variation(models[0])
        steps = "one step" if self.steps == 1 else f"{self.steps} steps"
        measured = f"total variation {distance:.1e} in {steps} of the tree {self.widths} with {self.vocabulary} tokens"
        details = {
            "total_variation": distance, "steps": self.steps, "tree": self.widths, "vocabulary": self.vocabulary,
            "tolerance": ROUNDING,
        }  # fmt: skip
        return [Finding(SECTION, self.name, distance < ROUNDING, measured, details, "planted")]


def argmax_with_soft_law(draft: Draft) -> Draft:
    """Draft the likeliest token, but report the whole distribution as the one it was drawn from."""
    assert draft.laws is not None
    tokens = draft.tokens.clone()
    tokens[:, 1] = draft.laws[:, 0].argmax(-1)
    return replace(draft, tokens=tokens)


def _without_copies(draft: Draft) -> Draft:
    """Remove copies among iid siblings before the rule sees them."""
    tokens, parents = draft.tokens, draft.parents
    same = (tokens[:, :, None] == tokens[:, None]) & (parents[:, :, None] == parents[:, None])
    copy = same.tril(-1).any(-1)
    copy[:, 0] = False
    return replace(draft, alive=draft.alive & ~copy & ~copy.gather(-1, parents))


def _at_another_temperature(draft: Draft) -> Draft:
    """Report a law that is not the one that was sampled from."""
    assert draft.laws is not None
    return replace(draft, laws=(draft.laws.log() * 0.6).softmax(-1))


def _without_the_unlikeliest(draft: Draft) -> Draft:
    """Drop the least likely of three drawn children."""
    assert draft.laws is not None
    chance = draft.laws[:, 0].gather(-1, draft.tokens[:, 1:4])
    alive = draft.alive.clone()
    alive[:, 1:4] &= torch.arange(3) != chance.argmin(-1, keepdim=True)
    return replace(draft, alive=alive)


class _CoinsByPosition(ExactCoins):
    """Coins that are keyed by the position of the tested token, so that later steps reuse coins of earlier ones."""

    def key(self, node: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
        return self.committed + node, torch.full_like(node, purpose)


class _OneStream(ExactCoins):
    """Coins with which a child is drawn and tested by the same coin."""

    def key(self, node: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
        parent = node - 1 if purpose == Purpose.DRAFT else node  # on a chain
        return self.committed, parent * 16 + (0 if purpose in (Purpose.DRAFT, Purpose.CHILD) else purpose)


class _TargetAfterRejection(Maximal):
    """Draws from the target instead of the residual after a rejection."""

    def outcome(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        return Outcome(super().outcome(target, draft, drafted).ending, LazyRows.of(target))


class _OtherCorrections(Walk):
    """A walk with wrong weights for the token after the last accepted node: `change` maps (target's law, residual,
    depth of the node) to other weights."""

    def __init__(self, coupling: str, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(coupling)
        self.change = change

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        tree, laws = descent.tree, laws_in(draft)

        def decide(nodes: Tensor | None) -> tuple[Tensor, LazyRows]:
            children, drafted = drafted_at(tree, draft, nodes)
            target = law_of(logits(nodes))
            outcome = self.coupling.outcome(target, pick_rows(laws, nodes), drafted)
            slot = coins.pick(outcome.choices, node_ids(draft, nodes), Purpose.CHILD)
            depth = pick_rows(tree.depth, nodes)[..., None]
            wrong = self.change(target, outcome.residual.all(), depth)
            inner = drafted.live.any(-1, keepdim=True)
            return child_in_slot(tree, children, slot), LazyRows.of(torch.where(inner, wrong, outcome.residual.all()))

        trail = descend(decide, tree, lazily=descent.lazily)
        bonus = coins.pick(trail.at_end()[:, None], trail.end[:, None], Purpose.BONUS)
        return conclude(tree, trail.end, bonus.squeeze(1))


def _target_when_deep(target: Tensor, residual: Tensor, depth: Tensor) -> Tensor:
    """Draw the correction from the target's law from depth 3 on."""
    return torch.where(depth >= 3, target, residual)


def _sharpened_below_the_root(power: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Raise the residual to a power at inner nodes below the root."""

    def change(_: Tensor, residual: Tensor, depth: Tensor) -> Tensor:
        law = residual / residual.sum(-1, keepdim=True)
        return torch.where(depth >= 1, law**power, residual)

    return change


class _AtMostFour(KSeq):
    """K-SEQ that computes ρ and the residual for at most four drafts, even if there are more."""

    def _rho(self, target: Tensor, draft: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super()._rho(target, draft, k.clamp(max=4))


class _Typical(Coupling):
    """Accepts a draft whenever its target probability is high enough, as in typical acceptance."""

    name: ClassVar[str] = "typical"
    papers: ClassVar[tuple[str, ...]] = ()

    def settle(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Outcome:
        likely = (take(target, drafted.tokens) > 0.3) & drafted.live
        return Outcome((likely & (likely.cumsum(-1) == 1)).double(), LazyRows.of(target))

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        raise NotImplementedError  # a walk does not call it


class _FirstFailure(Block):
    """Block verification that keeps the path before the first failure instead of the deepest success."""

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        return super().verdict(logits, draft, _Impatient(coins), descent)


class _Impatient:
    """Coins that all fail after the first failure."""

    def __init__(self, coins: Coins) -> None:
        self.coins = coins

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coins, name)

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        return self.coins.flip(chance, node, purpose).int().cumprod(-1).bool()


def _every_second(law: Tensor, _: int) -> Tensor:
    """Return a number of fixed children that depends on the node, so that copies of one prefix disagree."""
    return (torch.arange(law.shape[1]) % 2).expand(law.shape[:-1])


def exact_faults() -> Iterator[ExactFault]:
    """Return the faults that can be enumerated."""
    soft, copies = Fault(change=argmax_with_soft_law), Fault(change=_without_copies)
    warm, dropped = Fault(change=_at_another_temperature), Fault(change=_without_the_unlikeliest)
    yield ExactFault("argmax draft with its soft law, speculative", rule("speculative"), (1,), soft)
    yield ExactFault("argmax draft with its soft law, block", rule("block"), (1,), soft)
    yield ExactFault("copies removed before the rule, kseq", rule("kseq"), (2, 1), copies)
    yield ExactFault("copies removed before the rule, path_block", rule("path_block"), (2, 1), copies)
    yield ExactFault("draft law of another temperature, optimal", rule("optimal"), (2, 1), warm)
    yield ExactFault("draft law of another temperature, traversal", rule("traversal"), (2, 1), warm)
    yield ExactFault("a drawn child dropped, optimal", rule("optimal"), (3,), dropped)
    yield ExactFault("ρ below the smallest valid one, K-SEQ", Walk(KSeq(rho=1.0)), (2,))
    yield ExactFault("target's law after a rejection", Walk(_TargetAfterRejection()), (1, 1))
    yield ExactFault("accepted when likely enough", Walk(_Typical()), (1, 1))
    yield ExactFault("first failure in place of longest success, block", _FirstFailure(), (1, 1, 1))
    yield ExactFault("one coin draws and judges, speculative", rule("speculative"), (1, 1), Fault(coins=_OneStream))
    again = Fault(coins=_CoinsByPosition)
    yield ExactFault("coins that come again, block", rule("block"), (1, 1), again, steps=2, vocabulary=2)
    yield ExactFault("pooled copies disagree on what is fixed", rule("optimal"), (2, 2), siblings="hybrid",
                 fixed=_every_second)  # fmt: skip
    deep, inner = _target_when_deep, _sharpened_below_the_root
    for name in ("optimal", "kseq", "recursive"):
        wrong = _OtherCorrections(name, deep)
        yield ExactFault(f"target's law after a rejection at depth 3, {name}", wrong, (2, 1, 1, 1), vocabulary=2)
        yield ExactFault(f"residual ** 1.15 below the root, {name}", _OtherCorrections(name, inner(1.15)), (2, 1, 1))
    for size in (2, 3):
        yield ExactFault(f"at most four drafts counted, {size} tokens", Walk(_AtMostFour()), (6,), vocabulary=size)
    for name, options in LOSSY.items():
        yield ExactFault(f"lossy rule {name} taken for lossless", rule(name, **options), (2, 1))
