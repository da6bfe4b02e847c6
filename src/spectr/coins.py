"""Coins and race noise: a counter-based generator without state and without a global seed.

A coin of a coupling rule is keyed by (seed, tokens committed when the step starts, node, purpose). It is not keyed by
the absolute position of a token: rules that look below the accepted path would use coins again that earlier decisions
have conditioned, and the distribution would be biased. The race is the exception. Its noise is keyed by (seed, absolute
position, token), in a separate stream that no coupling rule reads.

So the draws of a row do not depend on the other rows of its batch, a step can be replayed, and all devices agree.
"""

import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.kernels import usable
from spectr.notices import notice

__all__ = [
    "Purpose",
    "SeededCoins",
    "derived_seed",
    "draw",
    "gumbel",
    "gumbel_states",
    "likeliest",
    "random_seed",
    "seed_word",
    "uniform",
]


class Purpose(IntEnum):
    """What a coin decides. Each node has one decision per purpose and step."""

    DRAFT = 1  # which token a child is
    CHILD = 2  # which child (or none) a node ends on
    BONUS = 3  # the token after the accepted path
    BLOCK = 4  # whether a path is kept this far


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_COIN_STREAM = 0x5350_4543_5452_0001
_NOISE_STREAM = 0x2545_F491_4F6C_DD1D
_SEED_STREAM = 0x2B99_2DDF_A232_49D6


def seed_word(seed: Any) -> int:
    """Convert any whole number to an int64; numbers that differ by a multiple of 2^64 are the same seed.

    >>> seed_word(2**64 + 5), seed_word(-1), seed_word(2**63)
    (5, -1, -9223372036854775808)
    """
    return (whole("a seed", seed) + (1 << 63)) % (1 << 64) - (1 << 63)


def random_seed() -> int:
    """Return a random seed of 53 bits, which every JSON reader represents exactly."""
    return secrets.randbits(53)


def derived_seed(seed: int, row: int) -> int:
    """Return the seed of a row: `seed` itself for row 0, otherwise 53 bits of a hash of both, so that rows of one seed
    share no texts with rows of the next seed.

    >>> derived_seed(7, 0), derived_seed(7, 1) == derived_seed(8, 0)
    (7, False)
    """
    if row == 0:
        return seed
    words = torch.tensor([_SEED_STREAM, seed_word(seed), row])
    return int(_bits53(_absorb(_absorb(words[:1], words[1:2]), words[2:])))


