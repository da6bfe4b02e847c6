"""Each kernel gives what the plain code gives."""

import math
from importlib import import_module

import pytest
import torch
from torch import Tensor

from spectr.coins import _COIN_STREAM, _NOISE_STREAM, SeededCoins, gumbel, uniform
from spectr.transport.coupling import Drafted
from spectr.transport.kseq import KSeq
from spectr.transport.optimal import _LOWEST, Bins, Optimal

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []  # there `-m gpu` runs the kernels as they are
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 2_503 if DEVICE == "cpu" else 152_064  # three blocks of most kernels, the last one not full
HALF = torch.float16 if DEVICE == "cpu" else torch.bfloat16  # the interpreter multiplies no bfloat16


def laws(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, VOCABULARY, generator=generator)
    draft = 0.9 * logits + 0.7 * torch.randn(rows, VOCABULARY, generator=generator)
    draft[:, ::7] = -torch.inf  # tokens that are never drafted
    return logits.softmax(-1), draft.softmax(-1)


def test_race_winner() -> None:
    from spectr.kernels.noise import race_winner

    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(3, 4, VOCABULARY, generator=generator)
    logits[:, :, ::5] = -torch.inf
    seed = torch.tensor([0, -9, 2**50])
    position = torch.tensor([0, 1, 7, 100_000]).expand(3, 4)
    plain = (logits + gumbel(seed, position, VOCABULARY)).argmax(-1)
    for dtype in (torch.float32, torch.bfloat16):
        meant = plain if dtype == torch.float32 else (logits.to(dtype) + gumbel(seed, position, VOCABULARY)).argmax(-1)
        found = race_winner(logits.to(DEVICE, dtype), seed.to(DEVICE), position.to(DEVICE), _NOISE_STREAM)
        assert torch.equal(found.cpu(), meant)


def test_rough_noise_is_close_to_the_exact_noise() -> None:
    from spectr.kernels.noise import rough_noise

    seed, position = torch.tensor([0, -9, 2**50]), torch.tensor([[0, 1, 7], [5, 2, 9], [8, 8, 100_000]])
    meant = gumbel(seed, position, VOCABULARY)
    found = rough_noise(seed.to(DEVICE), position.to(DEVICE), VOCABULARY, _NOISE_STREAM).cpu()
    assert found.dtype == torch.float32
    off = (found - meant).abs()
    assert float(off[meant > -1].max()) < 2e-5  # nine in ten; the rest wins no race
    assert float(off.max()) < 1e-2


def test_kseq_plan() -> None:
    """ρ is valid (not below the exact one) and close to it, and φ is that of ρ."""
    from spectr.kernels.kseq_search import kseq_plan

    target, draft = laws(8, 2)
    k = torch.tensor([0, 1, 2, 3, 4, 8, 16, 16])
    draft[7] = target[7]
    live = torch.arange(16) < k[:, None]
    exact = KSeq()._plan(target.double(), draft.double(), live)
    plan = kseq_plan(target.to(DEVICE), draft.to(DEVICE), k.to(DEVICE), 16).cpu()
    assert bool((plan[:, 0] >= exact[:, 0] - 1e-12).all())
    assert bool((plan[:, 0] <= exact[:, 0] * (1 + 2e-6)).all())
    visits = torch.minimum(draft, target / plan[:, :1].float()).sum(-1, dtype=torch.float64)
    meant = torch.where(k > 1, (1 - (1 - visits) ** k) / visits, k.double())
    assert plan[:, 1].tolist() == pytest.approx(meant.tolist(), abs=1e-9)


