"""Kernels for coins and race noise: the winner of a race in one pass over the logits, without storing the noise."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["fused_uniform", "race_winner", "rough_noise"]

_CHUNK = 2048


@triton.jit
def _mix(state):
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _absorb(state, word):
    return _mix((state ^ word) + 0x9E3779B97F4A7C15)


@triton.jit
def _gumbel(state):
    """Return −log(−log1p(−u)) in float64; a series is used for small u, where 1 − u would round."""
    u = ((state >> 11).to(tl.int64).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * 0.2))))
    exponential = tl.where(u < 1e-4, series, -tl.log(1.0 - tl.minimum(u, 0.9999999999999999)))
    return -tl.log(exponential)


@triton.jit
def _rough_gumbel(state):
    """Return the same in float32, with an error below 1e-5: enough to rule out tokens that cannot win."""
    u = ((state >> 11).to(tl.int64).to(tl.float32) + 0.5) * 1.1102230246251565e-16
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * (0.2 + u * (1.0 / 6 + u / 7))))))
    exponential = tl.where(u < 0.1, series, -tl.log(1.0 - tl.minimum(u, 0.9999999)))
    return -tl.log(exponential)


@triton.jit
def _winners(logits, seed, position, best, where, vocabulary, nodes, stream, CHUNK: tl.constexpr):
    """Write the best token of one chunk: all tokens approximately first, then those close to the best exactly."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = _absorb(tl.cast(stream, tl.uint64), tl.load(seed + row // nodes).to(tl.uint64))
    state = _absorb(state, tl.load(position + row).to(tl.uint64))
    place = tl.arange(0, CHUNK)
    token = part * CHUNK + place
    rough = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=-float("inf")).to(tl.float32)
    rough += _rough_gumbel(_mix(state + token.to(tl.uint64) * 0x9E3779B97F4A7C15))
    leader = tl.max(rough, 0)
    floor = tl.maximum(leader - tl.maximum(1e-3, 1e-6 * tl.abs(leader)), -3.0e38)
    value = tl.cast(-float("inf"), tl.float64)
    winner = tl.cast(0, tl.int64)
    while leader >= floor:
        index = tl.argmax(rough, 0)
        candidate = (part * CHUNK + index).to(tl.int64)
        score = tl.load(logits + row * vocabulary + candidate).to(tl.float64)
        score += _gumbel(_mix(state + candidate.to(tl.uint64) * 0x9E3779B97F4A7C15))
        winner = tl.where(score > value, candidate, winner)
        value = tl.maximum(score, value)
        rough = tl.where(place == index, -float("inf"), rough)
        leader = tl.max(rough, 0)
    at = row * tl.num_programs(1) + part
    tl.store(best + at, value)
    tl.store(where + at, winner)


@triton.jit
def _coins(seed, committed, node, out, purpose, nodes, entries, stream, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    row = at // nodes
    state = _absorb(tl.cast(stream, tl.uint64), tl.load(seed + row, mask=inside, other=0).to(tl.uint64))
    state = _absorb(state, tl.load(committed + row, mask=inside, other=0).to(tl.uint64))
    state = _absorb(_absorb(state, tl.cast(purpose, tl.uint64)), tl.load(node + at, mask=inside, other=0).to(tl.uint64))
    coin = (state >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    tl.store(out + at, coin, mask=inside)


@triton.jit
def _rough(seed, position, out, vocabulary, nodes, stream, CHUNK: tl.constexpr):
    """Write the noise of one chunk, in float32."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = _absorb(tl.cast(stream, tl.uint64), tl.load(seed + row // nodes).to(tl.uint64))
    state = _absorb(state, tl.load(position + row).to(tl.uint64))
    token = part * CHUNK + tl.arange(0, CHUNK)
    noise = _rough_gumbel(_mix(state + token.to(tl.uint64) * 0x9E3779B97F4A7C15))
    tl.store(out + row * vocabulary + token, noise, mask=token < vocabulary)


@on_own_device
def fused_uniform(seed: Tensor, committed: Tensor, node: Tensor, purpose: int, stream: int) -> Tensor:
    """Return what `coins.uniform` returns, computed by one kernel."""
    out = torch.empty(node.shape, dtype=torch.float64, device=node.device)
    grid = (triton.cdiv(node.numel(), 128),)
    _coins[grid](seed, committed, node.contiguous(), out, purpose, node.shape[-1], node.numel(), stream, BLOCK=128)
    return out


@on_own_device
def race_winner(logits: Tensor, seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """Return the argmax (B, M) of logits (B, M, V) plus the noise of seed (B,), position (B, M) and stream."""
    batch, nodes, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _CHUNK)
    best = torch.empty(batch, nodes, parts, dtype=torch.float64, device=logits.device)
    where = torch.empty(batch, nodes, parts, dtype=torch.int64, device=logits.device)
    position = position.expand(batch, nodes).contiguous()
    grid = (batch * nodes, parts)
    _winners[grid](logits.contiguous(), seed, position, best, where, vocabulary, nodes, stream, CHUNK=_CHUNK)
    return where.gather(-1, best.argmax(-1, keepdim=True)).squeeze(-1)


@on_own_device
def rough_noise(seed: Tensor, position: Tensor, vocabulary: int, stream: int) -> Tensor:
    """Return the noise (B, M, V) of seed (B,), position (B, M) and stream, in float32."""
    out = torch.empty(*position.shape, vocabulary, device=seed.device)
    grid = (position.numel(), triton.cdiv(vocabulary, _CHUNK))
    _rough[grid](seed, position.contiguous(), out, vocabulary, position.shape[1], stream, CHUNK=_CHUNK)
    return out
