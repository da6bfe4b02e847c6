"""Packed matrices: packing, multiplication, and conversion of rows to floats."""

import ctypes
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectr.kernels.cpu.decoder import CALL, PROGRAM
from spectr.kernels.cpu.kinds import GROUP, KINDS, Kind, interleaved, separated
from spectr.kernels.cpu.library import library
from spectr.kernels.cpu.products import MATRIX, input_bytes
from spectr.kernels.cpu.threads import threads

__all__ = ["Matrix", "aligned", "filled_table", "fits", "kind_of_dtype", "rounded"]

_LINE = 64  # bytes
_PART = 1 << 24  # bytes of rows that are interleaved at a time

Bytes = NDArray[np.uint8]


def aligned(size: int) -> Bytes:
    """Return an array of `size` bytes that begins at a cache line."""
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size]


def filled_table(table: Any, **values: Any) -> NDArray[np.int64]:
    """Return a table with these entries, floats as their bits, and zeros elsewhere."""
    made = np.zeros(len(table), np.int64)
    for name, value in values.items():
        made[table.places[name]] = np.float32(value).view(np.int32) if isinstance(value, float) else int(value)
    return made


def kind_of_dtype(dtype: torch.dtype) -> str:
    """Return the kind that stores values of a dtype without rounding."""
    return {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]


def rounded(weight: Tensor) -> Bytes:
    """Return the rows of a matrix (R, C) as int8, each preceded by its scale."""
    scale = (weight.detach().abs().amax(1).float() / 127).clamp_min(1e-12)
    codes = (weight.detach().float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
    return np.concatenate([scale.numpy().view(np.uint8).reshape(len(codes), 4), codes.numpy().view(np.uint8)], 1)


class Matrix:
    """A matrix of one kind, stored in tiles, with an optional bias."""

    def __init__(self, kind: str, tiles: Bytes, shape: tuple[int, int], bias: Tensor | None = None) -> None:
        library().load({kind})
        self.kind, self.tiles, (self.rows, self.columns) = KINDS[kind], tiles, shape
        self.bias = None if bias is None else self._padded(bias)
        self.table = filled_table(
            MATRIX,
            multiply=library().address(f"multiply_{kind}"),
            data=tiles.ctypes.data,
            tiles=len(tiles),
            columns=self.columns,
            tile_bytes=tiles.shape[1],
            bias=0 if self.bias is None else self.bias.data_ptr(),
        )

    @classmethod
    def packed(cls, kind: str, rows: Bytes, columns: int, bias: Tensor | None = None) -> "Matrix":
        """Return a matrix of rows (R, row bytes) in the layout of a GGUF file."""
        lanes, layout = library().processor.lanes, KINDS[kind]
        tiles = -(-len(rows) // lanes)
        made = aligned(tiles * lanes * rows.shape[1]).reshape(tiles, -1)
        step = max(1, _PART // (lanes * rows.shape[1]))
        for first in range(0, tiles, step):
            part = rows[first * lanes : (first + step) * lanes]
            made[first : first + step] = interleaved(layout, np.ascontiguousarray(part), lanes)
        return cls(kind, made, (len(rows), columns), bias)

    @classmethod
    def of(cls, weight: Tensor, kind: str | None = None, bias: Tensor | None = None) -> "Matrix":
        """Return a packed matrix of floats (R, C): without rounding, or as int8 with a scale for each row."""
        if kind == "INT8":
            return cls.packed("INT8", rounded(weight), weight.shape[1], bias)
        rows = weight.detach().contiguous().view(torch.uint8).numpy()
        return cls.packed(kind_of_dtype(weight.dtype), rows, weight.shape[1], bias)

    def _padded(self, values: Tensor) -> Tensor:
        """Return values padded with zeros to the end of the last tile."""
        made = torch.zeros(self.padded)
        made[: self.rows] = values.detach().float()
        return made

    @property
    def padded(self) -> int:
        """The number of rows, including those that fill the last tile."""
        return len(self.tiles) * library().processor.lanes

    @property
    def address(self) -> int:
        """The address of the table that kernels read."""
        return int(self.table.ctypes.data)

    @property
    def bytes(self) -> int:
        """The bytes of the weights in memory."""
        return self.tiles.nbytes

    def raw(self) -> Bytes:
        """Return the rows in the layout of the file."""
        return separated(self.kind, self.tiles, library().processor.lanes)[: self.rows]

    def select_rows(self, rows: Tensor) -> "Matrix":
        """Return a matrix of some of the rows."""
        lanes = library().processor.lanes
        tiles = np.unique(rows.numpy() // lanes)
        separate = separated(self.kind, self.tiles[tiles], lanes)
        places = np.searchsorted(tiles, rows.numpy() // lanes) * lanes + rows.numpy() % lanes
        bias = None if self.bias is None else self.bias[rows]
        return Matrix.packed(self.kind.name, separate[places], self.columns, bias)

    @cached_property
    def rows_address(self) -> int:
        """The address of the function that converts rows to floats."""
        return library().address(f"rows_{self.kind.name}")

    @cached_property
    def _float_rows(self) -> Any:
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        return library().function(f"rows_{self.kind.name}", pointer, pointer, whole, pointer, whole)

    def float_rows(self, rows: Tensor) -> Tensor:
        """Return the rows with these numbers (…) as floats (…, C)."""
        numbers = rows.contiguous()
        floats = torch.empty(*rows.shape, self.columns)
        self._float_rows(self.address, numbers.data_ptr(), numbers.numel(), floats.data_ptr(), 4 * self.columns)
        return floats

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows (…, C) by the transposed matrix and return (…, R)."""
        given = rows.detach().float().reshape(-1, self.columns).contiguous()
        count, size = len(given), input_bytes(self.columns)
        product, inputs = torch.empty(count, self.padded), aligned(max(1, count) * size)
        call = filled_table(
            CALL, rows=count, given=given.data_ptr(), given_stride=4 * self.columns, join=self.address,
            hidden=product.data_ptr(), hidden_stride=4 * self.padded, inputs=inputs.ctypes.data, inputs_stride=size,
        )  # fmt: skip
        program = filled_table(PROGRAM, width=0)
        threads(torch.get_num_threads()).run(program.ctypes.data, call.ctypes.data)
        return product[:, : self.rows].reshape(*rows.shape[:-1], self.rows)


def fits(kind: Kind, columns: int) -> bool:
    """Return whether rows of `columns` values can be packed as this kind."""
    return columns % kind.block == 0 and columns % GROUP == 0
