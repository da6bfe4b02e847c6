"""Checks coins and noise over long texts: no key repeats, distant values are independent, and draws are exact.

Text is generated at positions that no short sample reaches, so both random streams are examined by their keys: at more
than 2^20 consecutive positions, and around every larger power of two. Values are compared in pairs of 53 bits, so that
two keys that share both are certainly a fault (probability 10^-17 by chance). Independence is tested like any
distribution, with the report's false-alarm rate.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.statistics import GTest, compare_counts
from spectr.coins import Purpose, SeededCoins, draw, uniform

__all__ = [
    "BORDERS", "Stream", "coin_streams", "draw_case", "key_case", "noise_cases", "noise_streams", "race_noise",
    "stream_case",
]  # fmt: skip

BORDERS = (1 << 14, 1 << 16, 1 << 20)
"""Distances at which values must be independent, in addition to distance 1."""

_WINDOW = 1 << 15  # pairs tested for each distance
_SIZES = (7, 1024, 1025, 1100, 5000, 50_000)  # vocabularies to draw from; draws from large ones have two stages

Floats = npt.NDArray[np.float64]
Values = Callable[[Tensor], Tensor]
"""Maps keys (n,) int64 to two independent uniform values for each, float64 (n, 2)."""

Coins = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Maps seed (n,), committed (n,), node (n, m) and purpose to coins (n, m), as `coins.uniform` does."""

Noise = Callable[[Tensor, Tensor], Tensor]
"""Maps seeds (n,) and positions (n,) to the race noise of two tokens (n, 2)."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A random stream along one of the words of its key, with the others constant."""

    name: str
    values: Values
    keys: int = (1 << 20) + _WINDOW  # consecutive keys from 0
    borders: tuple[int, ...] = (1, *BORDERS)
    furthest: int = 40  # the largest power of two whose neighbourhood is examined


def _fixed(keys: Tensor, value: int) -> Tensor:
    return torch.full_like(keys, value)


def _as_uniform(noise: Tensor) -> Tensor:
    """Map noise −log E with E ~ Exp(1) to the uniform value exp(−E)."""
    return noise.neg().exp().neg().exp()


def coin_streams(coins: Coins = uniform) -> Iterator[Stream]:
    """Return the coins of the coupling rules, by each word of their key."""

    def values(seed: Tensor, committed: Tensor, node: Tensor) -> Tensor:
        purposes = (Purpose.CHILD, Purpose.BONUS)
        return torch.cat([coins(seed, committed, node[:, None], purpose) for purpose in purposes], 1)

    yield Stream("coins by committed tokens", lambda keys: values(_fixed(keys, 7), keys, _fixed(keys, 2)))
    yield Stream("coins by seed", lambda keys: values(keys, _fixed(keys, 100), _fixed(keys, 2)))
    yield Stream("coins by node", lambda keys: values(_fixed(keys, 7), _fixed(keys, 100), keys), 1 << 17, (1, 1 << 14))


def race_noise(seed: Tensor, position: Tensor) -> Tensor:
    """Return the noise of two tokens as a race uses it, two positions after the committed text."""
    coins, depth = SeededCoins(seed, position - 2), _fixed(position, 2)[:, None]
    return coins.noisy_logits(torch.zeros(len(seed), 1, 2, dtype=torch.float64), depth)[:, 0]


def noise_streams(noise: Noise = race_noise) -> Iterator[Stream]:
    """Return the noise of the race, by absolute position and by seed."""
    yield Stream("race noise by position", lambda keys: _as_uniform(noise(_fixed(keys, 7), keys)))
    yield Stream("race noise by seed", lambda keys: _as_uniform(noise(keys, _fixed(keys, 100))))


