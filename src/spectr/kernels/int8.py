"""Products of few rows with int8 matrices. Such a product is limited by memory traffic, and int8 is half of bfloat16.

Tiles of the matrix are converted to the rows' dtype in registers. If the matrix has too few rows to fill the chip, its
columns are split into parts, whose sums are added in a second pass in a fixed order. Since Hopper a kernel can be set
up while the one before it ends (programmatic dependent launch): kernels launched with `_early` allow that, and wait
first.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from spectr.kernels import on_own_device

__all__ = ["int8_product"]

_MOST = 256  # input rows; for more, the matrix is converted to their dtype first


class _Cut(NamedTuple):
    """How a product is split into programs."""

    rows: int  # rows of a tile of the matrix
    columns: int  # columns of a tile
    warps: int
    programs: int  # programs to start in parallel
    tall: bool  # tiles of the matrix are the left operand, not the right one


_CUTS = {16: _Cut(64, 128, 4, 512, False), 64: _Cut(128, 128, 4, 400, False), 256: _Cut(128, 64, 8, 132, True)}
"""By the number of input rows, upper bound."""


_HOPPER = (9, 0)


@cache
def _sets_up_early(device: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= _HOPPER


def _early() -> dict[str, bool]:
    """Return launch options for a kernel that begins with `_begin`."""
    can = not triton.knobs.runtime.interpret and _sets_up_early(torch.cuda.current_device())
    return {"EARLY": True, "launch_pdl": True} if can else {"EARLY": False}


@triton.jit
def _begin(EARLY: tl.constexpr):
    """Allow the next kernel to be set up, and wait until the kernels before this one have written their results."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _matrix(places, here, inside, EVEN: tl.constexpr):
    """Load a tile of the matrix, zeros beyond its end; with EVEN no tile reaches beyond it."""
    return tl.load(places) if EVEN else tl.load(places, mask=here & inside, other=0)


@triton.jit
def _given(places, real, inside, EVEN: tl.constexpr):
    """Load a tile of input rows, zeros beyond the last one."""
    return tl.load(places, mask=real, other=0.0) if EVEN else tl.load(places, mask=real & inside, other=0.0)


@triton.jit
def _tiles(
    given, weight, scale, out, count, height, width,
    FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr,
    EVEN: tl.constexpr, TALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply some input rows by one tile of rows of the matrix, over one part of the columns."""
    tile, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tile * ROWS + tl.arange(0, ROWS)
    own = block * FEW + tl.arange(0, FEW)
    here, real = row < height, own < count
    across, down = (tl.zeros([ROWS, FEW], tl.float32), tl.zeros([FEW, ROWS], tl.float32))
    _begin(EARLY)
    for turn in range(TURNS):
        column = (part * TURNS + turn) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        if TALL:
            places = weight + row.to(tl.int64)[:, None] * width + column[None, :]
            matrix = _matrix(places, here[:, None], inside[None, :], EVEN)
            rows = _given(given + own[None, :] * width + column[:, None], real[None, :], inside[:, None], EVEN)
            across = tl.dot(matrix.to(rows.dtype), rows, across, input_precision="ieee")
        else:
            places = weight + row.to(tl.int64)[None, :] * width + column[:, None]
            matrix = _matrix(places, here[None, :], inside[:, None], EVEN)
            rows = _given(given + own[:, None] * width + column[None, :], real[:, None], inside[None, :], EVEN)
            down += tl.dot(rows, matrix.to(rows.dtype), input_precision="ieee")
    total = tl.trans(across) if TALL else down
    total *= tl.load(scale + row, mask=here, other=0.0)[None, :]
    place = (part * count + own).to(tl.int64)[:, None] * height + row[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real[:, None] & here[None, :])


@triton.jit
def _sum(parts, out, size, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _begin(EARLY)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(PARTS):
        total += tl.load(parts + part * size + at, mask=at < size, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)


def _tiles_per_program(tiles: int, width: int, cut: _Cut) -> int:
    """Return how many tiles of columns one program takes: all, or so few that there are enough programs."""
    every = triton.cdiv(width, cut.columns)
    parts = 1
    while every % (2 * parts) == 0 and 2 * parts * tiles <= cut.programs:
        parts *= 2
    return int(every // parts)


def _few(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    (count, width), height = given.shape, len(weight)
    few = max(16, triton.next_power_of_2(count))
    cut = next(cut for most, cut in _CUTS.items() if few <= most)
    tiles, blocks = triton.cdiv(height, cut.rows), triton.cdiv(count, few)
    turns = _tiles_per_program(tiles, width, cut)
    parts = triton.cdiv(width, turns * cut.columns)
    out = given.new_empty(count, height)
    found = out if parts == 1 else torch.empty(parts, count, height, dtype=torch.float32, device=given.device)
    even = height % cut.rows == 0 and width % cut.columns == 0
    _tiles[(tiles, blocks, parts)](
        given, weight, scale, found, count, height, width,
        FEW=few, ROWS=cut.rows, COLUMNS=cut.columns, TURNS=turns, EVEN=even, TALL=cut.tall,
        num_warps=cut.warps, num_stages=3, **_early(),
    )  # fmt: skip
    if parts > 1:
        _sum[(triton.cdiv(count * height, 512),)](found, out, count * height, PARTS=parts, BLOCK=512, **_early())
    return out


@torch.library.custom_op("spectr::int8_product", mutates_args=())
@on_own_device
def int8_product(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return (R, N): rows (R, C) times the transpose of an int8 matrix (N, C) whose rows have a `scale` (N,)."""
    if len(given) > _MOST or not (given.is_cuda or triton.knobs.runtime.interpret):
        # The weights are scaled before the product, because float16 would overflow.
        return linear(given, weight.to(given.dtype).mul_(scale.to(given.dtype)[:, None]))
    return _few(given.contiguous(), weight, scale)


@int8_product.register_fake
def _(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG001
    return given.new_empty(given.shape[0], weight.shape[0])  # len() would make sizes constant
