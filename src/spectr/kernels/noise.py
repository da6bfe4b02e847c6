"""Race noise and its winner in one pass over the logits: `coins.gumbel` and an argmax, without writing the noise."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["race_winner"]

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
    """−log(−log1p(−u)); for small u by series, where 1 − u would round."""
    u = ((state >> 11).to(tl.int64).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * 0.2))))
    exponential = tl.where(u < 1e-4, series, -tl.log(1.0 - tl.minimum(u, 0.9999999999999999)))
    return -tl.log(exponential)


@triton.jit
def _winners(logits, seed, position, best, where, vocabulary, nodes, stream, CHUNK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    state = _absorb(tl.cast(stream, tl.uint64), tl.load(seed + row // nodes).to(tl.uint64))
    state = _absorb(state, tl.load(position + row).to(tl.uint64))
    token = part * CHUNK + tl.arange(0, CHUNK)
    score = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=-float("inf")).to(tl.float64)
    score += _gumbel(_mix(state + token.to(tl.uint64) * 0x9E3779B97F4A7C15))
    value, index = tl.max(score, 0, return_indices=True)
    at = row * tl.num_programs(1) + part
    tl.store(best + at, value)
    tl.store(where + at, part * CHUNK + index)


def race_winner(logits: Tensor, seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """argmax of logits (B, M, V) plus noise of (seed (B,), position (B, M)) in a stream: (B, M) int64."""
    batch, nodes, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _CHUNK)
    best = torch.empty(batch, nodes, parts, dtype=torch.float64, device=logits.device)
    where = torch.empty(batch, nodes, parts, dtype=torch.int64, device=logits.device)
    position = position.expand(batch, nodes).contiguous()
    grid = (batch * nodes, parts)
    _winners[grid](logits.contiguous(), seed, position, best, where, vocabulary, nodes, stream, CHUNK=_CHUNK)
    return where.gather(-1, best.argmax(-1, keepdim=True)).squeeze(-1)
