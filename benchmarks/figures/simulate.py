"""Simulates the subjects of the theorems with the couplings, trees and rules that generation uses, without formulas.

Every function takes a seed and returns one number for each independent text, draw or call.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from spectr.coins import SeededCoins, draw, gumbel
from spectr.draft.plan import Plan
from spectr.draft.plan import draw as draw_tree
from spectr.policy import History
from spectr.theory.chains import ChainPair
from spectr.theory.estimate import Array
from spectr.theory.families import Family
from spectr.transport import coupling as named_coupling
from spectr.transport.coupling import Coupling
from spectr.trees import Frontier
from spectr.types import Scene
from spectr.verify import rule as named_rule

__all__ = ["call_counts", "coupling_hits", "race_ranks", "rejection_counts", "relaxed_texts", "tree_tokens"]


def _coins(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def call_counts(acceptance: Sequence[float], tokens: int, texts: int, seed: int) -> Array:
    """Return the number of calls of each text, (texts,); drafts are accepted or rejected one after the other."""
    rng = np.random.default_rng(seed)
    left, calls = np.full(texts, tokens), np.zeros(texts)
    while (left > 0).any():
        kept = np.cumprod(rng.random((texts, len(acceptance))) < np.asarray(acceptance), -1).sum(-1)
        calls += left > 0
        left = left - kept - 1
    return calls


def rejection_counts(pair: ChainPair, length: int, drafts: int, texts: int, seed: int) -> Array:
    """Return the number of rejections in each text, (texts,).

    A round begins with `drafts` drafts under recursive rejection, and continues with the one that was accepted. Drafts
    are chains; their later tokens are drawn only when they are needed, which does not change the law.
    """
    generator = torch.Generator().manual_seed(seed)
    many, one = named_coupling("recursive"), named_coupling("maximal")
    context, fresh, counts = torch.full((texts,), pair.size), torch.ones(texts, dtype=torch.bool), torch.zeros(texts)
    for _ in range(length):
        target, proposed = pair.target[context], pair.draft[context]
        tokens = draw(proposed[:, None].expand(-1, drafts, -1), _coins(generator, texts, drafts))
        coins = _coins(generator, texts, 2)
        slot, token = many.draw(target, proposed, tokens, coins)
        alone, other = one.draw(target, proposed, tokens[:, :1], coins)
        context, fresh = torch.where(fresh, token, other), torch.where(fresh, slot == drafts, alone == 1)
        counts += fresh
    return counts.double().numpy()


def relaxed_texts(pair: ChainPair, coupling: Coupling, length: int, texts: int, seed: int) -> tuple[Array, Array]:
    """Return the rejections and the target's log-probability of each text, per token, with one draft and a coupling."""
    generator = torch.Generator().manual_seed(seed)
    context, rejected, score = torch.full((texts,), pair.size), torch.zeros(texts), torch.zeros(texts).double()
    for _ in range(length):
        target, proposed = pair.target[context], pair.draft[context]
        tokens = draw(proposed, _coins(generator, texts))[:, None]
        slot, context = coupling.draw(target, proposed, tokens, _coins(generator, texts, 2))
        rejected += slot == 1
        score += target.gather(-1, context[:, None]).squeeze(-1).log()
    return rejected.double().numpy() / length, score.numpy() / length


def coupling_hits(name: str, family: Family, k: int, draws: int, seed: int) -> Array:
    """Return 1 for each draw whose token is one of the k iid drafts and 0 for the others, (draws,)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = draw(family.draft.expand(draws, k, -1), _coins(generator, draws, k))
    slot, _ = named_coupling(name).draw(family.target, family.draft, tokens, _coins(generator, draws, 2))
    return (slot < k).double().numpy()


def race_ranks(family: Family, races: int, seed: int) -> Array:
    """Return the rank of the target's winner in the drafter's race, (races,), with the noise that generation uses."""
    noise = gumbel(torch.tensor([seed]), torch.arange(races)[None], len(family.target))[0]
    winner = (family.target.log() + noise).argmax(-1, keepdim=True)
    drafted = family.draft.log() + noise
    return (drafted > drafted.gather(-1, winner)).sum(-1).double().numpy()


def _scene(rows: int, vocabulary: int, coins: SeededCoins) -> Scene:
    """Return a scene with a text of one token in every row, and a policy that changes nothing."""

    def same(logits: Tensor, _: Tensor) -> Tensor:
        return logits

    texts, active = History.of([[0]] * rows, vocabulary), torch.ones(rows, dtype=torch.bool)
    temperature = torch.ones(rows, dtype=torch.float64)
    return Scene(texts, torch.zeros(rows, dtype=torch.int64), active, coins, same, same, temperature, longest=1)


def tree_tokens(family: Family, plan: Plan, rule: str, calls: int, seed: int) -> Array:
    """Return the tokens of each call, (calls,), with the same pair of laws after every text.

    Trees are drawn by the drafters' own function and verified by the rule itself.
    """
    coins = SeededCoins(torch.arange(calls) + seed * calls, torch.ones(calls, dtype=torch.int64))

    def at(law: Tensor) -> Callable[[int], Tensor]:
        return lambda nodes: law.log().expand(calls, nodes, -1)

    target, proposed = at(family.target), at(family.draft)

    def logits_of(frontier: Frontier) -> Tensor:
        return proposed(frontier.tokens.shape[1])

    tree = draw_tree(plan, _scene(calls, len(family.target), coins), logits_of).draft
    verdict = named_rule(rule)(target(tree.tokens.shape[1]), tree, coins)
    return (verdict.length + 1).double().numpy()
