"""The steps of a decoder layer between its products: norms, rotary positions, attention over slots, the gate.

Sums use 16 lanes, which are added in a fixed order at the end. Attention reads the keys in the order of their
positions: first the committed text, then the token's path in the tree. Both give a token the same bits whether it is
scored alone, in a tree or in a prompt.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import F32, I32, I64, Body, Variable, vector
from spectr.kernels.cpu.products import SHIFTED

__all__ = ["LANES", "attend", "exponential", "gate", "normalise", "prepare", "rotate"]

LANES = 16
"""Lanes of the sums over a row, on every processor."""

_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
_LOWEST, _HIGHEST = -87.0, 88.0
_TAYLOR = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""Coefficients of (exp(r) − 1 − r) / r² for |r| ≤ ln 2 / 2, highest power first (Cephes)."""


def _lowest(body: Body, values: Any, bound: float) -> Any:
    limit = body.number(bound, values.type.count)
    return body.builder.select(body.builder.fcmp_ordered("<", values, limit), values, limit)


def exponential(body: Body, values: Any) -> Any:
    """Return exp of every lane, with an error of at most two units in the last place; inputs are clamped to −87 …
    88."""
    lanes, kind = values.type.count, values.type
    values = body.larger(_lowest(body, values, _HIGHEST), body.number(_LOWEST, lanes))
    whole = body.builder.fmul(values, body.number(_LOG2E, lanes))
    whole = body.builder.call(body.outside(f"llvm.rint.v{lanes}f32", kind, [kind]), [whole])
    rest = body.fma(whole, body.number(-_LN2_HIGH, lanes), values)
    rest = body.fma(whole, body.number(-_LN2_LOW, lanes), rest)
    found = body.number(_TAYLOR[0], lanes)
    for coefficient in _TAYLOR[1:]:
        found = body.fma(found, rest, body.number(coefficient, lanes))
    found = body.fma(found, body.builder.fmul(rest, rest), rest)
    found = body.builder.fadd(found, body.number(1.0, lanes))
    power = body.builder.fptosi(whole, vector(I32, lanes))
    bits = body.shift_left(body.builder.add(power, body.words(127, lanes)), 23)
    return body.builder.fmul(found, body.builder.bitcast(bits, kind))


def _over(body: Body, count: Any, act: Callable[[Any], None], lanes: int = LANES) -> None:
    """Call `act` with the byte offset of each vector of `count` values, a multiple of the lanes."""
    with body.loop(0, body.mul(count, 4), 4 * lanes) as offset:
        act(offset)


def _vector(body: Body, base: Any, offset: Any = 0, lanes: int = LANES) -> Any:
    return body.load(vector(F32, lanes), base, offset, 4)


def _squares(body: Body, values: Any, count: Any, lanes: int = LANES) -> Any:
    """Return Σ value²."""
    sums = Variable(body, vector(F32, lanes), body.number(0.0, lanes))

    def add(offset: Any) -> None:
        found = _vector(body, values, offset, lanes)
        sums.set(body.fma(found, found, sums.get()))

    _over(body, count, add, lanes)
    return body.total(sums.get())


def normalise(body: Body, values: Any, weight: Any, output: Any, how: tuple[Any, Any], lanes: int = LANES) -> None:
    """Write the RMS norm of `count` values: value / √(mean square + ε) · weight; `how` is (count, ε)."""
    count, small = how
    mean = body.builder.fdiv(_squares(body, values, count, lanes), body.builder.sitofp(count, F32))
    root = body.builder.call(body.outside("llvm.sqrt.f32", F32, [F32]), [body.builder.fadd(mean, small)])
    by = body.splat(body.builder.fdiv(body.number(1.0), root), lanes)

    def write(offset: Any) -> None:
        scaled = body.builder.fmul(_vector(body, values, offset, lanes), by)
        body.store(body.builder.fmul(scaled, _vector(body, weight, offset, lanes)), output, offset, 4)

    _over(body, count, write, lanes)