def _token_stream() -> Stream:
    """Return the noise of all tokens of a vocabulary, at two neighbouring positions."""

    def values(keys: Tensor) -> Tensor:
        coins, depth = SeededCoins(torch.tensor([7]), torch.tensor([100])), torch.tensor([[0, 1]])
        return _as_uniform(coins.noisy_logits(torch.zeros(1, 2, len(keys), dtype=torch.float64), depth)[0].T)

    return Stream("race noise by token", values, 1 << 18, (1, 1 << 10, 1 << 14), furthest=0)


def _repeats(values: Floats) -> int:
    """Return how many rows of (n, 2) occur a second time."""
    ordered = values[np.lexsort((values[:, 1], values[:, 0]))]
    return int((ordered[1:] == ordered[:-1]).all(1).sum())


def _pairs(first: Floats, second: Floats) -> GTest:
    """Test the independence of two rows of uniform values, on 4 × 4 boxes."""
    boxes = [np.minimum((side * 4).astype(np.int64), 3) for side in (first, second)]
    counts = np.bincount(boxes[0] * 4 + boxes[1], minlength=16)
    return compare_counts(counts.tolist(), [1 / 16] * 16)


def _tail(values: Floats) -> GTest:
    """Test how often values are within 2^-1, 2^-2, … 2^-15 of 1, the tail that decides a race."""
    places = np.clip(np.floor(-np.log2(1 - np.minimum(values, 1 - 2.0**-53))), 0, 15).astype(np.int64)
    chances = [*(2.0 ** -(place + 1) for place in range(15)), 2.0**-15]
    return compare_counts(np.bincount(places, minlength=16).tolist(), chances)


def _power(number: int) -> str:
    return "1" if number == 1 else f"2^{number.bit_length() - 1}"


def _run(stream: Stream, claim: Claim, level: Level) -> Sequence[Finding]:
    near = stream.values(torch.arange(stream.keys)).numpy()
    powers = range(stream.keys.bit_length(), stream.furthest + 1)
    far = [stream.values(torch.arange((1 << power) - 2048, (1 << power) + 2048)).numpy() for power in powers]
    every = np.concatenate([near, *far])
    repeats = _repeats(every)
    tests = {f"apart by {_power(at)}": _pairs(near[:_WINDOW, 0], near[at : at + _WINDOW, 0]) for at in stream.borders}
    tests["tail"] = _tail(every[:, 0])
    holds = repeats == 0 and all(test.p_bound > level.each for test in tests.values())
    reach = f" up to 2^{stream.furthest}" if powers else ""
    repeated = "none repeats" if repeats == 0 else f"{repeats:,} repeat"
    distances = ", ".join(_power(at) for at in stream.borders)
    p_values = ", ".join(f"{test.p_about:.2g}" for test in tests.values())
    measured = f"{len(every):,} keys{reach}: {repeated}; p ≈ {p_values} of pairs {distances} apart, and of the tail"
    details: dict[str, Any] = {
        "keys": len(every), "repeats": repeats, "false_alarm_rate_of_each_test": level.each,
        "tests": {
            name: {"statistic": test.statistic, "p_at_most": test.p_bound, "p_about": test.p_about}
            for name, test in tests.items()
        },
    }  # fmt: skip
    return [Finding("noise", stream.name, holds, measured, details, claim)]


def stream_case(stream: Stream, claim: Claim = "lossless") -> Case:
    """Return the case that a stream does not repeat, is independent at its borders' distances, and has the right
    tail."""
    return Case("noise", stream.name, partial(_run, stream, claim), tests=len(stream.borders) + 1)


def _combinations(coins: Coins, noise: Noise) -> Tensor:
    """Return the values of all small keys of both streams; those of the noise also mirrored."""
    seed, place, node = torch.cartesian_prod(torch.arange(-2, 6), torch.arange(25), torch.arange(25)).unbind(-1)
    drawn = [coins(seed, place, node[:, None], purpose).flatten() for purpose in Purpose]
    raced = _as_uniform(noise(*torch.cartesian_prod(torch.arange(-2, 6), torch.arange(25)).unbind(-1))).flatten()
    return torch.cat([*drawn, raced, 1 - raced])


