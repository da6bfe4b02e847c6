"""The bias and the penalties of all rows of a batch in one pass over the logits, and stop tokens that come too early.

The text of a node is the committed text of its row, of which there are tables, and its path, which is a few tokens.
Every program compares its tokens with the path.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device

__all__ = ["Bias", "Counts", "Repetition", "Stops", "penalised", "strike_stops"]

_CHUNK = 2048


class Bias(NamedTuple):
    """What is added to the logits of rows."""

    used: Tensor  # (B,) bool: the rows that use the setting
    values: Tensor  # (B, V) float64


class Repetition(NamedTuple):
    """The penalty for tokens of prompt or text."""

    used: Tensor  # (B,) bool
    seen: Tensor  # (B, V) bool: which tokens occur in prompt or text
    penalty: Tensor  # (B,) float64


class Counts(NamedTuple):
    """The penalties for generated tokens."""

    used: Tensor  # (B,) bool
    counts: Tensor  # (B, V) int32: how often each token was generated
    presence: Tensor  # (B,) float64
    frequency: Tensor  # (B,) float64, with the stride of `presence`


class Stops(NamedTuple):
    """The stop tokens of rows, and how many tokens must come before them."""

    used: Tensor  # (B,) bool
    tokens: Tensor  # (B, S) int64, padded with -1
    length: Tensor  # (B,) int64: tokens of prompt and text
    prompt_length: Tensor  # (B,) int64
    least_new: Tensor  # (B,) int64
    least: Tensor  # (B,) int64, with the stride of `least_new`


@triton.jit(do_not_specialize=["nodes"])
def _penalise(
    logits, paths, edited,
    biased, bias, repeats, seen, penalty, counted, counts, presence, frequency,
    vocabulary, nodes, used_step, bias_step, seen_step, penalty_step, counts_step, counted_step,
    BIASED: tl.constexpr, REPEATS: tl.constexpr, COUNTED: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the edited logits of one chunk. The operations and their order are those of the plain code."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    owner = row // nodes
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    value = tl.load(logits + row * vocabulary + token, mask=inside, other=0.0).to(tl.float32)
    times = tl.zeros([CHUNK], tl.int32)
    for depth in range(DEPTH):
        times += (tl.load(paths + row * DEPTH + depth) == token).to(tl.int32)  # padding equals no token
    if BIASED:
        used = tl.load(biased + owner * used_step) != 0
        if used:
            value += tl.load(bias + owner * bias_step + token, mask=inside, other=0.0).to(tl.float32)
    if REPEATS:
        used = tl.load(repeats + owner * used_step) != 0
        if used:
            factor = tl.load(penalty + owner * penalty_step).to(tl.float32)
            known = (tl.load(seen + owner * seen_step + token, mask=inside, other=0) != 0) | (times > 0)
            lower = tl.where(value < 0, value * factor, tl.div_rn(value, factor + tl.zeros_like(value)))
            value = tl.where(known, lower, value)
    if COUNTED:
        used = tl.load(counted + owner * used_step) != 0
        if used:
            once = tl.load(presence + owner * counted_step).to(tl.float32)
            each = tl.load(frequency + owner * counted_step).to(tl.float32)
            count = (tl.load(counts + owner * counts_step + token, mask=inside, other=0) + times).to(tl.float32)
            value = value - once * (count > 0).to(tl.float32) - each * count
    tl.store(edited + row * vocabulary + token, value, mask=inside)


@triton.jit(do_not_specialize=["nodes"])
def _strike(
    logits, paths, used, stops, length, prompt_length, least_new, least,
    vocabulary, nodes, used_step, stops_step, least_step, count, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Exclude the stop tokens of one node if its text is too short."""
    row = tl.program_id(0).to(tl.int64)
    owner = row // nodes
    if tl.load(used + owner * used_step) != 0:
        size = tl.load(length + owner)
        for depth in range(DEPTH):
            size += (tl.load(paths + row * DEPTH + depth) >= 0).to(tl.int64)
        early = size - tl.load(prompt_length + owner) < tl.load(least_new + owner * least_step)
        if early | (size < tl.load(least + owner * least_step)):
            place = tl.arange(0, WIDE)
            stop = tl.load(stops + owner * stops_step + place, mask=place < count, other=-1)
            real = (stop >= 0) & (stop < vocabulary)
            value = tl.load(logits + row * vocabulary + stop, mask=real, other=0.0)
            gone = tl.full([WIDE], -float("inf"), tl.float32)
            tl.store(logits + row * vocabulary + stop, gone, mask=real & (value == value))


@on_own_device
def penalised(
    logits: Tensor, paths: Tensor, bias: Bias | None, repetition: Repetition | None, counts: Counts | None
) -> Tensor:
    """Return logits (B, M, V) in float32 with the bias and the penalties of rows that use them, given the `paths`
    (B, M, D) of nodes; a setting may be None. Other rows keep their bits, and the result is a new tensor."""
    batch, nodes, vocabulary = logits.shape
    edited = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    flags = [one.used for one in (bias, repetition, counts) if one is not None]
    assert len({flag.stride(0) for flag in flags}) <= 1
    none = edited
    added = Bias(none, none) if bias is None else bias
    again = Repetition(none, none, none) if repetition is None else repetition
    often = Counts(none, none, none, none) if counts is None else counts
    assert often.presence.stride(0) == often.frequency.stride(0)
    _penalise[(batch * nodes, triton.cdiv(vocabulary, _CHUNK))](
        logits.contiguous(), paths.contiguous(), edited, *added, *again, *often,
        vocabulary, nodes, flags[0].stride(0) if flags else 0, added.values.stride(0),
        again.seen.stride(0), again.penalty.stride(0), often.counts.stride(0), often.presence.stride(0),
        BIASED=bias is not None, REPEATS=repetition is not None, COUNTED=counts is not None,
        DEPTH=paths.shape[-1], CHUNK=_CHUNK, enable_fp_fusion=False,
    )  # fmt: skip
    return edited


@on_own_device
def strike_stops(logits: Tensor, paths: Tensor, stops: Stops) -> None:
    """Exclude stop tokens in place, in contiguous logits (B, M, V) float32, where fewer than `least_new` tokens were
    generated or prompt and text have fewer than `least`, given the `paths` (B, M, D) of nodes."""
    assert logits.is_contiguous()
    assert stops.least_new.stride(0) == stops.least.stride(0)
    (batch, nodes, vocabulary), count = logits.shape, stops.tokens.shape[1]
    _strike[(batch * nodes,)](
        logits, paths.contiguous(), stops.used, stops.tokens, stops.length.contiguous(),
        stops.prompt_length.contiguous(), stops.least_new, stops.least,
        vocabulary, nodes, stops.used.stride(0), stops.tokens.stride(0), stops.least_new.stride(0), count,
        DEPTH=paths.shape[-1], WIDE=triton.next_power_of_2(max(count, 1)), num_warps=1,
    )  # fmt: skip
