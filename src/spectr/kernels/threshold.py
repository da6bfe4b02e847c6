"""The borders of top-k and top-p, found without sorting.

Both are the logit at which a running weight, largest logits first, reaches a target. For top-k every token weighs 1,
for top-p (the nucleus) its probability. Two passes sum the weights of classes of logits, first coarse classes and then
those within the class that reaches the target. The tokens of the class that is left, a few hundred for typical logits,
are collected, and one program per row finds the border among them, digit by digit, in integer keys with the order of
the logits. Probabilities are integers that add up to about 2^61, so their sums do not depend on the order of the
programs, and differ from those of the softmax by less than 1e-12. If nearly all logits of a row are equal, more tokens
are collected, and it takes longer.

The nucleus can be that of the tokens from a border on. They are told apart where logits are loaded, so the others need
not be excluded before.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spectr.kernels import on_own_device
from spectr.kernels.best import _key

__all__ = ["nucleus_border", "rank_border"]

# Bits of a digit, and tokens per program; tuned on an H200.
_RANK = {"BITS": 8, "CHUNK": 2048, "num_warps": 4}
_NUCLEUS = {"BITS": 4, "CHUNK": 2048, "num_warps": 4}
_FINISH = {"CHUNK": 2048, "num_warps": 8}
_LARGEST = tl.constexpr(3.4028234663852886e38)
_KEYS = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _limits(bound, vocabulary, NUCLEUS: tl.constexpr):
    """Return whether a bound excludes anything; a mass that is NaN does not."""
    return bound < 1.0 if NUCLEUS else (bound >= 1) & (bound < vocabulary)


@triton.jit
def _order(value):
    """Return keys that, as unsigned integers, have the order of the values. Both zeros have the same key."""
    return _key(tl.where(value == 0.0, 0.0, value)) ^ -2147483648


@triton.jit
def _logit(key):
    """Return the value that has a key."""
    signed = key ^ -2147483648
    return (signed ^ ((signed >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _exponent(value):
    """Return the logit for the softmax: NaN becomes −inf, and +inf the largest finite value."""
    return tl.where(value == value, tl.minimum(value, _LARGEST), -float("inf"))


@triton.jit
def _loaded(logits, floors, row, token, vocabulary, FLOORED: tl.constexpr):
    """Load logits of a row; those below its floor become −inf."""
    value = tl.load(logits + row * vocabulary + token, mask=token < vocabulary, other=-float("inf"))
    if FLOORED:
        value = tl.where(value < tl.load(floors + row), -float("inf"), value)
    return value


@triton.jit(do_not_specialize=["nodes"])
def _peaks(logits, floors, bounds, peaks, vocabulary, nodes, step, FLOORED: tl.constexpr, CHUNK: tl.constexpr):
    """Write the largest logit of one chunk and the sum of exp(logit − largest), in float32, as they only scale
    weights."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if not _limits(tl.load(bounds + row // nodes * step), vocabulary, True):
        return
    token = part * CHUNK + tl.arange(0, CHUNK)
    value = _exponent(_loaded(logits, floors, row, token, vocabulary, FLOORED))
    most = tl.maximum(tl.max(value, 0), -_LARGEST)  # finite, so that a chunk without tokens has weight 0
    place = 2 * (row * tl.num_programs(1) + part)
    tl.store(peaks + place, most)
    tl.store(peaks + place + 1, tl.sum(tl.exp(value - most), 0))


