"""Products of packed weights with rows of inputs. Every output is summed in the same order for any number of rows.

An output is Σ over groups of 32 weights of scale · (Σ code · input) + minimum · (Σ input). Groups, and codes within a
group, are added in order; nothing is summed in parallel within one output. Lanes hold different outputs. Up to eight
sums are interleaved, of several rows or, if there are few rows, of several tiles, to hide the latency of additions;
that does not change any sum. The output of a row therefore has the same bits in every batch.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import F32, I32, I64, PTR, Body, Table, Variable
from spectr.kernels.cpu.kinds import GROUP, Kind, Part
from spectr.kernels.cpu.processor import Processor

__all__ = ["MATRIX", "MULTIPLY", "SHIFTED", "emit_product", "emit_rows", "input_bytes"]

MATRIX = Table("multiply", "data", "tiles", "columns", "tile_bytes", "bias")
"""Table of a matrix: the address of its product function, its tiles, and the address of its bias or 0."""

MULTIPLY = (PTR, PTR, I64, PTR, I64, I64, I64, I64, I64)
"""Arguments of a product: matrix; inputs, as `steps.prepare` writes them, and their row stride in bytes; outputs and
their stride; rows; the first tile and the one after the last; whether to add to the outputs."""

SHIFTED = (1.0, 2.0**-8, 2.0**-16, 2.0**-24)
"""Factors of the inputs for codes that are not shifted down, by index modulo 4."""

_SIDE_BY_SIDE = {16: (8, 6, 4, 3, 2, 1), 8: (6, 4, 3, 2, 1)}
"""By lanes: numbers of rows that are computed together; the number of registers limits them."""
_TILES = {16: {1: 4}, 8: {1: 4, 2: 2}}
"""By lanes and rows: the number of tiles that are computed together; 1 if not listed."""
_STEP = 4  # tiles


def input_bytes(columns: int) -> int:
    """Return the bytes of a row of inputs: C values, the same values scaled for codes that are not shifted down, and
    the sums of each 32 and of each 16."""
    return 4 * (2 * columns + columns // 32 + columns // 16)


def _sum_at(body: Body, columns: Any, group: Any, part: Part) -> Any:
    """Return the offset of the sum of the inputs of a part, which is a group or half of one."""
    start = body.mul(columns, 8)
    if len(part.codes) == GROUP:
        return body.add(start, body.mul(group, 4))
    return body.add(start, body.div(columns, 8), body.mul(group, 8), 4 * part.codes[0][0] // 16)


def _add_parts(body: Body, parts: Sequence[Part], where: tuple[list[Any], Any, Any], totals: list[Variable]) -> None:
    """Add the products of one part of a group, for several tiles and rows, to `totals`, which are ordered by tile, then
    by row. The sums of different tiles are interleaved."""
    rows, columns, group = where
    lanes = body.processor.lanes
    start = body.mul(group, 4 * GROUP)
    if parts[0].is_shifted:
        start = body.add(start, body.mul(columns, 4))
    inputs = [body.at(row, start) for row in rows]
    dots = [body.number(0.0, lanes)] * len(totals)
    for codes in zip(*(part.codes for part in parts), strict=True):
        for tile, (place, make) in enumerate(codes):
            weight = make()
            for row, first in enumerate(inputs):
                value, at = body.splat(body.load(F32, first, 4 * place, 4), lanes), tile * len(rows) + row
                dots[at] = body.fma(weight, value, dots[at])
    for at, (dot, total) in enumerate(zip(dots, totals, strict=True)):
        part, row = parts[at // len(rows)], rows[at % len(rows)]
        if part.scale is None:
            total.set(body.builder.fadd(total.get(), dot))
        else:
            total.set(body.fma(part.scale, dot, total.get()))
        if part.minimum is not None:
            whole = body.splat(body.load(F32, row, _sum_at(body, columns, group, part), 4), lanes)
            total.set(body.fma(part.minimum, whole, total.get()))


def _put(body: Body, found: Any, bias: Any, adds: Any, output: Any) -> None:
    """Write outputs, plus a bias if there is one, plus the old outputs if `adds`."""
    value, zero = Variable(body, found.type, found), body.whole(0)
    with body.when(body.builder.icmp_signed("!=", bias, zero)):
        more = body.load(found.type, body.builder.inttoptr(bias, PTR), 0, 4)
        value.set(body.builder.fadd(value.get(), more))
    with body.when(body.builder.icmp_signed("!=", adds, zero)):
        value.set(body.builder.fadd(value.get(), body.load(found.type, output, 0, 4)))
    body.store(value.get(), output, 0, 4)


def _tile_product(body: Body, kind: Kind, rows: int, tiles: int) -> None:
    """Emit the outputs of some tiles for `rows` rows; arguments: the first tile and its bytes, the number of blocks,
    inputs and their row stride, outputs and their row stride, bias, whether to add."""
    first, size, blocks, inputs, stride, outputs, out_stride, bias, adds = body.arguments
    lanes = body.processor.lanes
    zero = body.number(0.0, lanes)
    starts = [body.at(inputs, body.mul(row, stride)) for row in range(rows)]
    places = [body.at(first, body.mul(tile, size)) for tile in range(tiles)]
    totals = [Variable(body, zero.type, zero) for _ in range(rows * tiles)]
    columns = body.mul(blocks, kind.block)
    with body.loop(0, blocks) as block:
        opened = [kind.open(body, lanes, body.at(place, _block_at(body, kind, block))) for place in places]
        with body.loop(0, kind.groups) as number:
            group = body.add(body.mul(block, kind.groups), number)
            for parts in zip(*(parts_of(number) for parts_of in opened), strict=True):
                _add_parts(body, parts, (starts, columns, group), totals)
    for tile, place in enumerate(places):
        scale = body.load(zero.type, place, 0, 4) if kind.prefix else None
        offset = 4 * lanes * tile
        own = body.builder.select(body.builder.icmp_signed("!=", bias, body.whole(0)), body.add(bias, offset), bias)
        for row, total in enumerate(totals[tile * rows : (tile + 1) * rows]):
            found = total.get() if scale is None else body.builder.fmul(total.get(), scale)
            _put(body, found, own, adds, body.at(outputs, body.add(body.mul(row, out_stride), offset)))


def _block_at(body: Body, kind: Kind, block: Any) -> Any:
    """Return the offset of a block in a tile."""
    lanes = body.processor.lanes
    return body.add(lanes * kind.prefix, body.mul(block, lanes * kind.bytes))


def emit_product(module: ir.Module, kind: Kind, processor: Processor) -> None:
    """Emit the function `multiply_…` for matrices of this kind; its arguments are `MULTIPLY`."""
    made = {}
    for rows in _SIDE_BY_SIDE[processor.lanes]:
        for tiles in {1, _TILES[processor.lanes].get(rows, 1)}:
            name = f"product_{kind.name}_{rows}_{tiles}"
            body = Body(module, name, (PTR, I64, I64, PTR, I64, PTR, I64, I64, I64), processor, is_public=False)
            _tile_product(body, kind, rows, tiles)
            made[rows, tiles] = body.finish()
    body = Body(module, f"multiply_{kind.name}", MULTIPLY, processor)
    _multiply(body, kind, made)
    body.finish()


def _multiply(body: Body, kind: Kind, made: dict[tuple[int, int], Any]) -> None:
    """Multiply several tiles at a time and the last ones one by one, with rows in groups as large as possible."""
    first, stop = body.arguments[6:8]
    next_ = Variable(body, I64, first)
    with body.loop(first, body.sub(stop, _STEP - 1), _STEP) as tile:
        _multiply_tiles(body, kind, made, (tile, _STEP))
        next_.set(body.add(tile, _STEP))
    with body.loop(next_.get(), stop) as tile:
        _multiply_tiles(body, kind, made, (tile, 1))


def _multiply_tiles(body: Body, kind: Kind, made: dict[tuple[int, int], Any], where: tuple[Any, int]) -> None:
    """Multiply all rows with some tiles; `where` is the first tile and their number."""
    matrix, inputs, stride, outputs, out_stride, rows, _, _, adds = body.arguments
    lanes, (first, count) = body.processor.lanes, where
    data, size = body.field(MATRIX, matrix, "data", PTR), body.field(MATRIX, matrix, "tile_bytes")
    blocks = body.div(body.field(MATRIX, matrix, "columns"), kind.block)
    bias = body.field(MATRIX, matrix, "bias")
    has_bias = body.builder.icmp_signed("!=", bias, body.whole(0))
    row = Variable(body, I64, body.whole(0))
    for several in dict.fromkeys(rows for rows, _ in made):
        tiles = min(count, _TILES[lanes].get(several, 1))
        with body.loop(row.get(), body.sub(rows, several - 1), several) as at:
            for more in range(0, count, tiles):
                tile = body.add(first, more)
                offset = body.mul(tile, 4 * lanes)
                body.call(
                    made[several, tiles], body.at(data, body.mul(tile, size)), size, blocks,
                    body.at(inputs, body.mul(at, stride)), stride,
                    body.at(outputs, body.add(body.mul(at, out_stride), offset)), out_stride,
                    body.builder.select(has_bias, body.add(bias, offset), bias), adds,
                )  # fmt: skip
            row.set(body.add(at, several))


def emit_rows(module: ir.Module, kind: Kind, processor: Processor) -> None:
    """Emit the function `rows_…`, which converts rows of a matrix to floats; arguments: matrix, address of row numbers
    (int64), their count, outputs, row stride of the outputs."""
    body = Body(module, f"rows_{kind.name}", (PTR, PTR, I64, PTR, I64), processor)
    matrix, numbers, count, outputs, stride = body.arguments
    lanes = processor.lanes
    data, size = body.field(MATRIX, matrix, "data", PTR), body.field(MATRIX, matrix, "tile_bytes")
    blocks = body.div(body.field(MATRIX, matrix, "columns"), kind.block)
    with body.loop(0, count) as at:
        number = body.load(I64, numbers, body.mul(at, 8), 8)
        lane = body.builder.trunc(body.builder.urem(number, I64(lanes)), I32)
        tile = body.at(data, body.mul(body.div(number, lanes), size))
        scale = body.load(body.number(0.0, lanes).type, tile, 0, 4) if kind.prefix else None
        with body.loop(0, blocks) as block:
            opened = kind.open(body, lanes, body.at(tile, _block_at(body, kind, block)))
            with body.loop(0, kind.groups) as group:
                place = body.add(body.mul(block, kind.block), body.mul(group, GROUP))
                target = body.at(outputs, body.add(body.mul(at, stride), body.mul(place, 4)))
                for part in opened(group):
                    _write_row(body, part, scale, (lane, target))
    body.finish()


def _write_row(body: Body, part: Part, scale: Any, where: tuple[Any, Any]) -> None:
    """Write the weights of one part for the row in one lane; `scale` is the row's, if it has one."""
    lane, target = where
    scale = part.scale if scale is None else scale
    for at, make in part.codes:
        value = make()
        if part.is_shifted:
            value = body.builder.fmul(value, body.number(SHIFTED[at % 4], value.type.count))
        if part.minimum is not None:
            value = body.fma(scale, value, part.minimum)
        elif scale is not None:
            value = body.builder.fmul(scale, value)
        body.store(body.builder.extract_element(value, lane), target, 4 * at, 4)
