"""Products of packed weights with rows of inputs: every output is summed in one order, whatever the number of rows.

An output is Σ over groups of 32 weights of scale · (Σ code · input) + minimum · (Σ input). Groups follow one another,
and so do the codes of a group; nothing is summed in parallel within one output. Lanes hold different outputs and up to
eight rows go side by side, which changes no sum. A row's output therefore has the same bits in any company.
"""

from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import F32, I32, I64, PTR, Body, Table, Variable
from spectr.kernels.cpu.kinds import GROUP, Kind, Part
from spectr.kernels.cpu.processor import Processor

__all__ = ["MATRIX", "MULTIPLY", "SHIFTED", "emit_product", "emit_rows", "input_bytes"]

MATRIX = Table("multiply", "data", "tiles", "columns", "tile_bytes", "bias")
"""What a kernel is told of a matrix: the address of its product, its tiles, and the address of a bias or 0."""

MULTIPLY = (PTR, PTR, I64, PTR, I64, I64, I64, I64, I64)
"""Matrix; inputs, as `emit_prepare` leaves them, and the bytes from row to row; outputs, likewise; rows; the first tile
and the one after the last; whether outputs are added to what is there."""

SHIFTED = (1.0, 2.0**-8, 2.0**-16, 2.0**-24)
"""What makes up for codes that are not shifted down, by their place modulo 4."""

_SIDE_BY_SIDE = {16: (8, 6, 4, 3, 2, 1), 8: (6, 4, 3, 2, 1)}
"""By lanes: how many rows go side by side, which is limited by the number of registers."""


def input_bytes(columns: int) -> int:
    """Of a row of inputs: C numbers, the same numbers scaled for codes that are not shifted down, and the sums of each
    32 and of each 16."""
    return 4 * (2 * columns + columns // 32 + columns // 16)


def _sum_at(body: Body, columns: Any, group: Any, part: Part) -> Any:
    """Where the sum of the inputs of a part stands: a group, or half of one."""
    start = body.mul(columns, 8)
    if len(part.codes) == GROUP:
        return body.add(start, body.mul(group, 4))
    return body.add(start, body.div(columns, 8), body.mul(group, 8), 4 * part.codes[0][0] // 16)


def _add_part(body: Body, part: Part, where: tuple[list[Any], Any, Any], totals: list[Variable]) -> None:
    """Add what a part of a group gives with several rows."""
    rows, columns, group = where
    lanes = body.processor.lanes
    start = body.mul(group, 4 * GROUP)
    inputs = [body.at(row, body.add(start, body.mul(columns, 4)) if part.is_shifted else start) for row in rows]
    dots = [body.number(0.0, lanes)] * len(rows)
    for place, make in part.codes:
        weight = make()
        for row, first in enumerate(inputs):
            value = body.splat(body.load(F32, first, 4 * place, 4), lanes)
            dots[row] = body.fma(weight, value, dots[row])
    for row, dot, total in zip(rows, dots, totals, strict=True):
        if part.scale is None:
            total.set(body.builder.fadd(total.get(), dot))
        else:
            total.set(body.fma(part.scale, dot, total.get()))
        if part.minimum is not None:
            whole = body.splat(body.load(F32, row, _sum_at(body, columns, group, part), 4), lanes)
            total.set(body.fma(part.minimum, whole, total.get()))


def _put(body: Body, found: Any, bias: Any, adds: Any, output: Any) -> None:
    """Write outputs, with a bias if there is one, added to what is there if that is wanted."""
    value, zero = Variable(body, found.type, found), body.whole(0)
    with body.when(body.builder.icmp_signed("!=", bias, zero)):
        more = body.load(found.type, body.builder.inttoptr(bias, PTR), 0, 4)
        value.set(body.builder.fadd(value.get(), more))
    with body.when(body.builder.icmp_signed("!=", adds, zero)):
        value.set(body.builder.fadd(value.get(), body.load(found.type, output, 0, 4)))
    body.store(value.get(), output, 0, 4)


def _tile_product(body: Body, kind: Kind, rows: int) -> None:
    """The outputs of one tile for `rows` rows; arguments: the tile, the number of blocks, inputs and bytes of a row of
    inputs, outputs and bytes of a row of outputs, bias, whether to add."""
    tile, blocks, inputs, stride, outputs, out_stride, bias, adds = body.arguments
    lanes = body.processor.lanes
    zero = body.number(0.0, lanes)
    totals = [Variable(body, zero.type, zero) for _ in range(rows)]
    starts = [body.at(inputs, body.mul(row, stride)) for row in range(rows)]
    columns = body.mul(blocks, kind.block)
    with body.loop(0, blocks) as block:
        opened = kind.open(body, lanes, body.at(tile, _block_at(body, kind, block)))
        with body.loop(0, kind.groups) as number:
            group = body.add(body.mul(block, kind.groups), number)
            for part in opened(number):
                _add_part(body, part, (starts, columns, group), totals)
    scale = body.load(zero.type, tile, 0, 4) if kind.prefix else None
    for row, total in enumerate(totals):
        found = total.get() if scale is None else body.builder.fmul(total.get(), scale)
        _put(body, found, bias, adds, body.at(outputs, body.mul(row, out_stride)))


def _block_at(body: Body, kind: Kind, block: Any) -> Any:
    """Where a block stands in a tile."""
    lanes = body.processor.lanes
    return body.add(lanes * kind.prefix, body.mul(block, lanes * kind.bytes))


def emit_product(module: ir.Module, kind: Kind, processor: Processor) -> None:
    """The function `multiply_…` of matrices of this kind; arguments are those of `MULTIPLY`."""
    made = {}
    for rows in _SIDE_BY_SIDE[processor.lanes]:
        name = f"product_{kind.name}_{rows}"
        body = Body(module, name, (PTR, I64, PTR, I64, PTR, I64, I64, I64), processor, is_public=False)
        _tile_product(body, kind, rows)
        made[rows] = body.finish()
    body = Body(module, f"multiply_{kind.name}", MULTIPLY, processor)
    _multiply(body, kind, made)
    body.finish()


def _multiply(body: Body, kind: Kind, made: dict[int, Any]) -> None:
    """Rows in groups as large as possible, tile by tile."""
    matrix, inputs, stride, outputs, out_stride, rows, first, stop, adds = body.arguments
    lanes = body.processor.lanes
    data, size = body.field(MATRIX, matrix, "data", PTR), body.field(MATRIX, matrix, "tile_bytes")
    blocks = body.div(body.field(MATRIX, matrix, "columns"), kind.block)
    bias = body.field(MATRIX, matrix, "bias")
    has_bias = body.builder.icmp_signed("!=", bias, body.whole(0))
    with body.loop(first, stop) as tile:
        offset = body.mul(tile, 4 * lanes)
        row = Variable(body, I64, body.whole(0))
        for count, product in made.items():
            with body.loop(row.get(), body.sub(rows, count - 1), count) as at:
                body.call(
                    product, body.at(data, body.mul(tile, size)), blocks,
                    body.at(inputs, body.mul(at, stride)), stride,
                    body.at(outputs, body.add(body.mul(at, out_stride), offset)), out_stride,
                    body.builder.select(has_bias, body.add(bias, offset), bias), adds,
                )  # fmt: skip
                row.set(body.add(at, count))


def emit_rows(module: ir.Module, kind: Kind, processor: Processor) -> None:
    """The function `rows_…` that gives rows of a matrix as floats; arguments: matrix, address of row numbers (int64),
    how many, outputs, bytes of a row of outputs."""
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
    """The weights of one part, of the row in one lane; `scale` is that of the row, if it has one."""
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
