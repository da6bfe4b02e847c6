"""The noise of the race, roughly and quickly: −log E for every token, good to 1e-6.

Whoever decides by noise looks at its rough values first, and makes exact ones of the few tokens that can win.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from llvmlite import ir
from torch import Tensor

from spectr.kernels.cpu.emit import F32, I32, I64, PTR, Body, vector
from spectr.kernels.cpu.processor import Processor

__all__ = ["ROUGH", "emit_noise", "rough_noise"]

ROUGH = 1e-4
"""A bound on the error of a rough value: a hundred times the largest that is found."""

_LANES = 16
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64
_ROOT_HALF, _LN2 = 0x3F3504F3, 0.6931471805599453  # √½ as bits
F64 = ir.DoubleType()


def _whole(value: int, lanes: int = _LANES) -> Any:
    return ir.Constant(vector(I64, lanes), [value if value < 1 << 63 else value - (1 << 64)] * lanes)


def _mixed(body: Body, state: Any) -> Any:
    """The finaliser of SplitMix64."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state = body.builder.mul(body.builder.xor(state, body.builder.lshr(state, _whole(shift))), _whole(factor))
    return body.builder.xor(state, body.builder.lshr(state, _whole(31)))


def _odd_series(body: Body, value: Any, terms: int) -> Any:
    """2 artanh(value) = 2 (z + z³ / 3 + z⁵ / 5 + …)."""
    square = body.builder.fmul(value, value)
    found = body.number(2.0 / (2 * terms - 1), _LANES)
    for term in range(terms - 1, 0, -1):
        found = body.fma(found, square, body.number(2.0 / (2 * term - 1), _LANES))
    return body.builder.fmul(found, value)


def _logarithm(body: Body, values: Any) -> Any:
    """Of positive normal numbers: exponent · ln 2 + 2 artanh((m − 1) / (m + 1)), with m between √½ and √2."""
    words = vector(I32, _LANES)
    bits = body.builder.bitcast(values, words)
    moved = body.builder.sub(bits, body.words(_ROOT_HALF, _LANES))
    power = body.builder.ashr(moved, body.words(23, _LANES))
    rest = body.singles(body.builder.sub(bits, body.shift_left(power, 23)))
    one = body.number(1.0, _LANES)
    ratio = body.builder.fdiv(body.builder.fsub(rest, one), body.builder.fadd(rest, one))
    whole = body.builder.sitofp(power, values.type)
    return body.fma(whole, body.number(_LN2, _LANES), _odd_series(body, ratio, 5))


def _noise(body: Body, state: Any) -> Any:
    """−log(−log1p(−u)) of the 53 highest bits of states, as `spectr.coins.gumbel` defines it."""
    doubles = vector(F64, _LANES)
    bits = body.builder.sitofp(body.builder.lshr(_mixed(body, state), _whole(11)), doubles)
    half, unit = (ir.Constant(doubles, [value] * _LANES) for value in (0.5, 2.0**-53))
    chance = body.builder.fmul(body.builder.fadd(bits, half), unit)
    left = body.builder.fsub(ir.Constant(doubles, [1.0] * _LANES), chance)
    left = body.builder.select(body.builder.fcmp_ordered(">", left, unit), left, unit)
    small, rest = (body.builder.fptrunc(value, vector(F32, _LANES)) for value in (chance, left))
    near = _odd_series(body, body.builder.fdiv(small, body.builder.fsub(body.number(2.0, _LANES), small)), 7)
    far = body.builder.fneg(_logarithm(body, rest))
    waited = body.builder.select(body.builder.fcmp_ordered("<", small, body.number(0.5, _LANES)), near, far)
    return body.builder.fneg(_logarithm(body, waited))


def emit_noise(module: ir.Module, processor: Processor) -> None:
    """The function `noise`; arguments: a generator's state, how many tokens, a multiple of 16, and outputs."""
    body = Body(module, "noise", (I64, I64, PTR), processor)
    state, count, outputs = body.arguments
    ladder = ir.Constant(vector(I64, _LANES), list(range(_LANES)))
    with body.loop(0, count, _LANES) as first:
        token = body.builder.add(body.splat(first, _LANES), ladder)
        states = body.builder.add(body.splat(state, _LANES), body.builder.mul(token, _whole(_GOLDEN)))
        body.store(_noise(body, states), outputs, body.mul(first, 4), 4)
    body.finish()


@cache
def _function() -> Any:
    from spectr.kernels.cpu.library import library

    library().load(set())
    return library().function("noise", ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def rough_noise(states: Tensor, vocabulary: int) -> Tensor:
    """(B, M, V) float32 for generator states (B, M)."""
    even = -(-vocabulary // _LANES) * _LANES
    found, make = torch.empty(*states.shape, even), _function()
    for row, state in enumerate(states.flatten().tolist()):
        make(state, even, found.data_ptr() + 4 * even * row)
    return found[..., :vocabulary]