def key_case(coins: Coins = uniform, noise: Noise = race_noise, claim: Claim = "lossless") -> Case:
    """Return the case that every word of a key matters, none replaces another, and the two streams share no value.

    The false-alarm rate is 3·10^-8: 20,800 values of 53 bits."""

    def run(_: Level) -> Sequence[Finding]:
        values = _combinations(coins, noise)
        shared = len(values) - len(values.unique())
        measured = f"{len(values):,} keys of both streams in combination: {shared or 'no'} values are shared"
        return [Finding("noise", "keys in combination", shared == 0, measured, {"shared": shared}, claim)]

    return Case("noise", "keys in combination", run)


def _drawn(weights: Floats, coins: Floats) -> npt.NDArray[np.int64]:
    """Draw by inverse CDF with extended precision: the first token whose running sum exceeds coin · total.

    Returns -1 where a sum is so close that rounding may decide."""
    sums = weights.astype(np.longdouble).cumsum()
    level = coins.astype(np.longdouble) * sums[-1]
    low, high = (np.searchsorted(sums, level + shift * sums[-1], side="right") for shift in (-1e-11, 1e-11))
    return np.where(low == high, low, -1).astype(np.int64)


def draw_case(made: Callable[[Tensor, Tensor], Tensor] = draw, claim: Claim = "lossless") -> Case:
    """Return the case that compares draws with the definition, at random coins and next to borders between tokens."""

    def run(_: Level) -> Sequence[Finding]:
        wrong, looked = 0, 0
        for size in _SIZES:
            rng = np.random.default_rng(size)
            weights = (rng.exponential(size=size) ** 3).astype(np.float32) * (rng.random(size) < 0.7)
            weights[rng.integers(size)] = 5.0
            borders = rng.choice(weights.astype(np.float64).cumsum() / weights.astype(np.float64).sum(), 200)
            coins = np.concatenate([rng.random(400), borders - 1e-9, borders + 1e-9]).clip(0, 1 - 2.0**-53)
            expected = _drawn(weights.astype(np.float64), coins)
            found = made(torch.from_numpy(weights).expand(len(coins), size), torch.from_numpy(coins)).numpy()
            wrong, looked = (
                wrong + int(((found != expected) & (expected >= 0)).sum()),
                looked + int((expected >= 0).sum()),
            )
        measured = f"{looked:,} draws from up to {_SIZES[-1]:,} tokens: {wrong or 'none'} differ from the definition"
        return [Finding("noise", "draws", wrong == 0, measured, {"draws": looked, "wrong": wrong}, claim)]

    return Case("noise", "draws", run)


def _near_ties(_: Level) -> Sequence[Finding]:
    """Cancel the noise by logits except for 1e-9: the race must find the token that is ahead."""
    seeds, tokens = torch.arange(64), 50
    coins, depth = SeededCoins(seeds, torch.full_like(seeds, 9)), torch.ones(64, 1, dtype=torch.int64)
    noise = coins.noisy_logits(torch.zeros(64, 1, tokens, dtype=torch.float64), depth)
    ahead = (seeds * 7 + 3) % tokens
    logits = -noise + 1e-9 * (torch.arange(tokens) == ahead[:, None, None])
    wrong = int((coins.race(logits, depth).squeeze(1) != ahead).sum())
    measured = f"64 races with 50 tokens within 1e-9 of each other: {wrong or 'none'} won by another token"
    return [Finding("noise", "races at near-ties", wrong == 0, measured, {"wrong": wrong})]


def noise_cases() -> list[Case]:
    """Return the cases of the package's own coins, noise and draws."""
    streams = [stream_case(stream) for stream in (*coin_streams(), *noise_streams(), _token_stream())]
    return [*streams, key_case(), draw_case(), Case("noise", "races at near-ties", _near_ties)]
