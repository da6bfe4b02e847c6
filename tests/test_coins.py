"""Coins and noise are uniform, independent of their neighbours, and functions of their keys; draws use the inverse
CDF."""

import numpy as np
import pytest
import torch

from spectr.coins import Purpose, SeededCoins, draw, gumbel, uniform

stats = pytest.importorskip("scipy.stats")


def keys(count: int, vary: str) -> dict[str, torch.Tensor]:
    """Keys (count, 1) in which one word counts up and the others stay the same."""
    line = torch.arange(count)
    return {word: line if word == vary else torch.full((count,), 5) for word in ("seed", "committed", "node")}


@pytest.mark.parametrize("vary", ["seed", "committed", "node"])
def test_coins_are_uniform_along_every_key(vary: str) -> None:
    """A Kolmogorov–Smirnov test on consecutive keys, and their serial correlation; the false-alarm rate is 1e-7."""
    words = keys(100_000, vary)
    coins = uniform(words["seed"], words["committed"], words["node"][:, None], Purpose.CHILD)[:, 0].numpy()
    assert coins.min() >= 0
    assert coins.max() < 1
    assert stats.kstest(coins, "uniform").pvalue > 1e-7
    serial = float(np.corrcoef(coins[:-1], coins[1:])[0, 1])
    assert abs(serial) < 5.5 / np.sqrt(len(coins))


def test_no_two_keys_share_a_coin() -> None:
    seed, committed, node, purpose = torch.cartesian_prod(
        torch.arange(-3, 4), torch.arange(20), torch.arange(20), torch.arange(1, 7)
    ).unbind(-1)
    coins = torch.cat(
        [uniform(seed[purpose == p], committed[purpose == p], node[purpose == p, None], p)[:, 0] for p in range(1, 7)]
    )
    assert len(coins.unique()) == len(coins)


def test_coins_and_noise_are_separate_streams() -> None:
    seeds = torch.arange(20_000)
    coins = uniform(seeds, torch.zeros_like(seeds), torch.zeros(20_000, 1, dtype=torch.int64), 1)[:, 0].numpy()
    noise = gumbel(seeds, torch.zeros(20_000, 1, dtype=torch.int64), 1)[:, 0, 0].numpy()
    assert abs(float(np.corrcoef(coins, noise)[0, 1])) < 5.5 / np.sqrt(20_000)


@pytest.mark.parametrize("vary", ["seed", "position", "token"])
def test_noise_is_exponential_along_every_key(vary: str) -> None:
    line = torch.arange(100_000)
    if vary == "token":
        noise = gumbel(torch.tensor([9]), torch.tensor([[4]]), 100_000).flatten()
    else:
        seed = line if vary == "seed" else torch.full_like(line, 9)
        position = line if vary == "position" else torch.full_like(line, 4)
        noise = gumbel(seed, position[:, None], 1).flatten()
    assert stats.kstest((-noise).exp().numpy(), "expon").pvalue > 1e-7
    assert abs(float(np.corrcoef(noise[:-1], noise[1:])[0, 1])) < 5.5 / np.sqrt(100_000)


def test_the_smallest_noise_is_fine_enough() -> None:
    """Among 152,064 tokens the winner's E is about 1e-5; V times the smallest E is Exp(1), without a visible grid."""
    size = 152_064
    smallest = torch.stack([(-gumbel(torch.tensor([s]), torch.tensor([[0]]), size)).amin().exp() for s in range(400)])
    assert stats.kstest((smallest * size).numpy(), "expon").pvalue > 1e-7
    assert len(smallest.unique()) == 400


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    short, long = (gumbel(torch.tensor([1]), torch.tensor([[2, 3]]), size) for size in (10, 1000))
    assert torch.equal(short, long[..., :10])