@triton.jit(do_not_specialize=["nodes", "parts"])
def _measure(bounds, peaks, measures, vocabulary, nodes, step, parts, PARTS: tl.constexpr, CLASSES: tl.constexpr):
    """Write for a row its largest logit, the factor from exp(logit − largest) to integer weights, and the number of
    classes per unit of logits.

    Tokens more than log(V / ((1 − mass) · sum)) below the largest have less than 1 − mass together, so the border is
    above them.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    mass = tl.maximum(tl.load(bounds + row // nodes * step), 0.0)
    if not _limits(mass, vocabulary, True):
        return
    place = 2 * (row * parts + part)
    most = tl.load(peaks + place, mask=part < parts, other=-_LARGEST).to(tl.float64)
    weight = tl.load(peaks + place + 1, mask=part < parts, other=0.0).to(tl.float64)
    top = tl.max(most, 0)
    total = tl.maximum(tl.sum(weight * tl.exp(most - top), 0), 1.0)
    reach = tl.log(vocabulary / ((1.0 - mass) * total))
    tl.store(measures + 3 * row, top)
    tl.store(measures + 3 * row + 1, 2305843009213693952.0 / total)
    tl.store(measures + 3 * row + 2, CLASSES / tl.maximum(reach, 0.01))


@triton.jit
def _measured(measures, row, NUCLEUS: tl.constexpr):
    """Load what `_measure` wrote; top-k does not need it."""
    if NUCLEUS:
        measures += 3 * row
        top, scale, steps = tl.load(measures), tl.load(measures + 1), tl.load(measures + 2)
    else:
        top, scale, steps = 0.0, 0.0, 0.0
    return top, scale, steps


@triton.jit
def _class(value, top, steps, NUCLEUS: tl.constexpr, CLASSES: tl.constexpr):
    """Return the class of a logit, larger for larger logits: by distance to the largest, or by the key's first bits."""
    if NUCLEUS:
        below = tl.minimum((top - _exponent(value).to(tl.float64)) * steps, CLASSES - 1.0)
        found = CLASSES - 1 - below.to(tl.int32)
    else:
        found = (_order(value) >> 16) & (CLASSES - 1)
    return found


@triton.jit
def _weights(value, digit, top, scale, NUCLEUS: tl.constexpr, BITS: tl.constexpr):
    """Return the sum of the weights for each digit; logits with a digit below 0 do not count."""
    if NUCLEUS:
        share = (tl.exp(_exponent(value).to(tl.float64) - top) * scale).to(tl.int64)
        sums = tl.zeros([1 << BITS], tl.int64)
        for one in tl.static_range(1 << BITS):  # without the loop, Triton computes the weights again for every digit
            weight = tl.sum(tl.where(digit == one, share, 0), 0)
            sums = tl.where(tl.arange(0, 1 << BITS) == one, weight, sums)
    else:
        sums = tl.histogram(digit, 1 << BITS, mask=digit >= 0).to(tl.int64)
    return sums


@triton.jit
def _target(tally, bound, NUCLEUS: tl.constexpr, BITS: tl.constexpr):
    """Return the weight to reach, at least 1, so that the largest logit always stays. The first tally has the total."""
    target = bound
    if NUCLEUS:
        total = tl.sum(tl.load(tally + tl.arange(0, 1 << BITS)), 0)
        target = tl.ceil(tl.maximum(bound, 0.0) * total.to(tl.float64)).to(tl.int64)
        target = tl.maximum(tl.minimum(target, total), 1)
    return target


@triton.jit
def _reached(sums, above, target, BITS: tl.constexpr):
    """Return the digit in which the weight, largest first, reaches the target, and the weight above that digit."""
    digit = tl.arange(0, 1 << BITS)
    reached = above + tl.cumsum(sums, 0, reverse=True)
    reaches = (reached >= target) & (reached - sums < target)  # one digit, or none if all weights are 0
    return tl.sum(tl.where(reaches, digit, 0), 0), tl.sum(tl.where(reaches, reached - sums, 0), 0)


@triton.jit
def _narrowed(tally, state, bound, turn, NUCLEUS: tl.constexpr, BITS: tl.constexpr):
    """Return the classes that are left after `turn` passes, as their common first digits, and the weight above them."""
    first, above = tl.load(state + 2 * turn - 2), tl.load(state + 2 * turn - 1)
    sums = tl.load(tally + ((turn - 1) << BITS) + tl.arange(0, 1 << BITS))
    digit, above = _reached(sums, above, _target(tally, bound, NUCLEUS, BITS), BITS)
    return (first << BITS) + digit, above