def _mix_(state: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64 in place to int64; products wrap, and a mask makes right shifts logical."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state.bitwise_xor_((state >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    return state.bitwise_xor_((state >> 31).bitwise_and_((1 << 33) - 1))


def _absorb(state: Tensor, word: Tensor) -> Tensor:
    """Mix one more key word into the state; both broadcast. Words are mixed one at a time: two words that were
    combined by exclusive or would be interchangeable."""
    return _mix_((state ^ word) + _GOLDEN)


def _bits53(state: Tensor) -> Tensor:
    """Return the 53 highest bits as float64."""
    return (state >> 11).bitwise_and_((1 << 53) - 1).to(torch.float64)


def uniform(seed: Tensor, committed: Tensor, node: Tensor, purpose: int) -> Tensor:
    """Return coins in [0, 1) with 53 bits, float64 (B, M), for seeds and committed counts (B,) and nodes (B, M)."""
    if usable(node):
        from spectr.kernels.noise import fused_uniform

        return fused_uniform(seed, committed, node, purpose, _COIN_STREAM)
    state = _absorb(_absorb(torch.full_like(seed, _COIN_STREAM), seed), committed)
    state = _absorb(state, torch.full_like(committed, purpose))
    return _bits53(_absorb(state[:, None], node)) * 2.0**-53


def gumbel_states(seed: Tensor, position: Tensor) -> Tensor:
    """Return one generator state (B, M) per row and position, from which the noise of tokens is computed."""
    return _absorb(_absorb(torch.full_like(seed, _NOISE_STREAM), seed)[:, None], position)


def gumbel(seed: Tensor, position: Tensor, vocabulary: int) -> Tensor:
    """Return the race's noise −log E, with E ~ Exp(1) keyed by (seed, absolute position, token), float64 (B, M, V).

    Small E decide the race, so E = −log1p(−u) with u = (k + ½)·2^−53, which is exact to many digits for small E.
    """
    token = torch.arange(vocabulary, device=seed.device)
    return _gumbel_of(gumbel_states(seed, position)[..., None], token)


def _gumbel_of(state: Tensor, token: Tensor) -> Tensor:
    """Return the noise of tokens for the states of their positions; both broadcast."""
    state = _mix_(state + token * _GOLDEN)
    negative = _bits53(state).add_(0.5).mul_(-(2.0**-53)).clamp_min_(2.0**-53 - 1)  # u = 1 could never win
    exponential = negative.log1p_().neg_()
    return exponential.log_().neg_()


_CHUNK = 512  # tokens
_KERNEL_TOKENS, _VECTOR = 4096, 16  # the least tokens that a kernel on a CPU is used for, and what must divide them


def _first_above(sums: Tensor, level: Tensor) -> Tensor:
    """Return the first index whose running sum exceeds `level`, but whatever the rounding no index of weight 0."""
    last = torch.searchsorted(sums, sums[..., -1:].contiguous())  # first to reach the total, so it carries weight
    return torch.minimum(torch.searchsorted(sums, level[..., None].contiguous(), right=True), last).squeeze(-1)


def draw(weights: Tensor, coin: Tensor) -> Tensor:
    """Inverse CDF: returns the index that `coin` (…) in [0, 1) picks from `weights` (…, V), which need not be
    normalised.

    Sums are float64: in float32 the bias at 152k tokens is 1.5e-3. A large vocabulary is read once and never written:
    first a chunk is chosen, then an index in it. A row of weights that are all 0 gives index 0.

    >>> law = torch.tensor([0.25, 0.0, 0.75])
    >>> [int(draw(law, torch.tensor(coin, dtype=torch.float64))) for coin in (0.2, 0.25, 0.99)]
    [0, 2, 2]
    """
    size = weights.shape[-1]
    if size > 2 * _CHUNK:
        chunks = torch.nn.functional.pad(weights, (0, -size % _CHUNK)).unflatten(-1, (-1, _CHUNK))
        sums = chunks.sum(-1, dtype=torch.float64).cumsum(-1)  # (…, V / 512)
        level = coin * sums[..., -1]
        chunk = _first_above(sums, level)
        before = torch.where(chunk > 0, sums.gather(-1, (chunk - 1).clamp_min(0)[..., None]).squeeze(-1), 0.0)
        inside = chunks.gather(-2, chunk[..., None, None].expand(*chunk.shape, 1, _CHUNK)).squeeze(-2)
        return chunk * _CHUNK + _first_above(inside.to(torch.float64).cumsum(-1), level - before)
    sums = weights.to(torch.float64).cumsum(-1)
    return _first_above(sums, coin * sums[..., -1])


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the `count` largest values of a softmax over scores (…, V), best first, and their
    indices."""
    best = scores.log_softmax(-1).topk(min(count, scores.shape[-1]), -1)
    return best.values, best.indices


def _is_large(logits: Tensor) -> bool:
    """Whether a compiled kernel on the CPU computes approximate noise: for float32 and large vocabularies of whole
    vectors."""
    size, is_usual = logits.shape[-1], logits.device.type == "cpu" and logits.dtype == torch.float32
    return is_usual and size >= _KERNEL_TOKENS and size % _VECTOR == 0


@dataclass(frozen=True, slots=True)
class SeededCoins:
    """The coins of one step: a pure function of each row's seed and of the number of tokens that it has committed."""

    seed: Tensor  # (B,) int64
    committed: Tensor  # (B,) int64, including the prompt
    quiet: Tensor | None = None  # (B,) bool: rows whose drafts are ranked without noise; None: no row is quiet

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Return True with probability `chance`: a coin strictly below it, so that chance 0 is never True."""
        return uniform(self.seed, self.committed, node, purpose) < chance

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Return an index drawn in proportion to `weights`, by inverse CDF with float64 sums."""
        return draw(weights, uniform(self.seed, self.committed, node, purpose))

    def race(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return the argmax of policy logits plus noise."""
        if usable(logits):
            from spectr.kernels.noise import race_winner

            return race_winner(logits, self.seed, self.committed[:, None] + depth, _NOISE_STREAM)
        return self._winner(logits, depth) if _is_large(logits) else self.noisy_logits(logits, depth).argmax(-1)

    def _winner(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Compute the same over a large vocabulary: approximate noise finds the tokens that can win, and exact noise
        the winner, the first among equals."""
        from spectr.kernels.cpu.noise import candidates

        states = gumbel_states(self.seed, self.committed[:, None] + depth).expand(logits.shape[:2]).flatten()
        flat, winners = logits.flatten(0, 1), list[int]()
        for row, tokens in enumerate(candidates(states, flat)):
            if tokens is not None and len(tokens) == 1:
                winners += tokens
                continue
            among = torch.arange(flat.shape[1]) if tokens is None else torch.tensor(tokens)
            exact = flat[row, among] + _gumbel_of(states[row], among)
            winners.append(int(among[exact.argmax()]))
        return torch.tensor(winners).view(logits.shape[:2])

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """Return the tokens of the `count` largest policy logits plus noise, best first; without noise in quiet
        rows."""
        return self.noisy_approx(logits, depth).topk(count, -1).indices

    def noisy_logits(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return logits (B, M, V) plus the noise at `depth` (B, M), or (B, 1) for one depth: what the race compares.

        The sum is float64: in float32 near-ties at the top would be broken by token id. A root's children are at
        position `committed`."""
        return logits + gumbel(self.seed, self.committed[:, None] + depth, logits.shape[-1])

    def noisy_approx(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Return approximate `noisy_logits` for drafts; quiet rows get no noise. A kernel's noise is accurate to 1e-5
        wherever it can win a race. An error can cost an accepted draft token, but it cannot change the output
        distribution."""
        if logits.device.type == "cpu" and self.quiet is not None and bool(self.quiet.all()):
            return logits.double()  # the dtype that rows have in a batch with noise, so that no row depends on another
        position = self.committed[:, None] + depth
        if usable(logits):
            from spectr.kernels.noise import rough_noise

            noise = rough_noise(self.seed, position, logits.shape[-1], _NOISE_STREAM)
        elif _is_large(logits):
            from spectr.kernels.cpu import noise as on_cpu

            noise = on_cpu.rough_noise(gumbel_states(self.seed, position), logits.shape[-1])
        else:
            noise = gumbel(self.seed, position, logits.shape[-1])
        return logits + (noise if self.quiet is None else noise.masked_fill_(self.quiet[:, None, None], 0.0))

    def likeliest(self, logits: Tensor, depth: Tensor | None, score_scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens of the `count` largest values of softmax((logits + approximate noise) ·
        score_scale), best first; `score_scale` is (B,)."""
        if usable(logits):
            from spectr.kernels.best import best_chances, can_pick

            if can_pick(logits.shape[-1], count):
                where = None if depth is None else (self.committed[:, None] + depth).expand(logits.shape[:2])
                place = None if where is None else (self.seed, where, _NOISE_STREAM)
                return best_chances(logits, place, score_scale.float(), self.quiet, count)
            notice(f"the kernel cannot pick {count} of {logits.shape[-1]} tokens, so drafts are ranked without it")
        scores = logits if depth is None else self.noisy_approx(logits, depth)
        return likeliest(scores * score_scale[:, None, None], count)
