"""The borders of top-k and top-p that kernels find equal those of sorted logits."""

import math

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")
IS_OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
NO_LOOPS = pytest.mark.skipif(IS_OLD, reason="Triton's interpreter before 3.7 has no loops with a length of the data")
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else [NO_LOOPS]  # `-m gpu` runs the kernels as they are
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, FEWER = 5_003, 2_503  # chunks of which the last is not full, of ranks and of masses
OFF = -torch.inf


def ranked(logits: Tensor, count: Tensor) -> Tensor:
    """Return the count-th largest (B, M) of logits (B, M, V)."""
    size = logits.shape[-1]
    ordered = logits.sort(dim=-1, descending=True).values
    place = (count - 1).clamp(0, size - 1)[:, None, None].expand(*logits.shape[:2], 1)
    return ordered.gather(-1, place).squeeze(-1).masked_fill(((count < 1) | (count >= size))[:, None], OFF)


def nucleus(logits: Tensor, mass: Tensor) -> Tensor:
    """Return the smallest logit (B, M) of the smallest set of likeliest tokens with at least the mass."""
    ordered = logits.sort(dim=-1, descending=True).values
    law = ordered.double().softmax(-1)
    within = (law.cumsum(-1) - law < mass[:, None, None]) & (ordered > -torch.inf)
    last = (within.sum(-1, keepdim=True) - 1).clamp_min(0)
    return ordered.gather(-1, last).squeeze(-1).masked_fill((mass >= 1)[:, None], OFF)


def some(kind: str, rows: int, nodes: int, size: int) -> Tensor:
    """Return logits (rows, nodes, size) of a kind."""
    noise = torch.randn(rows, nodes, size, generator=torch.Generator().manual_seed(len(kind)))
    if kind == "excluded":
        gone = torch.rand(noise.shape, generator=torch.Generator().manual_seed(1)) < torch.tensor([[[0.5], [0.999]]])
        return (3 * noise).masked_fill(gone, -torch.inf)
    return {
        "random": 3 * noise,
        "tied": (2 * noise).round(),
        "signed zeros": torch.where(noise > 1, noise, noise.sign() * 0.0),
        "peaked": 12 * noise,
        "flat": 0 * noise + 2.5,
        "negative": noise - 40,
        "neighbours": 17 + (40 * noise).round() * 2.0**-19,  # floats side by side
        "tiny": noise * 1e-38,
        "huge": noise * 1e37,
    }[kind]


KINDS = [
    "random", "tied", "signed zeros", "flat", "excluded", "neighbours", "tiny",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("peaked", "negative", "huge")),
]  # fmt: skip
NODES = {"random": 2, "excluded": 2}  # Triton's interpreter takes a tenth of a second for each


@pytest.mark.parametrize("kind", KINDS)
def test_rank_border_equals_the_sorted_one(kind: str) -> None:
    from spectr.kernels.threshold import rank_border

    count = torch.tensor([1, 0, 40, VOCABULARY - 1, VOCABULARY, 4_100, 2])
    logits = some(kind, len(count), NODES.get(kind, 1), VOCABULARY)
    assert torch.equal(rank_border(logits.to(DEVICE), count.to(DEVICE)).cpu(), ranked(logits, count))


@pytest.mark.parametrize("kind", KINDS)
def test_nucleus_border_equals_the_sorted_one(kind: str) -> None:
    from spectr.kernels.threshold import nucleus_border

    mass = torch.tensor([0.9, 1.0, 0.0, 0.37, 0.9999, 2.0], dtype=torch.float64)
    logits = some(kind, len(mass), NODES.get(kind, 1), FEWER)
    assert torch.equal(nucleus_border(logits.to(DEVICE), mass.to(DEVICE)).cpu(), nucleus(logits, mass))


@pytest.mark.parametrize("size", [1, 2, 3, 100, 4_096])
def test_borders_in_vocabularies_of_other_sizes(size: int) -> None:
    from spectr.kernels.threshold import nucleus_border, rank_border

    logits = some("random", 5, 1, size)
    count, mass = torch.tensor([0, 1, 2, 3, 99]), torch.tensor([-1.0, 1e-9, 0.8, 0.99, 1.0], dtype=torch.float64)
    assert torch.equal(rank_border(logits.to(DEVICE), count.to(DEVICE)).cpu(), ranked(logits, count))
    assert torch.equal(nucleus_border(logits.to(DEVICE), mass.to(DEVICE)).cpu(), nucleus(logits, mass))