@triton.jit(do_not_specialize=["nodes", "turn"])
def _tally(
    logits, floors, bounds, measures, tally, state, flawed, vocabulary, nodes, step, turn,
    FLOORED: tl.constexpr, NUCLEUS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add the weights of one chunk to a row's tally, by the next digit of the classes that are left."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    bound = tl.load(bounds + row // nodes * step)
    if not _limits(bound, vocabulary, NUCLEUS):
        return
    tally, state = tally + (row * 2 << BITS), state + row * 6
    token = part * CHUNK + tl.arange(0, CHUNK)
    value = _loaded(logits, floors, row, token, vocabulary, FLOORED)
    first = tl.cast(0, tl.int64)
    if turn > 0:
        first, above = _narrowed(tally, state, bound, turn, NUCLEUS, BITS)
        if part == 0:
            tl.store(state + 2, first)
            tl.store(state + 3, above)
    elif tl.max((value != value).to(tl.int32), 0) != 0:
        tl.store(flawed + row, tl.cast(1, tl.int64))
    top, scale, steps = _measured(measures, row, NUCLEUS)
    known = _class(value, top, steps, NUCLEUS, 1 << 2 * BITS) >> (BITS * (1 - turn))
    digit = tl.where(known >> BITS == first, known & ((1 << BITS) - 1), -1)
    if tl.max(digit, 0) >= 0:
        sums = _weights(value, digit, top, scale, NUCLEUS, BITS)
        tl.atomic_add(tally + (turn << BITS) + tl.arange(0, 1 << BITS), sums, mask=sums != 0, sem="relaxed")


@triton.jit(do_not_specialize=["nodes"])
def _collect(
    logits, floors, bounds, measures, tally, state, kept, held, vocabulary, nodes, step,
    FLOORED: tl.constexpr, NUCLEUS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Append the keys of one chunk that are in the class that is left to a row's `kept`, in any order. `held` has their
    number, the largest key, and the largest of (last key − key)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    bound = tl.load(bounds + row // nodes * step)
    if not _limits(bound, vocabulary, NUCLEUS):
        return
    token = part * CHUNK + tl.arange(0, CHUNK)
    value = _loaded(logits, floors, row, token, vocabulary, FLOORED)
    first, above = _narrowed(tally + (row * 2 << BITS), state + row * 6, bound, 2, NUCLEUS, BITS)
    if part == 0:
        tl.store(state + row * 6 + 4, first)
        tl.store(state + row * 6 + 5, above)
    top, _, steps = _measured(measures, row, NUCLEUS)
    within = (token < vocabulary) & (_class(value, top, steps, NUCLEUS, 1 << 2 * BITS) == first)
    count = tl.sum(within.to(tl.int32), 0)
    if count > 0:
        key = _order(value)
        whole = key.to(tl.int64) & _KEYS
        start = tl.atomic_add(held + 3 * row, count.to(tl.int64), sem="relaxed")
        tl.atomic_max(held + 3 * row + 1, tl.max(tl.where(within, whole, 0), 0), sem="relaxed")
        tl.atomic_max(held + 3 * row + 2, tl.max(tl.where(within, _KEYS - whole, 0), 0), sem="relaxed")
        place = start + tl.cumsum(within.to(tl.int32), 0) - 1
        tl.store(kept + row * vocabulary + place, key, mask=within)


@triton.jit(do_not_specialize=["nodes"])
def _finish(
    bounds, measures, tally, state, flawed, kept, held, border, vocabulary, nodes, step,
    NUCLEUS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the border of one row, found among the collected keys. Digits that all of them share are skipped."""
    row = tl.program_id(0).to(tl.int64)
    bound = tl.load(bounds + row // nodes * step)
    found = tl.cast(-float("inf"), tl.float32)
    if _limits(bound, vocabulary, NUCLEUS) & (tl.load(flawed + row) == 0):
        top, scale, _ = _measured(measures, row, NUCLEUS)
        target = _target(tally + (row * 2 << BITS), bound, NUCLEUS, BITS)
        above = tl.load(state + row * 6 + 5)
        count = tl.load(held + 3 * row).to(tl.int32)
        low = tl.load(held + 3 * row + 1)
        spread = low ^ (_KEYS - tl.load(held + 3 * row + 2))
        shift = tl.cast(32 - BITS, tl.int32)
        while (shift >= 0) & ((spread >> tl.maximum(shift, 0)) == 0):
            shift -= BITS
        low = (low >> (shift + BITS)) << (shift + BITS)
        while shift >= 0:
            sums = tl.zeros([1 << BITS], tl.int64)
            for start in range(0, count, CHUNK):
                place = start + tl.arange(0, CHUNK)
                key = tl.load(kept + row * vocabulary + place, mask=place < count, other=0)
                known = (key.to(tl.int64) & _KEYS) >> shift
                left = (known >> BITS) == (low >> shift >> BITS)  # padding has key 0, below those of all values
                digit = tl.where(left, (known & ((1 << BITS) - 1)).to(tl.int32), -1)
                sums += _weights(_logit(key), digit, top, scale, NUCLEUS, BITS)
            digit, above = _reached(sums, above, target, BITS)
            low += digit.to(tl.int64) << shift
            shift -= BITS
        found = _logit(low.to(tl.int32))
    tl.store(border + row, found)


def _search(logits: Tensor, bounds: Tensor, nucleus: bool, floors: Tensor | None = None) -> Tensor:
    batch, nodes, vocabulary = logits.shape
    logits, rows, step = logits.contiguous(), batch * nodes, bounds.stride(0)
    how = _NUCLEUS if nucleus else _RANK
    parts, kind = triton.cdiv(vocabulary, how["CHUNK"]), {"NUCLEUS": nucleus, "BITS": how["BITS"]}
    # (R, 2, digits) weights; (R, 3, 2) first digits and weight above; (R, 3) collected keys; (R,) is there a NaN
    sizes = [rows * 2 << how["BITS"], rows * 6, rows * 3, rows]
    tally, state, held, flawed = torch.zeros(sum(sizes), dtype=torch.int64, device=logits.device).split(sizes)
    kept = torch.empty(rows, vocabulary, dtype=torch.int32, device=logits.device)
    border = torch.empty(batch, nodes, dtype=torch.float32, device=logits.device)
    measures = border
    least, floored = (border, False) if floors is None else (floors.contiguous(), True)
    if nucleus:
        peaks = torch.empty(rows, parts, 2, dtype=torch.float32, device=logits.device)
        measures = torch.empty(rows, 3, dtype=torch.float64, device=logits.device)
        wide, classes, chunk = triton.next_power_of_2(parts), 1 << 2 * how["BITS"], how["CHUNK"]
        _peaks[(rows, parts)](logits, least, bounds, peaks, vocabulary, nodes, step, FLOORED=floored, CHUNK=chunk)
        _measure[(rows,)](
            bounds, peaks, measures, vocabulary, nodes, step, parts, PARTS=wide, CLASSES=classes, num_warps=1
        )
    for turn in range(2):
        _tally[(rows, parts)](
            logits, least, bounds, measures, tally, state, flawed, vocabulary, nodes, step, turn,
            FLOORED=floored, NUCLEUS=nucleus, **how,
        )  # fmt: skip
    _collect[(rows, parts)](
        logits, least, bounds, measures, tally, state, kept, held, vocabulary, nodes, step,
        FLOORED=floored, NUCLEUS=nucleus, **how,
    )  # fmt: skip
    _finish[(rows,)](
        bounds, measures, tally, state, flawed, kept, held, border, vocabulary, nodes, step, **kind, **_FINISH
    )
    return border


@on_own_device
def rank_border(logits: Tensor, count: Tensor) -> Tensor:
    """Return the `count`-th (B,) int64 largest of logits (B, M, V) float32, as (B, M); −inf if the count is below 1 or
    at least V, or if a logit is NaN."""
    return _search(logits, count, nucleus=False)


@on_own_device
def nucleus_border(logits: Tensor, mass: Tensor, floors: Tensor | None = None) -> Tensor:
    """Return the smallest logit (B, M) of the smallest set of most likely tokens whose probabilities sum to at least
    `mass` (B,) float64, for logits (B, M, V) float32; −inf if the mass is at least 1, if all tokens are excluded, or if
    a logit is NaN. Tokens below `floors` (B, M), if given, count as excluded."""
    return _search(logits, mass, nucleus=True, floors=floors)
