"""Block verification (Sun et al. 2024) tests one chain as a whole. It is optimal among verifiers of a single path.

For a path x_1 … x_L drawn from a proposal, w_i = min(1, w_{i−1}·target(x_i)/proposal(x_i)) is the probability of
keeping at least i tokens. With Z_i = Σ (w_i·target − proposal)⁺, a coin at each depth succeeds with Z_i / (Z_i + 1 −
w_i), and with w_L at the last depth. The path is kept up to its *deepest* success, not up to its first failure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import pick_rows
from spectr.transport.laws import residual
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude
from spectr.verify.rule import Card, Descent, Rule, law_of, laws_in

__all__ = ["Block", "ProposedPath", "keep_longest", "next_tokens_on_path"]


@dataclass(frozen=True, slots=True)
class ProposedPath:
    """A path of up to L tokens per row, and a function that computes the distributions along it on demand."""

    nodes: Tensor  # (B, L + 1) int64 from the root, padded with -1
    tokens: Tensor  # (B, L + 1) int64: the token after each node; arbitrary beyond the end
    laws: Callable[[Tensor], Tensor]
    """Maps depths (B, M) to the target's distribution and the one the next token was proposed from, (B, M, 2, V)."""

    @property
    def length(self) -> Tensor:
        """The number of tokens on the path, (B,)."""
        return (self.nodes >= 0).sum(-1) - 1


def next_tokens_on_path(draft: Draft, nodes: Tensor) -> Tensor:
    """Return the token after each of `nodes` (B, L + 1) on a path, and the root's token beyond its end."""
    after = torch.nn.functional.pad(nodes[:, 1:], (0, 1), value=0)
    return draft.tokens.gather(-1, after.clamp_min(0))


def _log_ratios(path: ProposedPath, depth: Tensor, laws: Tensor) -> Tensor:
    """Return log(target / proposal) of the token after each depth (B, M), 0 where the path has ended."""
    token = path.tokens.gather(-1, depth)[..., None, None].expand(*depth.shape, 2, 1)
    target_mass, proposal_mass = laws.gather(-1, token).squeeze(-1).double().unbind(-1)
    return torch.where(
        depth < path.length[:, None], target_mass.log() - torch.where(proposal_mass > 0, proposal_mass, 1.0).log(), 0.0
    )


def _stop_chance(kept: Tensor, missing: Tensor, depth: Tensor, length: Tensor) -> Tensor:
    """Return the probability of the coin at each depth, given w (`kept`) and Z (`missing`); it is 1 at the root."""
    scale = missing + 1 - kept
    inner = torch.where(scale > 0, missing / torch.where(scale > 0, scale, 1.0), 1.0)
    chance = torch.where(depth < length, inner, torch.where(depth == length, kept, 0.0))
    return torch.where(depth == 0, 1.0, chance)


def _coins_along(path: ProposedPath, pieces: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return w and the coin's probability at every depth, float64 (B, L + 1), given consecutive (depths, laws) pairs.

    log w is the running sum of the log ratios, clipped at zero after every term.
    """
    last = torch.zeros_like(path.nodes[:, :1], dtype=torch.float64)  # log w so far
    kept, chances = [], []
    for depth, laws in pieces:
        walk = last + torch.nn.functional.pad(_log_ratios(path, depth, laws).cumsum(-1), (1, 0))
        walk = walk - walk.cummax(-1).values.clamp_min(0)
        here, last = walk[:, :-1].exp(), walk[:, -1:]
        target, proposal = laws.unbind(-2)
        left = (target * here[..., None].to(target.dtype) - proposal).clamp_min_(0)
        chances.append(_stop_chance(here, left.sum(-1, dtype=torch.float64), depth, path.length[:, None]))
        kept.append(here)
    return torch.cat(kept, -1), torch.cat(chances, -1)


def _longest(success: Tensor) -> Tensor:
    """Return the depth (B,) of the deepest success, 0 if there is none."""
    depth = torch.arange(success.shape[-1], device=success.device)
    return torch.where(success, depth, 0).amax(-1)


def keep_longest(path: ProposedPath, coins: Coins, *, lazily: bool) -> tuple[Tensor, Tensor]:
    """Return the node (B,) where the kept path ends, and the weights (B, V) of the token after it."""
    every = torch.arange(path.nodes.shape[1], device=path.nodes.device).expand_as(path.nodes)
    if lazily:
        kept, chances = _coins_along(path, ((depth, path.laws(depth)) for depth in every.split(1, -1)))
    else:
        whole_path = path.laws(every)
        kept, chances = _coins_along(path, [(every, whole_path)])
    last = _longest(coins.flip(chances, path.nodes.clamp_min(0), Purpose.BLOCK))[:, None]
    end = path.laws(last) if lazily else pick_rows(whole_path, last)
    target, proposal = end.squeeze(1).unbind(-2)
    left_over = residual(target * kept.gather(-1, last).to(target.dtype), proposal)
    whole = last == path.length[:, None]
    return path.nodes.gather(-1, last).squeeze(-1), torch.where(whole, target, left_over)


class Block(Rule):
    """Verifies one chain as a whole; it keeps at least as many tokens as a test token by token."""

    card = Card("block", "verifies one chain as a whole", ("iid", "without_replacement"), ("sun2024block",), tree=False)

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Verify the chain, depth by depth or all depths at once."""
        tree, draft_laws = descent.tree, laws_in(draft)
        last = torch.where(draft.alive, tree.depth, -1).argmax(-1, keepdim=True)
        nodes = pick_rows(tree.path, last).squeeze(1)

        def laws(depth: Tensor) -> Tensor:
            at = nodes.gather(-1, depth).clamp_min(0)
            return torch.stack([law_of(logits(at)), pick_rows(draft_laws, at)], -2)

        path = ProposedPath(nodes, next_tokens_on_path(draft, nodes), laws)
        end, weights = keep_longest(path, coins, lazily=descent.lazily)
        bonus = coins.pick(weights[:, None], end[:, None], Purpose.BONUS).squeeze(1)
        return conclude(tree, end, bonus)