@pytest.mark.parametrize("size", [1, 7, 1024, 1025, 5_000, 152_064])
def test_draw_finds_every_boundary(size: int) -> None:
    """Coins on the two sides of a boundary of the exact CDF (long double) draw different indices, to 1e-12."""
    rng = np.random.default_rng(size)
    weights = rng.exponential(size=size).astype(np.float32) ** 4
    weights[rng.random(size) < 0.3] = 0
    weights[0] = max(weights[0], 0.5)
    exact = np.cumsum(weights.astype(np.longdouble))
    ends = (exact / exact[-1]).astype(np.float64)
    probe = rng.choice(np.flatnonzero(weights), min(40, int((weights > 0).sum())), replace=False)
    for token in probe:
        low = ends[token - 1] if token else 0.0
        if ends[token] - low > 4e-12:
            coins = torch.tensor([low + 1e-12, ends[token] - 1e-12], dtype=torch.float64)
            assert draw(torch.tensor(weights).expand(2, size), coins).tolist() == [token, token]


def test_draw_never_picks_what_has_no_weight() -> None:
    for size in (3, 2_000):
        weights = torch.zeros(size)
        weights[1] = 1e-30
        for coin in (0.0, 0.5, 1 - 2**-53):
            assert int(draw(weights, torch.tensor(coin, dtype=torch.float64))) == 1


def test_draw_follows_the_weights() -> None:
    weights = torch.tensor([0.1, 0.0, 0.4, 0.5])
    seeds = torch.arange(50_000)
    coins = SeededCoins(seeds, torch.zeros_like(seeds))
    found = coins.pick(weights.expand(50_000, 1, 4), torch.zeros(50_000, 1, dtype=torch.int64), Purpose.BONUS)
    counts = torch.bincount(found.flatten(), minlength=4).double()
    expected = weights.double() * 50_000
    live = expected > 0
    assert int(counts[1]) == 0
    assert float(((counts - expected)[live] ** 2 / expected[live]).sum()) < stats.chi2.isf(1e-7, 2)


def test_flips_are_strict() -> None:
    seeds = torch.arange(10_000)
    coins, node = SeededCoins(seeds, torch.zeros_like(seeds)), torch.zeros(10_000, 1, dtype=torch.int64)
    assert not bool(coins.flip(torch.zeros(10_000, 1), node, 1).any())
    assert bool(coins.flip(torch.ones(10_000, 1), node, 1).all())


def test_every_bit_of_a_seed_counts() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    seeds = [0, *(1 << bit for bit in range(63)), -(1 << 63)]
    coins = {float(uniform(torch.tensor([s]), zero, zero[None], 1)) for s in seeds}
    noise = {float(gumbel(torch.tensor([s]), zero[None], 1)) for s in seeds}
    assert len(coins) == len(noise) == len(seeds)


def test_a_coin_of_zero_does_not_pass_a_chance_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectr.coins.uniform", lambda *_: torch.zeros(1, 1, dtype=torch.float64))
    zero = torch.zeros(1, dtype=torch.int64)
    coins = SeededCoins(zero, zero)
    assert not bool(coins.flip(torch.zeros(1, 1), zero[None], 1))
    assert int(coins.pick(torch.tensor([[[0.0, 1.0]]]), zero[None], 1)) == 1


def scene(rows: int) -> tuple[SeededCoins, torch.Tensor, torch.Tensor]:
    """Return coins, logits (rows, 2, 50) and depths (rows, 2)."""
    seed, generator = torch.arange(rows), torch.Generator().manual_seed(3)
    return SeededCoins(seed, seed + 7), torch.randn(rows, 2, 50, generator=generator), torch.tensor([[0, 4]] * rows)


def test_quiet_rows_draft_without_noise_and_decide_with_it() -> None:
    loud, logits, depth = scene(3)
    quiet = torch.tensor([True, False, True])
    coins = SeededCoins(loud.seed, loud.committed, quiet)
    for decides in ("race", "noisy_logits"):
        assert torch.equal(getattr(coins, decides)(logits, depth), getattr(loud, decides)(logits, depth))
    assert torch.equal(coins.flip(logits.sigmoid()[..., 0], depth, 1), loud.flip(logits.sigmoid()[..., 0], depth, 1))
    assert torch.equal(coins.pick(logits.exp(), depth, 1), loud.pick(logits.exp(), depth, 1))
    meant = torch.where(quiet[:, None, None], logits.double(), loud.noisy_logits(logits, depth))
    assert torch.equal(coins.noisy_approx(logits, depth), meant)
    assert torch.equal(coins.top_racers(logits, depth, 5), meant.topk(5).indices)
    sharp = torch.tensor([0.5, 1.0, 2.0])
    best = (meant * sharp[:, None, None]).log_softmax(-1).topk(5)
    chances, tokens = coins.likeliest(logits, depth, sharp, 5)
    assert torch.equal(chances, best.values)
    assert torch.equal(tokens, best.indices)