def prepare(body: Body, inputs: Any, columns: Any, first: Any, stop: Any) -> None:
    """Complete the inputs of a row for products: for columns `first` to `stop`, multiples of 32, write the scaled
    values and the sums of each 32 and 16."""
    scaled, sums = body.at(inputs, body.mul(columns, 4)), body.at(inputs, body.mul(columns, 8))
    halves = body.at(sums, body.div(columns, 8))
    by = ir.Constant(vector(F32, LANES), list(SHIFTED) * (LANES // 4))
    with body.loop(first, stop, 32) as at:
        parts = []
        for half in range(2):
            offset = body.mul(body.add(at, 16 * half), 4)
            values = _vector(body, inputs, offset)
            body.store(body.builder.fmul(values, by), scaled, offset, 4)
            parts.append(body.total(values))
            body.store(parts[-1], halves, body.add(body.div(at, 4), 4 * half), 4)
        body.store(body.builder.fadd(*parts), sums, body.div(at, 8), 4)


def rotate(body: Body, head: Any, table: Any, half: Any, lanes: int) -> None:
    """Rotate the pairs (i, i + half) of a head by the angles of a position; `table` has their cosines, then sines."""
    behind = body.mul(half, 4)

    def turn(offset: Any) -> None:
        one, other = (_vector(body, head, body.add(offset, far), lanes) for far in (0, behind))
        cosine, sine = (_vector(body, table, body.add(offset, far), lanes) for far in (0, behind))
        turned = body.builder.fsub(body.builder.fmul(one, cosine), body.builder.fmul(other, sine))
        body.store(body.fma(other, cosine, body.builder.fmul(one, sine)), head, body.add(offset, behind), 4)
        body.store(turned, head, offset, 4)

    _over(body, half, turn, lanes)


def attend(body: Body, query: Any, output: Any, seen: Any, sizes: tuple[Any, Any, Any], lanes: int) -> None:
    """Compute the attention of one head of one token. `seen` is (keys, values, bytes of a slot, first slot, end of the
    slots without gaps, address of the other slots, their number, scratch for scores); `sizes` is (width of a head,
    scale, cap or 0)."""
    keys, values, stride, first, plain, tail, more, scores = seen
    width, scale, cap = sizes
    count = body.add(body.sub(plain, first), more)

    def slot(at: Any) -> Any:
        return body.load(I64, tail, body.mul(at, 8), 8)

    def score(number: Any, at: Any) -> None:
        key, dot = body.at(keys, body.mul(number, stride)), Variable(body, vector(F32, lanes), body.number(0.0, lanes))

        def add(offset: Any) -> None:
            dot.set(body.fma(_vector(body, query, offset, lanes), _vector(body, key, offset, lanes), dot.get()))

        _over(body, width, add, lanes)
        body.store(body.builder.fmul(body.total(dot.get()), scale), scores, body.mul(at, 4), 4)

    with body.loop(first, plain) as at:
        score(at, body.sub(at, first))
    with body.loop(0, more) as at:
        score(slot(at), body.add(body.sub(plain, first), at))
    inverse = _softmax(body, scores, count, cap)
    _mix(body, (values, stride, first, plain, slot, more), scores, (output, width, inverse), lanes)


def _softmax(body: Body, scores: Any, count: Any, cap: Any) -> Any:
    """Replace scores by exp(score − largest) and return 1 / their sum. One vector after the scores is overwritten."""
    body.store(body.number(float("-inf"), LANES), scores, body.mul(count, 4), 4)
    even = body.mul(body.div(body.add(count, LANES - 1), LANES), LANES)
    with body.when(body.builder.fcmp_ordered("!=", cap, body.number(0.0))):

        def soften(offset: Any) -> None:
            wide = body.splat(cap, LANES)
            part = body.builder.fdiv(_vector(body, scores, offset), wide)
            doubled = exponential(body, body.builder.fmul(part, body.number(2.0, LANES)))
            one = body.number(1.0, LANES)
            less = body.builder.fdiv(body.number(2.0, LANES), body.builder.fadd(doubled, one))
            body.store(body.builder.fmul(body.builder.fsub(one, less), wide), scores, offset, 4)

        _over(body, even, soften)
        body.store(body.number(float("-inf"), LANES), scores, body.mul(count, 4), 4)
    largest = Variable(body, vector(F32, LANES), body.number(float("-inf"), LANES))
    _over(body, even, lambda offset: largest.set(body.larger(_vector(body, scores, offset), largest.get())))
    top, sums = (
        body.splat(body.highest(largest.get()), LANES),
        Variable(body, vector(F32, LANES), body.number(0.0, LANES)),
    )
    lane_numbers = ir.Constant(vector(I64, LANES), list(range(LANES)))

    def weigh(offset: Any) -> None:
        found = exponential(body, body.builder.fsub(_vector(body, scores, offset), top))
        places = body.builder.add(body.splat(body.div(offset, 4), LANES), lane_numbers)
        inside = body.builder.icmp_signed("<", places, body.splat(count, LANES))
        found = body.builder.select(inside, found, body.number(0.0, LANES))
        sums.set(body.builder.fadd(sums.get(), found))
        body.store(found, scores, offset, 4)

    _over(body, even, weigh)
    return body.builder.fdiv(body.number(1.0), body.total(sums.get()))


def _mix(body: Body, seen: tuple[Any, ...], weights: Any, target: tuple[Any, Any, Any], lanes: int) -> None:
    """Write Σ weight · value over the slots, several vectors of a head at a time."""
    values, stride, first, plain, slot, more = seen
    output, width, inverse = target
    start = Variable(body, I64, body.whole(0))
    for together in (4, 1):
        with body.loop(start.get(), body.sub(width, together * lanes - 1), together * lanes) as column:
            offset = body.mul(column, 4)
            sums = [Variable(body, vector(F32, lanes), body.number(0.0, lanes)) for _ in range(together)]

            def add(number: Any, at: Any, sums: list[Variable] = sums, offset: Any = offset) -> None:
                value = body.at(values, body.add(body.mul(number, stride), offset))
                weight = body.splat(body.load(F32, weights, body.mul(at, 4), 4), lanes)
                for part, total in enumerate(sums):
                    total.set(body.fma(weight, _vector(body, value, 4 * lanes * part, lanes), total.get()))

            with body.loop(first, plain) as at:
                add(at, body.sub(at, first))
            with body.loop(0, more) as at:
                add(slot(at), body.add(body.sub(plain, first), at))
            for part, total in enumerate(sums):
                found = body.builder.fmul(total.get(), body.splat(inverse, lanes))
                body.store(found, output, body.add(offset, 4 * lanes * part), 4)
            start.set(body.add(column, together * lanes))


def gate(body: Body, gates: Any, ups: Any, output: Any, span: tuple[Any, Any], is_gelu: Any) -> None:
    """Write silu(gate) · up, or gelu (tanh form) instead of silu, for the columns of `span` (first, end)."""
    first, stop = span
    one = body.number(1.0, LANES)
    with body.loop(first, stop, LANES) as column:
        offset = body.mul(column, 4)
        values = _vector(body, gates, offset)
        cubic = body.builder.fmul(body.builder.fmul(values, values), values)
        curve = body.builder.fmul(
            body.fma(cubic, body.number(0.044715, LANES), values), body.number(1.5957691216, LANES)
        )
        inner = body.builder.select(is_gelu, curve, values)
        below = body.builder.fadd(one, exponential(body, body.builder.fneg(inner)))
        active = body.builder.fdiv(values, below)
        body.store(body.builder.fmul(active, _vector(body, ups, offset)), output, offset, 4)
