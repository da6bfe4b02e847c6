"""Temperature, top-k, top-p, min-p and the point mass of all rows of a batch, in few passes over the logits.

The first pass scales the logits into a new tensor and notes the largest of every chunk; the last one excludes tokens in
place. In between the borders of top-k and top-p are searched, exactly (`spectr.kernels.threshold`) or roughly. The
rough search counts tokens by their distance to the largest logit, in classes of 1/32. It excludes whole classes, and
only those that the exact search would exclude too, whatever the places of tokens within their classes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device
from spectr.kernels.threshold import nucleus_border, rank_border

__all__ = ["Shaping", "shaped"]

_CHUNK = 2048
_CLASSES = 1024
_STEPS = tl.constexpr(32.0)  # classes per unit of logits
_LARGEST = tl.constexpr(1e36)  # logits beyond are taken for this, so that distances do not overflow


class Shaping(NamedTuple):
    """Settings of B rows, (B,) with any stride; None for a setting that no row uses."""

    greedy: Tensor  # bool: rows that are greedy, and so not filtered
    points: bool  # whether greedy rows become the point mass on their largest logit
    cold: Tensor | None  # bool: rows whose largest logit is subtracted first, because the division could overflow
    temperature: tuple[Tensor, Tensor] | None  # float64, and bool: the rows that are divided by it
    top_k: Tensor | None  # int64
    top_p: Tensor | None  # float64
    min_p: Tensor | None  # float64

    @property
    def searches(self) -> bool:
        """Whether borders are searched."""
        return self.top_k is not None or self.top_p is not None

    @property
    def excludes(self) -> bool:
        """Whether tokens may be excluded."""
        return self.searches or self.min_p is not None or self.points


class _Scaled(NamedTuple):
    """What the first pass writes for R nodes."""

    logits: Tensor  # (B, M, V) float32
    largest: Tensor  # (R, parts) float32: the largest logit of each chunk
    places: Tensor  # (R, parts) int32: its token, the first among equals
    counts: Tensor  # (R, classes) int32 zeros, if borders are searched roughly


@triton.jit(do_not_specialize=["nodes"])
def _scale(
    logits, colds, temperature, divides, scaled, largest, places, counts,
    vocabulary, nodes, cold_step, step, divide_step,
    COLD: tl.constexpr, DIVIDED: tl.constexpr, NOTED: tl.constexpr, ROUGH: tl.constexpr,
    CLASSES: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the scaled logits of one chunk; if `NOTED`, also the largest and its token, where NaN counts as −inf."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, CHUNK)
    token = part * CHUNK + at
    value = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=-float("inf")).to(tl.float32)
    if COLD:
        cold = tl.load(colds + row // nodes * cold_step) != 0
        if cold:  # rare, so every chunk looks at the whole row
            top = tl.cast(-float("inf"), tl.float32)
            for other in range(PARTS):
                place = other * CHUNK + at
                theirs = tl.load(logits + row * vocabulary + place, mask=place < vocabulary, other=-float("inf"))
                top = tl.maximum(top, tl.max(theirs.to(tl.float32), 0))
            value = value - top
    if DIVIDED:
        divided = tl.load(divides + row // nodes * divide_step) != 0
        if divided:
            divisor = tl.load(temperature + row // nodes * step).to(tl.float32)
            value = tl.div_rn(value, divisor + tl.zeros_like(value))
    tl.store(scaled + row * vocabulary + token, value, mask=token < vocabulary)
    if NOTED:
        known = tl.where((value == value) & (token < vocabulary), value, -float("inf"))
        tl.store(largest + row * PARTS + part, tl.max(known, 0))
        tl.store(places + row * PARTS + part, part * CHUNK + tl.argmax(known, 0))
    if ROUGH:
        one = tl.arange(0, CLASSES)
        tl.store(
            counts + row * CLASSES + one, tl.zeros([CLASSES], tl.int32), mask=one < tl.where(part == 0, CLASSES, 0)
        )


@triton.jit
def _top(largest, row, PARTS: tl.constexpr, WIDE: tl.constexpr):
    """Return the largest logit of a row."""
    part = tl.arange(0, WIDE)
    return tl.max(tl.load(largest + row * PARTS + part, mask=part < PARTS, other=-float("inf")), 0)


@triton.jit
def _first(largest, places, row, top, PARTS: tl.constexpr, WIDE: tl.constexpr):
    """Return the first token with the largest logit of a row."""
    part = tl.arange(0, WIDE)
    most = tl.load(largest + row * PARTS + part, mask=part < PARTS, other=-float("inf"))
    place = tl.load(places + row * PARTS + part, mask=part < PARTS, other=2147483647)
    return tl.min(tl.where(most == top, place, 2147483647), 0)


@triton.jit
def _least_likely(top, share):
    """Return in float64 the least logit with a probability of at least `share` times the largest one."""
    share = share.to(tl.float32).to(tl.float64)
    border = top.to(tl.float64) + tl.log(tl.maximum(share, 1e-300))
    return tl.where(share > 0.0, border, -float("inf"))


@triton.jit(do_not_specialize=["nodes"])
def _exclude(
    scaled, largest, places, greedy, ranks, masses, min_p, vocabulary, nodes, greedy_step, min_p_step,
    RANKED: tl.constexpr, NUCLEUS: tl.constexpr, SHARED: tl.constexpr, POINTS: tl.constexpr,
    PARTS: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Exclude the tokens of one chunk below the borders of its row, or all but the first of the largest ones."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocabulary
    if tl.load(greedy + row // nodes * greedy_step) != 0:
        if POINTS:
            best = _first(largest, places, row, _top(largest, row, PARTS, WIDE), PARTS, WIDE)
            mass = tl.where(token == best, 0.0, -float("inf"))
            tl.store(scaled + row * vocabulary + token, mass, mask=inside)
    else:
        border = tl.cast(-float("inf"), tl.float64)
        if RANKED:
            border = tl.maximum(border, tl.load(ranks + row).to(tl.float64))
        if NUCLEUS:
            border = tl.maximum(border, tl.load(masses + row).to(tl.float64))
        if SHARED:
            share = tl.load(min_p + row // nodes * min_p_step)
            border = tl.maximum(border, _least_likely(_top(largest, row, PARTS, WIDE), share))
        if border > -float("inf"):
            value = tl.load(scaled + row * vocabulary + token, mask=inside, other=0.0)
            below = value.to(tl.float64) < border
            tl.store(
                scaled + row * vocabulary + token, tl.full([CHUNK], -float("inf"), tl.float32), mask=inside & below
            )


@triton.jit
def _finite(value):
    return tl.maximum(tl.minimum(value, _LARGEST), -_LARGEST)


@triton.jit
def _distance(value, top, CLASSES: tl.constexpr):
    """Return the class of a logit by its distance to the largest one; the last class has all that are far away, or
    NaN."""
    steps = (_finite(top) - _finite(value)) * _STEPS
    near = (value == value) & (value > -float("inf")) & (steps < CLASSES - 1.0)
    return tl.where(near, steps, CLASSES - 1.0).to(tl.int32)


@triton.jit
def _limits(
    greedy, top_k, top_p, owner, vocabulary, greedy_step, rank_step, mass_step,
    RANKED: tl.constexpr, NUCLEUS: tl.constexpr,
):  # fmt: skip
    """Return the number of tokens to keep, and the probability that may be excluded: the vocabulary and 0 for a row
    that is not filtered."""
    count, spare = tl.cast(vocabulary, tl.int64), tl.cast(0.0, tl.float32)
    if tl.load(greedy + owner * greedy_step) == 0:
        if RANKED:
            given = tl.load(top_k + owner * rank_step)
            count = tl.where((given >= 1) & (given < vocabulary), given, count)
        if NUCLEUS:
            mass = tl.load(top_p + owner * mass_step)
            spare = tl.where(mass.to(tl.float32) < 1.0, (1.0 - mass).to(tl.float32), spare)
    return count, spare


@triton.jit(do_not_specialize=["nodes"])
def _count(
    scaled, largest, counts, greedy, top_k, top_p, vocabulary, nodes, greedy_step, rank_step, mass_step,
    RANKED: tl.constexpr, NUCLEUS: tl.constexpr,
    CLASSES: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count the tokens of one chunk by class; those that are far away are not counted."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, spare = _limits(
        greedy, top_k, top_p, row // nodes, vocabulary, greedy_step, rank_step, mass_step, RANKED, NUCLEUS
    )
    if (count < vocabulary) | (spare > 0.0):
        token = part * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(scaled + row * vocabulary + token, mask=token < vocabulary, other=-float("inf"))
        found = _distance(value, _top(largest, row, PARTS, WIDE), CLASSES)
        sums = tl.histogram(found, CLASSES)
        one = tl.arange(0, CLASSES)
        tl.atomic_add(counts + row * CLASSES + one, sums, mask=(sums != 0) & (one < CLASSES - 1), sem="relaxed")


@triton.jit
def _last_class(counts, count, spare, RANKED: tl.constexpr, NUCLEUS: tl.constexpr, CLASSES: tl.constexpr):
    """Return the last class that is kept. The largest logit is in the first class, so it is never excluded.

    A class is beyond the nucleus if it and those after it have at most the spare share of the sum. All logits of a
    class are taken for its largest one there, and in the sum for its smallest one."""
    one = tl.arange(0, CLASSES)
    known = tl.load(counts + one)
    last = tl.cast(CLASSES - 1, tl.int32)
    if RANKED:
        above = tl.cumsum(known, 0) - known
        last = tl.max(tl.where(above < count, one, 0), 0)
    if NUCLEUS:
        weight = tl.where(one <= last, known.to(tl.float32) * tl.exp(-one.to(tl.float32) / _STEPS), 0.0)
        least = tl.sum(weight, 0) * 0.9691  # below exp(−1/32), also after rounding
        within = tl.cumsum(weight, 0, reverse=True) > spare * least
        nucleus = tl.max(tl.where(within & (known > 0), one, 0), 0)
        last = tl.where((spare > 0.0) & (least > 0.0), tl.minimum(nucleus, last), last)
    return last


@triton.jit(do_not_specialize=["nodes"])
def _exclude_roughly(
    scaled, largest, counts, greedy, top_k, top_p, min_p,
    vocabulary, nodes, greedy_step, rank_step, mass_step, min_p_step,
    RANKED: tl.constexpr, NUCLEUS: tl.constexpr, SHARED: tl.constexpr,
    CLASSES: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Exclude the tokens of one chunk beyond the last class that is kept, and by min-p."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    owner = row // nodes
    count, spare = _limits(greedy, top_k, top_p, owner, vocabulary, greedy_step, rank_step, mass_step, RANKED, NUCLEUS)
    top = _top(largest, row, PARTS, WIDE)
    last, border = tl.cast(CLASSES - 1, tl.int32), tl.cast(-float("inf"), tl.float64)
    if (count < vocabulary) | (spare > 0.0):
        last = _last_class(counts + row * CLASSES, count, spare, RANKED, NUCLEUS, CLASSES)
    if SHARED:
        filtered = tl.load(greedy + owner * greedy_step) == 0
        border = _least_likely(top, tl.where(filtered, tl.load(min_p + owner * min_p_step), 0.0))
    if (last < CLASSES - 1) | (border > -float("inf")):
        token = part * CHUNK + tl.arange(0, CHUNK)
        inside = token < vocabulary
        value = tl.load(scaled + row * vocabulary + token, mask=inside, other=-float("inf"))
        gone = (_distance(value, top, CLASSES) > last) | (value.to(tl.float64) < border)
        tl.store(scaled + row * vocabulary + token, tl.full([CHUNK], -float("inf"), tl.float32), mask=inside & gone)


def _scaled(logits: Tensor, settings: Shaping, rough: bool) -> _Scaled:
    batch, nodes, vocabulary = logits.shape
    logits, rows, parts = logits.contiguous(), batch * nodes, triton.cdiv(vocabulary, _CHUNK)
    scaled = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    largest = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    counts = torch.empty(rows, _CLASSES if rough else 0, dtype=torch.int32, device=logits.device)
    cold = settings.greedy if settings.cold is None else settings.cold
    temperature, divides = settings.temperature or (settings.greedy, settings.greedy)
    _scale[(rows, parts)](
        logits, cold, temperature, divides, scaled, largest, places, counts,
        vocabulary, nodes, cold.stride(0), temperature.stride(0), divides.stride(0),
        COLD=settings.cold is not None, DIVIDED=settings.temperature is not None, NOTED=settings.excludes,
        ROUGH=rough, CLASSES=_CLASSES, PARTS=parts, CHUNK=_CHUNK,
    )  # fmt: skip
    return _Scaled(scaled, largest, places, counts)


def _keep_exactly(scaled: _Scaled, settings: Shaping) -> None:
    """Exclude what the filters exclude, and leave the point mass in greedy rows."""
    vocabulary, nodes, (rows, parts) = scaled.logits.shape[-1], scaled.logits.shape[1], scaled.largest.shape
    top_k, top_p, min_p = settings.top_k, settings.top_p, settings.min_p
    ranks = None if top_k is None else rank_border(scaled.logits, top_k)
    masses = None if top_p is None else nucleus_border(scaled.logits, top_p, ranks)  # of what top-k keeps
    share, nothing = settings.greedy if min_p is None else min_p, scaled.largest
    _exclude[(rows, parts)](
        scaled.logits, scaled.largest, scaled.places, settings.greedy,
        nothing if ranks is None else ranks, nothing if masses is None else masses, share,
        vocabulary, nodes, settings.greedy.stride(0), share.stride(0),
        RANKED=ranks is not None, NUCLEUS=masses is not None, SHARED=min_p is not None, POINTS=settings.points,
        PARTS=parts, WIDE=triton.next_power_of_2(parts), CHUNK=_CHUNK,
    )  # fmt: skip


def _keep_roughly(scaled: _Scaled, settings: Shaping) -> None:
    """Exclude about what the filters exclude."""
    vocabulary, nodes, (rows, parts) = scaled.logits.shape[-1], scaled.logits.shape[1], scaled.largest.shape
    greedy = settings.greedy
    top_k, top_p, min_p = (greedy if one is None else one for one in (settings.top_k, settings.top_p, settings.min_p))
    kinds = {"RANKED": settings.top_k is not None, "NUCLEUS": settings.top_p is not None, "CLASSES": _CLASSES}
    sizes = {"PARTS": parts, "WIDE": triton.next_power_of_2(parts), "CHUNK": _CHUNK}
    steps = greedy.stride(0), top_k.stride(0), top_p.stride(0)
    _count[(rows, parts)](
        scaled.logits, scaled.largest, scaled.counts, greedy, top_k, top_p, vocabulary, nodes, *steps, **kinds, **sizes
    )
    _exclude_roughly[(rows, parts)](
        scaled.logits, scaled.largest, scaled.counts, greedy, top_k, top_p, min_p,
        vocabulary, nodes, *steps, min_p.stride(0), SHARED=settings.min_p is not None, **kinds, **sizes,
    )  # fmt: skip


@on_own_device
def shaped(logits: Tensor, settings: Shaping, *, roughly: bool = False) -> Tensor:
    """Return logits (B, M, V) in float32 after temperature and filters; excluded tokens are −inf. With `roughly`, top-k
    and top-p may keep a few tokens more than they should."""
    roughly = roughly and settings.searches and not settings.points
    scaled = _scaled(logits, settings, roughly)
    if roughly:
        _keep_roughly(scaled, settings)
    elif settings.excludes:
        _keep_exactly(scaled, settings)
    return scaled.logits
