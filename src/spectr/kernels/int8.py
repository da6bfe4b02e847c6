"""Products of few rows with int8 matrices: half the bytes of bfloat16, and bytes are all that such a product costs.

Tiles of the matrix become the rows' type in registers. Where the matrix has too few rows to fill the chip, its columns
are cut in parts whose sums are added in a second pass, always in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["int8_product"]

_ROWS, _COLUMNS = 64, 128  # of a tile of the matrix
_PROGRAMS = 400  # worth starting at once
_MOST = 256  # given rows; for more the matrix is made anew in their type


@triton.jit
def _tiles(
    given, weight, scale, out, count, height, width,
    FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Some given rows times one tile of rows of the matrix, over one part of the columns."""
    tile, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tile * ROWS + tl.arange(0, ROWS)
    own = block * FEW + tl.arange(0, FEW)
    here, real = row < height, own < count
    total = tl.zeros([FEW, ROWS], tl.float32)
    for turn in range(TURNS):
        column = (part * TURNS + turn) * COLUMNS + tl.arange(0, COLUMNS)
        places = weight + row.to(tl.int64)[None, :] * width + column[:, None]
        if EVEN:
            matrix = tl.load(places)
            rows = tl.load(given + own[:, None] * width + column[None, :], mask=real[:, None], other=0.0)
        else:
            inside = column < width
            matrix = tl.load(places, mask=here[None, :] & inside[:, None], other=0)
            seen = real[:, None] & inside[None, :]
            rows = tl.load(given + own[:, None] * width + column[None, :], mask=seen, other=0.0)
        total += tl.dot(rows, matrix.to(rows.dtype), input_precision="ieee")
    total *= tl.load(scale + row, mask=here, other=0.0)[None, :]
    place = (part * count + own).to(tl.int64)[:, None] * height + row[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real[:, None] & here[None, :])


@triton.jit
def _sum(parts, out, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(PARTS):
        total += tl.load(parts + part * size + at, mask=at < size, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)


def _turns(tiles: int, width: int) -> int:
    """How many tiles of columns one program takes: all, or so few that there are enough programs."""
    every = triton.cdiv(width, _COLUMNS)
    parts = max(1, min(every, _PROGRAMS // tiles))
    return int(triton.cdiv(every, parts))


def _few(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    (count, width), height = given.shape, len(weight)
    few = max(16, min(64, triton.next_power_of_2(count)))
    tiles, blocks = triton.cdiv(height, _ROWS), triton.cdiv(count, few)
    turns = _turns(tiles * blocks, width)
    parts = triton.cdiv(width, turns * _COLUMNS)
    out = given.new_empty(count, height)
    found = out if parts == 1 else torch.empty(parts, count, height, dtype=torch.float32, device=given.device)
    even = height % _ROWS == 0 and width == parts * turns * _COLUMNS
    _tiles[(tiles, blocks, parts)](
        given, weight, scale, found, count, height, width,
        FEW=few, ROWS=_ROWS, COLUMNS=_COLUMNS, TURNS=turns, EVEN=even, num_warps=4, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _sum[(triton.cdiv(count * height, 512),)](found, out, count * height, PARTS=parts, BLOCK=512)
    return out


@torch.library.custom_op("spectr::int8_product", mutates_args=())
def int8_product(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """(R, N): rows (R, C) times the transpose of an int8 matrix (N, C) whose rows have a `scale` (N,)."""
    if len(given) > _MOST:
        return linear(given, weight.to(given.dtype)) * scale.to(given.dtype)
    return _few(given.contiguous(), weight, scale)


@int8_product.register_fake
def _(given: Tensor, weight: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG001
    return given.new_empty(len(given), len(weight))
