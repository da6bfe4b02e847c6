"""Fast approximate race noise: −log E for every token, with an error below 1e-6.

A race computes approximate values first, and exact ones only for the few tokens that can win.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from llvmlite import ir
from torch import Tensor

from spectr.kernels.cpu.emit import F32, I32, I64, PTR, Body, Variable, vector
from spectr.kernels.cpu.processor import Processor

__all__ = ["LANES", "ROUGH", "candidates", "emit_candidates", "emit_noise", "rough_noise"]

LANES = 16
"""Tokens per vector."""
ROUGH = 1e-4
"""A bound on the error of an approximate value, a hundred times the largest error observed."""

MOST = 64
"""Upper bound of the number of candidates of a race that are computed exactly."""

_ROUNDED = 2.0**-20  # relative rounding error of a score
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # constants of SplitMix64
_ROOT_HALF, _LN2 = 0x3F3504F3, 0.6931471805599453  # √½ as bits
F64 = ir.DoubleType()


def _whole(value: int, lanes: int = LANES) -> Any:
    return ir.Constant(vector(I64, lanes), [value if value < 1 << 63 else value - (1 << 64)] * lanes)


def _mixed(body: Body, state: Any) -> Any:
    """Apply the finaliser of SplitMix64."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state = body.builder.mul(body.builder.xor(state, body.builder.lshr(state, _whole(shift))), _whole(factor))
    return body.builder.xor(state, body.builder.lshr(state, _whole(31)))


def _odd_series(body: Body, value: Any, terms: int) -> Any:
    """Return 2 artanh(value) = 2 (z + z³ / 3 + z⁵ / 5 + …)."""
    square = body.builder.fmul(value, value)
    found = body.number(2.0 / (2 * terms - 1), LANES)
    for term in range(terms - 1, 0, -1):
        found = body.fma(found, square, body.number(2.0 / (2 * term - 1), LANES))
    return body.builder.fmul(found, value)


def _logarithm(body: Body, values: Any) -> Any:
    """Return the logarithm of positive normal numbers: exponent · ln 2 + 2 artanh((m − 1) / (m + 1)), √½ ≤ m < √2."""
    words = vector(I32, LANES)
    bits = body.builder.bitcast(values, words)
    moved = body.builder.sub(bits, body.words(_ROOT_HALF, LANES))
    power = body.builder.ashr(moved, body.words(23, LANES))
    rest = body.singles(body.builder.sub(bits, body.shift_left(power, 23)))
    one = body.number(1.0, LANES)
    ratio = body.builder.fdiv(body.builder.fsub(rest, one), body.builder.fadd(rest, one))
    whole = body.builder.sitofp(power, values.type)
    return body.fma(whole, body.number(_LN2, LANES), _odd_series(body, ratio, 5))


def _noise(body: Body, state: Any) -> Any:
    """Return −log(−log1p(−u)) of the 53 highest bits of states, as `spectr.coins.gumbel` defines it."""
    doubles = vector(F64, LANES)
    bits = body.builder.sitofp(body.builder.lshr(_mixed(body, state), _whole(11)), doubles)
    half, unit = (ir.Constant(doubles, [value] * LANES) for value in (0.5, 2.0**-53))
    chance = body.builder.fmul(body.builder.fadd(bits, half), unit)
    left = body.builder.fsub(ir.Constant(doubles, [1.0] * LANES), chance)
    left = body.builder.select(body.builder.fcmp_ordered(">", left, unit), left, unit)
    small, rest = (body.builder.fptrunc(value, vector(F32, LANES)) for value in (chance, left))
    near = _odd_series(body, body.builder.fdiv(small, body.builder.fsub(body.number(2.0, LANES), small)), 7)
    far = body.builder.fneg(_logarithm(body, rest))
    waited = body.builder.select(body.builder.fcmp_ordered("<", small, body.number(0.5, LANES)), near, far)
    return body.builder.fneg(_logarithm(body, waited))


def _noises(body: Body, state: Any, first: Any) -> Any:
    """Return the noise of one vector of tokens, from `first` on."""
    lane_numbers = ir.Constant(vector(I64, LANES), list(range(LANES)))
    token = body.builder.add(body.splat(first, LANES), lane_numbers)
    return _noise(body, body.builder.add(body.splat(state, LANES), body.builder.mul(token, _whole(_GOLDEN))))