def test_quiet_rows_alone_need_no_noise_and_are_what_they_are_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loud, logits, depth = scene(3)
    sharp = torch.tensor([0.5, 1.0, 2.0])
    mixed = SeededCoins(loud.seed, loud.committed, torch.tensor([True, False, True])).likeliest(logits, depth, sharp, 5)
    monkeypatch.setattr("spectr.coins.gumbel", lambda *_: pytest.fail("noise that nobody reads"))
    for row in (0, 2):
        one = slice(row, row + 1)
        alone = SeededCoins(loud.seed[one], loud.committed[one], torch.tensor([True]))
        for beside, own in zip(mixed, alone.likeliest(logits[one], depth[one], sharp[one], 5), strict=True):
            assert torch.equal(beside[one], own)


def test_a_coin_at_the_end_of_a_chunk_stays_on_weight() -> None:
    """A chunk has 512 tokens; its weight ends early, and the coin is at its very end."""
    weights = torch.zeros(2048)
    weights[:100], weights[512:600] = 0.1, 0.3
    end = float(weights[:512].sum(dtype=torch.float64) / weights.sum(dtype=torch.float64))
    for coin in (end - 2**-53, end, end + 2**-53, 1 - 2**-53):
        assert float(weights[draw(weights, torch.tensor(coin, dtype=torch.float64))]) > 0


def test_rough_noise_is_near_the_exact() -> None:
    """The compiled noise of a large vocabulary is over its whole range a hundred times as accurate as assumed."""
    from spectr.coins import gumbel_states
    from spectr.kernels.cpu.noise import ROUGH, rough_noise

    for number in range(20):
        seed, position = torch.tensor([7919 * number, -number]), torch.tensor([[number, 3], [4, 5]])
        exact = gumbel(seed, position, 50_001)
        rough = rough_noise(gumbel_states(seed, position), 50_001)
        assert (exact - rough).abs().max() < ROUGH / 50


def test_a_large_race_is_won_by_the_same_token() -> None:
    """Exact noise for the tokens that can win gives the overall winner, with ties, excluded tokens and peaks."""
    generator = torch.Generator().manual_seed(0)
    depth = torch.tensor([[0, 1, 2], [0, 1, 1]])
    for number in range(60):
        coins = SeededCoins(torch.tensor([number, number + 99]), torch.tensor([5, 9]))
        logits = torch.randn(2, 3, 8192, generator=generator) * (number % 6) * 10
        logits = logits.round() if number % 3 == 0 else logits
        logits[:, :, number : number + 4000] = float("-inf")
        assert torch.equal(coins.race(logits, depth), coins.noisy_logits(logits, depth).argmax(-1))
    nothing = torch.full((2, 3, 8192), float("-inf"))
    assert torch.equal(coins.race(nothing, depth), torch.zeros(2, 3, dtype=torch.int64))


def test_near_ties_of_a_large_race_are_decided_by_exact_noise() -> None:
    """Logits that compensate the noise of eight tokens leave sums that differ by the last digit of float32. Approximate
    noise alone would choose another winner in many of these races."""
    from spectr.coins import gumbel_states
    from spectr.kernels.cpu.noise import rough_noise

    depth, tied, wrong = torch.tensor([[0]]), torch.arange(40, 8192, 1019), 0
    for number in range(100):
        coins = SeededCoins(torch.tensor([number]), torch.tensor([3]))
        logits = torch.full((1, 1, 8192), -50.0)
        logits[..., tied] = (12.0 - gumbel(coins.seed, torch.tensor([[3]]), 8192)[..., tied]).float()
        meant = coins.noisy_logits(logits, depth).argmax(-1)
        assert torch.equal(coins.race(logits, depth), meant)
        rough = logits + rough_noise(gumbel_states(coins.seed, torch.tensor([[3]])), 8192)
        wrong += int(not torch.equal(rough.argmax(-1), meant))
    assert wrong > 10
