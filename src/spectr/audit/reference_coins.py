"""Coins and race noise by their definition: a second implementation, with which the engine's decisions are checked.

Python integers and NumPy; it shares no code with `spectr.coins`. A key is mixed into a state of 64 bits word by word,
each time by the finaliser of SplitMix64 (Steele et al. 2014): the coins of coupling rules are keyed by (seed, tokens
committed when the step starts, purpose, node), the noise of the race by (seed, absolute position, token).
"""

import numpy as np
import numpy.typing as npt

__all__ = ["coin", "mixed", "noise", "scrambled"]

Words = npt.NDArray[np.uint64]

_ALL = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_COINS, _NOISE = 0x5350454354520001, 0x2545F4914F6CDD1D
_MOST = 1 - 2.0**-53


def _finalised(state: int) -> int:
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state = (state ^ state >> shift) * factor & _ALL
    return state ^ state >> 31


def mixed(stream: int, *words: int) -> int:
    """Mix the words of a key, integers of any size or sign, into 64 bits."""
    state = stream
    for word in words:
        state = _finalised((state ^ word & _ALL) + _GOLDEN & _ALL)
    return state


def scrambled(words: Words) -> Words:
    """Apply the finaliser to many states at once; products wrap around."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def coin(seed: int, committed: int, node: int, purpose: int) -> float:
    """Return the coin in [0, 1), of 53 bits, that decides `purpose` at a node."""
    return (mixed(_COINS, seed, committed, purpose, node) >> 11) * 2.0**-53


def noise(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return −log E of each token, with E = −log(1 − u) ~ Exp(1) and u = (k + ½)·2^−53 for 53 random bits k."""
    start = np.uint64(mixed(_NOISE, seed, position))
    bits = scrambled(tokens.astype(np.uint64) * np.uint64(_GOLDEN) + start) >> np.uint64(11)
    u = np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, _MOST)
    found: npt.NDArray[np.float64] = -np.log(-np.log1p(-u))
    return found