def test_the_mass_counts_to_its_twelfth_digit() -> None:
    """A mass 1e-12 below that of the k likeliest tokens gives the k-th logit as border, and 1e-12 above it the next."""
    from spectr.kernels.threshold import nucleus_border

    for kind, size in (("random", FEWER), ("flat", FEWER), ("random", 60)):
        noise = torch.rand(size, generator=torch.Generator().manual_seed(2)) / 8  # few are alike
        logits = (some(kind, 1, 1, size)[0, 0] + noise).sort(descending=True).values
        held = logits.double().softmax(-1).cumsum(-1)
        places = torch.tensor([0, 7, size // 2])
        assert bool((logits[places] > logits[places + 1]).all())
        mass = torch.cat([held[places] - 1e-12, held[places] + 1e-12])
        given = logits.expand(len(mass), 1, size).contiguous()
        found = nucleus_border(given.to(DEVICE), mass.to(DEVICE)).cpu()[:, 0]
        assert torch.equal(found, torch.cat([logits[places], logits[places + 1]]))


def test_rows_of_nan_and_infinite_logits() -> None:
    """Rows without tokens, with one token, or with NaN or infinite logits have no border, or that of the tokens
    left."""
    from spectr.kernels.threshold import nucleus_border, rank_border

    logits = some("random", 2, 7, FEWER)
    for row in logits:
        row[0], row[1, 1:], row[2], row[3, 2_400] = -torch.inf, -torch.inf, torch.nan, torch.nan
        row[4, 17], row[5], row[5, 9] = torch.inf, torch.finfo(torch.float32).min, -3.3e38
    plain = logits[:, 6:]
    count, mass = torch.tensor([3, 2_500]), torch.tensor([0.8, 0.99], dtype=torch.float64)
    ranks = rank_border(logits.to(DEVICE), count.to(DEVICE)).cpu()
    masses = nucleus_border(logits.to(DEVICE), mass.to(DEVICE)).cpu()
    for at in (0, 2, 3):
        assert ranks[:, at].tolist() == masses[:, at].tolist() == [OFF, OFF]
    assert ranks[:, 1].tolist() == [OFF, OFF]  # the third of one token
    assert torch.equal(masses[:, 1], logits[:, 1, 0])
    assert torch.equal(ranks[:, 4:6], ranked(logits[:, 4:6], count))
    assert masses[:, 4].tolist() == [torch.inf, torch.inf]
    assert torch.equal(masses[:, 5], logits[:, 5, 9])
    assert torch.equal(ranks[:, 6:], ranked(plain, count))
    assert torch.equal(masses[:, 6:], nucleus(plain, mass))


def test_nothing_is_written_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes collected tokens at the end of the vocabulary, next to the padding of their chunk."""
    from spectr.kernels.threshold import rank_border

    logits = torch.full((1, 1, FEWER), -torch.inf, device=DEVICE)
    logits[..., :3] = 1.0
    guards = []

    def guarded(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        size = math.prod(shape)
        buffer = torch.full((size + 8192,), 77, dtype=dtype, device=device)
        guards.append(buffer[size:])
        return buffer[:size].view(shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", guarded)
        border = rank_border(logits, torch.tensor([2_000], device=DEVICE))
    assert border.tolist() == [[OFF]]
    assert all(bool((guard == 77).all()) for guard in guards)
    assert len(guards) == 2


def test_a_row_does_not_depend_on_others() -> None:
    from spectr.kernels.threshold import nucleus_border, rank_border

    logits = some("random", 3, 2, FEWER).to(DEVICE)
    count = torch.tensor([9, 0, 300], device=DEVICE)
    mass = torch.tensor([0.5, 0.95, 1.0], dtype=torch.float64, device=DEVICE)
    for border, bound in ((rank_border, count), (nucleus_border, mass)):
        together = border(logits, bound)
        for row in range(3):
            assert torch.equal(border(logits[row : row + 1], bound[row : row + 1]), together[row : row + 1])
            assert torch.equal(border(logits[row : row + 1, 1:], bound[row : row + 1]), together[row : row + 1, 1:])


def test_the_nucleus_of_what_top_k_keeps() -> None:
    """Tokens below a floor count as excluded; the floors of some nodes exclude nothing, and of others nearly all."""
    from spectr.kernels.threshold import nucleus_border, rank_border

    count, mass = torch.tensor([40, 0, 1, 2_000]), torch.tensor([0.9, 0.6, 0.8, 0.99], dtype=torch.float64)
    for kind in ("random", "tied", "excluded"):
        logits = some(kind, len(count), 2, FEWER)
        floors = ranked(logits, count)
        meant = nucleus(logits.masked_fill(logits < floors[..., None], OFF), mass)
        on = logits.to(DEVICE)
        assert torch.equal(nucleus_border(on, mass.to(DEVICE), rank_border(on, count.to(DEVICE))).cpu(), meant)


def test_bounds_may_be_columns_of_a_table() -> None:
    from spectr.kernels.threshold import nucleus_border, rank_border

    logits = some("random", 3, 2, FEWER).to(DEVICE)
    count, mass = torch.tensor([9, 0, 300], device=DEVICE), torch.tensor([0.5, 0.95, 1.0], device=DEVICE).double()
    for border, bound in ((rank_border, count), (nucleus_border, mass)):
        column = torch.stack([bound - 7, bound, bound + 1], 1)[:, 1]
        assert torch.equal(border(logits, column), border(logits, bound))
        assert torch.equal(border(logits, bound[:1].expand(3)), border(logits, bound[:1].repeat(3)))