def emit_noise(module: ir.Module, processor: Processor) -> None:
    """Emit the function `noise`; arguments: a generator's state, the number of tokens (a multiple of 16), outputs."""
    body = Body(module, "noise", (I64, I64, PTR), processor)
    state, count, outputs = body.arguments
    with body.loop(0, count, LANES) as first:
        body.store(_noises(body, state, first), outputs, body.mul(first, 4), 4)
    body.finish()


def emit_candidates(module: ir.Module, processor: Processor) -> None:
    """Emit the function `candidates`; arguments: a generator's state, the number of tokens (a multiple of 16), their
    logits, scratch for as many floats, and the output (int64): the number of tokens that can win, then these tokens."""
    body = Body(module, "candidates", (I64, I64, PTR, PTR, PTR), processor)
    state, count, logits, scores, found = body.arguments
    kind = vector(F32, LANES)
    best = Variable(body, kind, body.number(float("-inf"), LANES))
    with body.loop(0, count, LANES) as first:
        at = body.mul(first, 4)
        score = body.builder.fadd(body.load(kind, logits, at, 4), _noises(body, state, first))
        body.store(score, scores, at, 4)
        best.set(body.larger(score, best.get()))
    top = body.highest(best.get())
    size = body.builder.select(body.builder.fcmp_ordered("<", top, body.number(0.0)), body.builder.fneg(top), top)
    margin = body.fma(size, body.number(_ROUNDED), body.number(2 * ROUGH))  # two approximate values, and rounded sums
    least, number = body.builder.fsub(top, margin), Variable(body, I64, body.whole(0))
    with body.loop(0, count, LANES) as first:
        score = body.load(kind, scores, body.mul(first, 4), 4)
        above = body.builder.fcmp_ordered(">=", score, body.splat(least, LANES))
        some = body.builder.bitcast(above, ir.IntType(LANES))
        with body.when(body.builder.icmp_signed("!=", some, ir.Constant(ir.IntType(LANES), 0))):
            _collect(body, (first, count, scores), least, (number, found))
    body.store(number.get(), found, 0, 8)
    body.finish()


def _collect(body: Body, where: tuple[Any, Any, Any], least: Any, to: tuple[Variable, Any]) -> None:
    """Append the tokens of a vector whose scores are at least `least`, as long as there is room."""
    (first, _, scores), (number, found) = where, to
    with body.loop(first, body.add(first, LANES)) as token:
        score = body.load(F32, scores, body.mul(token, 4), 4)
        with body.when(body.builder.fcmp_ordered(">=", score, least)):
            number.set(body.add(number.get(), 1))
            with body.when(body.less(number.get(), MOST + 1)):
                body.store(token, found, body.mul(number.get(), 8), 8)


@cache
def _function(name: str, *kinds: Any) -> Any:
    from spectr.kernels.cpu.library import library

    library().load(set())
    return library().function(name, *kinds)


def rough_noise(states: Tensor, vocabulary: int) -> Tensor:
    """Return the noise (B, M, V), float32, for generator states (B, M)."""
    even = -(-vocabulary // LANES) * LANES
    found = torch.empty(*states.shape, even)
    make = _function("noise", ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    for row, state in enumerate(states.flatten().tolist()):
        make(state, even, found.data_ptr() + 4 * even * row)
    return found[..., :vocabulary]


def candidates(states: Tensor, logits: Tensor) -> list[list[int] | None]:
    """Return for each of the generator states (N,) and logits (N, V) the tokens that can have the largest sum of logit
    and noise; None if there are none (all logits are NaN or −inf) or too many."""
    logits, (rows, size) = logits.contiguous(), logits.shape
    scores, found = torch.empty(size), torch.empty(MOST + 1, dtype=torch.int64)
    pointer = ctypes.c_void_p
    look = _function("candidates", ctypes.c_int64, ctypes.c_int64, pointer, pointer, pointer)
    each: list[list[int] | None] = []
    for row, state in zip(range(rows), states.tolist(), strict=True):
        look(state, size, logits.data_ptr() + 4 * size * row, scores.data_ptr(), found.data_ptr())
        count = int(found[0])
        each.append(found[1 : 1 + count].tolist() if 0 < count <= MOST else None)
    return each
