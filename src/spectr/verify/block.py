"""Block verification (Sun et al. 2024): one chain judged as a whole. Optimal over all one-path verifiers.

A path x_1 … x_L from a proposal: w_i = min(1, w_{i−1}·target(x_i)/proposal(x_i)) is the chance to keep at least i
tokens. With Z_i = Σ (w_i·target − proposal)⁺ a coin of chance Z_i / (Z_i + 1 − w_i) says whether i tokens would do
(w_L at the end), and the *longest* success counts, not the run before the first failure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import pick_rows
from spectr.transport.laws import residual, take
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude
from spectr.verify.rule import Card, Rule, Way, law_of, laws_in

__all__ = ["Block", "ProposedPath", "keep_longest"]


@dataclass(frozen=True, slots=True)
class ProposedPath:
    """A path of up to L tokens per row, with the laws along it. Row i of a law follows the first i tokens."""

    nodes: Tensor  # (B, L + 1) int64 from the root, padded with -1
    tokens: Tensor  # (B, L) int64; beyond the end anything
    target: Tensor  # (B, L + 1, V)
    proposal: Tensor  # (B, L + 1, V) law the next token was proposed from; beyond the end anything

    @property
    def length(self) -> Tensor:
        """Tokens on the path, (B,)."""
        return (self.nodes >= 0).sum(-1) - 1


def _kept_chances(path: ProposedPath) -> Tensor:
    """w_0 … w_L, float64 (B, L + 1): a walk in logarithms that is never let above zero."""
    owed, given = (
        take(law[:, :-1], path.tokens[..., None]).squeeze(-1).double() for law in (path.target, path.proposal)
    )
    steps = torch.where(path.nodes[:, 1:] >= 0, owed.log() - torch.where(given > 0, given, 1.0).log(), 0.0)
    climbed = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return (climbed - climbed.cummax(-1).values).exp()


def _stop_chances(path: ProposedPath, kept: Tensor, left: Tensor) -> Tensor:
    """Chance of the coin at each depth, float64 (B, L + 1); 1 at the root, which is always kept."""
    missing = left.sum(-1, dtype=torch.float64)  # Z
    scale = missing + 1 - kept
    inner = torch.where(scale > 0, missing / torch.where(scale > 0, scale, 1.0), 1.0)
    depth = torch.arange(kept.shape[-1], device=kept.device)
    chance = torch.where(depth < path.length[:, None], inner, torch.where(depth == path.length[:, None], kept, 0.0))
    return torch.where(depth == 0, 1.0, chance)


def _longest(success: Tensor) -> Tensor:
    """The deepest success (B,); 0 if there is none."""
    depth = torch.arange(success.shape[-1], device=success.device)
    return torch.where(success, depth, 0).amax(-1)


def keep_longest(path: ProposedPath, coins: Coins) -> tuple[Tensor, Tensor]:
    """The node (B,) where the kept path ends, and the weights (B, V) of the token after it."""
    kept = _kept_chances(path)
    owed = path.target * kept[..., None].to(path.target.dtype)
    left = (owed - path.proposal).clamp_min_(0)
    success = coins.flip(_stop_chances(path, kept, left), path.nodes.clamp_min(0), Purpose.BLOCK)
    last = _longest(success)[:, None]
    whole = last == path.length[:, None]
    end_target, end_owed, end_given = (pick_rows(x, last).squeeze(1) for x in (path.target, owed, path.proposal))
    left_over = residual(end_owed, end_given)
    return path.nodes.gather(-1, last).squeeze(-1), torch.where(whole, end_target, left_over)


class Block(Rule):
    """One chain, judged as a whole; never keeps less than testing token by token."""

    card = Card("block", "one chain judged as a whole", ("iid", "without_replacement"), ("sun2024block",), tree=False)

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        """All rows of the chain at once."""
        tree = way.tree
        last = torch.where(draft.alive, tree.depth, -1).argmax(-1, keepdim=True)
        nodes = pick_rows(tree.path, last).squeeze(1)
        at = nodes.clamp_min(0)
        path = ProposedPath(
            nodes, draft.tokens.gather(-1, at[:, 1:]), law_of(logits(at)), pick_rows(laws_in(draft), at)
        )
        end, weights = keep_longest(path, coins)
        bonus = coins.pick(weights[:, None], end[:, None], Purpose.BONUS).squeeze(1)
        return conclude(tree, end, bonus)