@pytest.mark.parametrize("bins", [512, pytest.param(2048, marks=pytest.mark.slow)])
def test_optimal_selection(bins: int) -> None:
    from spectr.kernels.optimal_coupling import optimal_selection

    rows, k = (6, 5) if DEVICE == "cpu" else (12, 16)
    target, draft = laws(rows, 3)
    tokens = torch.multinomial(draft, k, replacement=True, generator=torch.Generator().manual_seed(4))
    tokens[-1, 2] = tokens[-1, 0]  # a copy
    count = torch.tensor([0, 1, 2, 3, k, k] * (rows // 6))
    # Dead slots are between live ones.
    live = torch.rand(rows, k, generator=torch.Generator().manual_seed(5)).argsort(-1) < count[:, None]
    meant = Optimal(bins=bins, sort_below=0).select(target, draft, Drafted(tokens, live))
    classes = Bins(bins, k)
    assert classes.width == pytest.approx((math.log(k) - _LOWEST) / (bins - 2))
    on = [x.to(DEVICE) for x in (target, draft, tokens, live)]
    chance, mean = optimal_selection((on[0], on[1]), on[2], on[3], bins, _LOWEST, classes.width)
    off = (chance.cpu() - meant.chance).abs().max()
    assert off < 1e-7, off
    from spectr.kernels.optimal_coupling import class_law

    fused = class_law(on[0], on[1], mean, _LOWEST, classes.width).cpu()
    assert (fused - classes.law(target, draft, mean.cpu())).abs().sum(-1).max() < 1e-7
    off = (classes.law(target, draft, mean.cpu()) - meant.law.all()).abs().sum(-1).max() / 2
    assert off < 5e-7, off  # a lone draft's law is not divided by what float32 leaves of its sum


def test_coins() -> None:
    from spectr.kernels.noise import fused_uniform

    seed, committed = torch.tensor([5, -2, 2**60]), torch.tensor([0, 9, 1000])
    node = torch.arange(200).expand(3, 200)
    found = fused_uniform(seed.to(DEVICE), committed.to(DEVICE), node.to(DEVICE), 3, _COIN_STREAM)
    assert torch.equal(found.cpu(), uniform(seed, committed, node, 3))


@pytest.mark.parametrize(
    ("rows", "heads", "shared", "count", "length", "width", "deep"),
    [(1, 4, 2, 3, 70, 16, 16), (2, 6, 3, 5, 200, 24, 24), (2, 4, 4, 1, 64, 32, 16), (1, 8, 2, 40, 33, 16, 16),
     (1, 2, 1, 2, 300, 256, 256), pytest.param(3, 4, 2, 7, 1000, 16, 16, marks=pytest.mark.slow),
     pytest.param(34, 3, 3, 2, 150, 16, 16, marks=pytest.mark.slow)],
)  # fmt: skip
def test_tree_attention(rows: int, heads: int, shared: int, count: int, length: int, width: int, deep: int) -> None:
    """Texts in one piece and in several, in which some queries attend to nothing."""
    from spectr.kernels.attention import tree_attention

    generator = torch.Generator().manual_seed(5)
    query = torch.randn(rows, count, heads, width, generator=generator).transpose(1, 2)
    key, value = (torch.randn(rows, shared, length + 9, w, generator=generator)[:, :, :length] for w in (width, deep))
    seen = torch.rand(rows, 1, count, length, generator=generator) < 0.5
    seen[0, :, :, : length // 2] = False
    seen[..., -1] = True
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
    repeated = [part.repeat_interleave(heads // shared, 1) for part in (key, value)]
    meant = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.3)
    for dtype, most in ((torch.float32, 1e-5), (HALF, 4e-2)):
        given = [part.to(DEVICE, dtype) for part in (query, key, value)]
        for least in (-torch.inf, torch.finfo(dtype).min):  # either is what people add
            found = tree_attention(*given, mask.clamp_min(least).to(DEVICE, dtype), 0.3).cpu()
            assert found.dtype == dtype
            assert float((found.float() - meant.transpose(1, 2)).abs().max()) < most


@pytest.mark.parametrize(
    ("rows", "heads", "shared", "count", "length"), [(5, 4, 2, 3, 300), (1, 2, 1, 70, 200), (3, 2, 2, 1, 64)]
)
def test_tree_attention_reads_each_row_to_its_own_end(
    rows: int, heads: int, shared: int, count: int, length: int
) -> None:
    """Nothing changes if the ends of rows are given, and blocks of slots behind them are not read."""
    from spectr.kernels.attention import tree_attention

    generator = torch.Generator().manual_seed(6)
    query = torch.randn(rows, heads, count, 32, generator=generator).to(DEVICE)
    key, value = (torch.randn(rows, shared, length, 32, generator=generator).to(DEVICE) for _ in range(2))
    ends = torch.tensor([length, 0, 1, 64, 65][:rows] if rows > 1 else [100])
    seen = (torch.arange(length) < ends[:, None, None, None]).expand(rows, 1, count, length)
    mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min).to(DEVICE)
    meant = tree_attention(query, key, value, mask, 0.3)
    alive = (ends > 0).to(DEVICE)  # attention to nothing is arbitrary
    blocks = -(-ends // 64) * 64
    behind = (torch.arange(length) >= blocks[:, None]).to(DEVICE)[:, None, :, None]
    poisoned = [part.masked_fill(behind, torch.nan) for part in (key, value)]
    found = tree_attention(query, *poisoned, mask, 0.3, ends.to(DEVICE))
    assert found.isfinite().all()
    torch.testing.assert_close(found[alive], meant[alive])


@pytest.mark.parametrize("programs", [1, 16, 100, 128, 500])
def test_pieces_cover_the_text_with_few_kernels(programs: int) -> None:
    """Pieces cover the text, none of them begins after its end, and few kernels are compiled."""
    from spectr.kernels.attention import blocks_per_program

    made = set()
    for length in range(1, 8193):
        blocks, turns = -(-length // 64), blocks_per_program(programs, length, 64)
        pieces = -(-blocks // turns)
        assert pieces * turns >= blocks > (pieces - 1) * turns
        assert pieces > 1 or turns <= max(blocks + 1, 1.25 * blocks)
        made.add(turns)
    assert len(made) <= 24


@pytest.mark.parametrize(
    ("rows", "height", "width"),
    [(1, 70, 130), (16, 300, 512), (5, 64, 2000), (33, 128, 256), (70, 65, 100), (257, 9, 7)],
)
def test_int8_product(rows: int, height: int, width: int) -> None:
    from spectr.kernels.int8 import int8_product

    generator = torch.Generator().manual_seed(6)
    weight = torch.randint(-127, 128, (height, width), dtype=torch.int8, generator=generator)
    scale, given = torch.rand(height, generator=generator) / width, torch.randn(rows, width, generator=generator)
    meant = given @ (weight.float() * scale[:, None]).T
    for dtype, most in ((torch.float32, 1e-5), (HALF, 2e-2)):
        found = int8_product(given.to(DEVICE, dtype), weight.to(DEVICE), scale.to(DEVICE)).cpu()
        assert found.dtype == dtype
        assert float((found.float() - meant).abs().max()) < most * float(meant.abs().max())


def test_many_rows_do_not_overflow() -> None:
    """Products of unscaled int8 weights would overflow float16; the weights are scaled first."""
    from spectr.kernels.int8 import int8_product

    weight = torch.full((4, 600), 127, dtype=torch.int8, device=DEVICE)
    given = torch.ones(300, 600, dtype=torch.float16, device=DEVICE)
    found = int8_product(given, weight, torch.full((4,), 1e-3, device=DEVICE))
    assert found.float().cpu().flatten().tolist() == pytest.approx([76.2] * 1200, rel=5e-3)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize(("rows", "nodes", "size", "count"), [(1, 1, 5_003, 63), (2, 3, 3_000, 31), (1, 2, 9_000, 255)])
def test_best_chances(rows: int, nodes: int, size: int, count: int, noisy: bool) -> None:
    """Logits with ties and with −inf are included."""
    from spectr.kernels.best import best_chances, can_pick

    assert can_pick(size, count)
    logits = 3 * torch.randn(rows, nodes, size, generator=torch.Generator().manual_seed(7))
    logits[..., ::5] = -torch.inf
    logits[0, 0] = logits[0, 0].round()
    seed, position = torch.arange(rows) + 5, (7 * torch.arange(nodes)).expand(rows, nodes)
    noise = gumbel(seed, position, size) if noisy else torch.zeros(rows, nodes, size)
    meant = ((logits + noise) * 1.3).log_softmax(-1).float().sort(dim=-1, descending=True, stable=True)
    place = (seed.to(DEVICE), position.to(DEVICE), _NOISE_STREAM) if noisy else None
    chances, tokens = best_chances(logits.to(DEVICE), place, torch.full((rows,), 1.3, device=DEVICE), None, count)
    assert torch.allclose(chances.cpu(), meant.values[..., :count], atol=1e-4)
    found = meant.values.gather(-1, meant.indices.argsort(-1).gather(-1, tokens.cpu()))
    assert torch.allclose(found, meant.values[..., :count], atol=1e-4)
    assert all(len(set(row)) == count for row in tokens.flatten(0, 1).tolist())
    if not noisy:  # by the logits themselves: their rounded logarithms may be equal where they are not
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        assert torch.equal(tokens.cpu(), order[..., :count])


def test_best_chances_of_a_row_are_its_own() -> None:
    """Rows with different score scales, with noise and without, have the same bits in one batch as alone, and those of
    the plain code."""
    from spectr.kernels.best import best_chances

    rows, nodes, size, count = 4, 2, 3_000, 31
    logits = 3 * torch.randn(rows, nodes, size, generator=torch.Generator().manual_seed(17))
    logits[:, :, ::5] = -torch.inf
    seed, position = torch.arange(rows) + 5, torch.arange(rows * nodes).view(rows, nodes)
    score_scale, quiet = torch.tensor([1.3, 0.6, 2.0, 1.0]), torch.tensor([False, True, False, True])
    noise = gumbel(seed, position, size).masked_fill_(quiet[:, None, None], 0.0)
    meant = ((logits + noise) * score_scale[:, None, None]).log_softmax(-1)
    on = [part.to(DEVICE) for part in (logits, seed, position, score_scale, quiet)]

    def best(part: slice, place: bool, silent: bool) -> tuple[Tensor, Tensor]:
        x, key, at, scale, without = (held[part] for held in on)
        return best_chances(x, (key, at, _NOISE_STREAM) if place else None, scale, without if silent else None, count)

    chances, tokens = best(slice(rows), True, True)
    assert torch.allclose(chances.cpu().double(), meant.topk(count).values, atol=1e-4)
    assert torch.allclose(meant.gather(-1, tokens.cpu()), meant.topk(count).values, atol=1e-4)
    for row, is_quiet in enumerate(quiet.tolist()):
        for place, silent in ((True, True), (not is_quiet, False)):
            alone = best(slice(row, row + 1), place, silent)
            assert torch.equal(alone[0], chances[row : row + 1])
            assert torch.equal(alone[1], tokens[row : row + 1])


def test_quiet_rows_of_the_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without kernels, quiet rows are ranked by logits and the others by the race, in the same order."""
    rows, nodes, size, count = 3, 2, 4_000, 40
    logits = 2 * torch.randn(rows, nodes, size, generator=torch.Generator().manual_seed(18)).to(DEVICE)
    seed, depth = torch.arange(rows, device=DEVICE) + 9, torch.tensor([[0, 3]], device=DEVICE)
    quiet = torch.tensor([True, False, True], device=DEVICE)
    coins = SeededCoins(seed, 10 * seed, quiet)
    score_scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=DEVICE)
    found = []
    for kernel in (False, True):
        monkeypatch.setattr("spectr.coins.usable", lambda _, kernel=kernel: kernel)
        found.append((*coins.likeliest(logits, depth, score_scale, count), coins.top_racers(logits, depth, count)))
        few = coins.likeliest(logits[..., :64], depth, score_scale, 30)  # not for the kernel
        assert torch.equal(few[1], coins.top_racers(logits[..., :64], depth, 30))
        assert torch.equal(found[-1][1], found[-1][2])
        assert torch.equal(found[-1][1][quiet], logits[quiet].topk(count).indices)
    plain, quick = found
    assert torch.equal(plain[1], quick[1])
    assert torch.allclose(plain[0], quick[0].double(), atol=1e-4)


def test_nan_and_infinite_logits_are_never_likely() -> None:
    """If some or all logits of a node are NaN or infinite, its tokens are valid and other nodes do not change."""
    from spectr.kernels.best import best_chances

    logits = torch.randn(1, 6, 4096, generator=torch.Generator().manual_seed(7))
    logits[0, 1], logits[0, 2], logits[0, 3] = torch.nan, torch.inf, -torch.inf
    logits[0, 4, ::2] = torch.nan
    chances, tokens = (
        found.cpu() for found in best_chances(logits.to(DEVICE), None, torch.ones(1, device=DEVICE), None, 8)
    )
    assert not chances.isnan().any()
    assert all(len(set(row)) == 8 and min(row) >= 0 and max(row) < 4096 for row in tokens[0].tolist())
    for row in (0, 5):
        assert torch.allclose(chances[0, row], logits[0, row].log_softmax(-1).topk(8).values, atol=1e-4)
    assert bool((tokens[0, 4] % 2 == 1).all())


def test_sizes_that_best_chances_refuses() -> None:
    from spectr.kernels.best import can_pick

    assert not can_pick(3_000, 300)
    assert not can_pick(100, 4)


def test_seen_slots() -> None:
    from spectr.kernels.mask import seen_slots
    from spectr.models.fresh_tokens import FreshTokens, visible_slots

    generator = torch.Generator().manual_seed(8)
    for rows, count, scratch, used, size in ((1, 3, 5, 20, 30), (3, 4, 4, 1500, 1600), (2, 7, 9, 12, 40)):
        filled = torch.randint(0, used - 2, (rows,), generator=generator)
        places = filled[:, None] + torch.arange(scratch)
        slots = torch.where(torch.rand(rows, scratch, generator=generator) < 0.2, size, places)
        within = torch.rand(rows, count, scratch, generator=generator) < 0.5
        meant = visible_slots(
            filled, FreshTokens(torch.zeros(rows, count), torch.zeros(rows, count), slots, within, used)
        )
        given = [part.to(DEVICE) for part in (filled, slots, within)]
        assert torch.equal(seen_slots(*given, used).cpu(), meant)


def test_tree_attention_takes_expanded_and_strided_inputs() -> None:
    """Masks that are broadcast over rows or queries, inputs that are not contiguous, and empty inputs work."""
    from spectr.kernels.attention import tree_attention

    generator = torch.Generator().manual_seed(10)
    query, key, value = (torch.randn(3, 2, n, 32, generator=generator).to(DEVICE) for n in (4, 90, 90))
    full = torch.randn(3, 1, 4, 90, generator=generator).to(DEVICE)
    for mask in (full[:1], full[:, :, :1], full[:1, :, :1]):
        meant = tree_attention(query, key, value, mask.expand_as(full).contiguous(), 0.2)
        assert torch.equal(tree_attention(query, key, value, mask, 0.2), meant)
    apart = [part[..., ::2] for part in (query, key, value)]
    meant = tree_attention(*(part.contiguous() for part in apart), full, 0.2)
    assert torch.equal(tree_attention(*apart, full, 0.2), meant)
    assert tree_attention(query[:, :, :0], key, value, full[:, :, :0], 0.2).shape == (3, 0, 2, 32)
    assert not tree_attention(query, key[:, :, :0], value[:, :, :0], full[..., :0], 0.2).any()


def test_attention_to_no_slot_is_finite() -> None:
    """Padding may attend to no slot; its result is never read and must not be NaN."""
    from spectr.kernels.attention import tree_attention

    query, key = torch.randn(1, 2, 3, 16, device=DEVICE), torch.randn(1, 1, 300, 16, device=DEVICE)
    mask = torch.full((1, 1, 3, 300), -torch.inf, device=DEVICE)
    assert tree_attention(query, key, key, mask, 1.0).tolist() == torch.zeros(1, 3, 2, 16).tolist()


@pytest.mark.parametrize(
    ("rows", "size", "budget"),
    [(1, 50, (9, 3, 4)), (3, 200, (33, 8, 5)), (2, 3, (20, 5, 4)), (2, 40, (12, 1, 3)), (2, 64, (5, 16, 3))],
)
def test_expanded(rows: int, size: int, budget: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is the same with and without the kernel."""
    from spectr.trees import Budget, Frontier

    trees = import_module("spectr.trees.prune")
    table = torch.randn(512, size, generator=torch.Generator().manual_seed(9)).mul(2).log_softmax(-1).to(DEVICE)

    def best_of(frontier: Frontier, count: int) -> tuple[Tensor, Tensor]:
        state = (31 * frontier.paths.sum(-1) + 7 * frontier.tokens + frontier.depth) % 512
        best = table[state].topk(min(count, size), -1)
        return best.values, best.indices

    root, found = torch.arange(rows, device=DEVICE), []
    for kernel in (False, True):
        monkeypatch.setattr(trees, "usable", lambda _, kernel=kernel: kernel)
        drawn = trees.prune(root, best_of, Budget(*budget))
        found.append([drawn.draft.tokens, drawn.draft.parents, drawn.draft.alive, drawn.scored])
    for plain, quick in zip(*found, strict=True):
        assert torch.equal(plain, quick)


def test_nan_chances_are_never_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the kernel, children with NaN chances are not drafted."""
    from spectr.trees import Budget, Frontier

    trees = import_module("spectr.trees.prune")

    def best_of(frontier: Frontier, count: int) -> tuple[Tensor, Tensor]:
        shape = (*frontier.tokens.shape, count)
        chances = torch.full(shape, torch.nan, device=DEVICE)
        chances[..., :2] = torch.tensor([-1.0, -1.5])
        return chances, torch.arange(count, device=DEVICE).expand(shape)

    for kernel in (False, True):
        monkeypatch.setattr(trees, "usable", lambda _, kernel=kernel: kernel)
        draft = trees.prune(torch.arange(2, device=DEVICE), best_of, Budget(6, 2, 2)).draft
        assert draft.tokens[0].tolist() == [0, 0, 1, 0, 1, 0]
        assert draft.parents[0].tolist() == [0, 0, 0, 1, 1, 2]
        assert bool(draft.alive.all())


def test_sizes_that_expanded_refuses() -> None:
    from spectr.kernels.beam import can_expand

    assert can_expand(24, 255, 24)
    assert not can_expand(64, 64, 64)
