"""The formats of packed weights, and code that converts a block of them to floats.

The kinds are those of GGUF files, and int8 with one scale for each row. A tile has as many rows of a matrix as a vector
has lanes, with the words of the rows interleaved: word w of all rows, then word w + 1 of all rows. A tile holds exactly
the bytes of its rows, and one load reads the same word of each. Every lane belongs to one row of the matrix, so a row's
sum never crosses lanes, and its order does not depend on the width of the processor's vectors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectr.kernels.cpu.emit import F32, I8, I16, I32, I64, Body, vector

__all__ = ["GROUP", "KINDS", "Kind", "Part", "interleaved", "separated"]

GROUP = 32
"""Weights whose products with the inputs are summed before a scale is applied."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Part:
    """Codes of one tile that share scales: the index of each in its group, and a function that emits it."""

    codes: list[tuple[int, Callable[[], Any]]]
    scale: Any  # None: 1
    minimum: Any = None  # added to every weight; None: 0
    is_shifted: bool = False  # the code at index p is multiplied by 2^(8 (p mod 4))


Opened = Callable[[Any], Iterator[Part]]
"""Yields the parts of group g of a block; g is a run-time value."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One format of packed weights."""

    name: str
    number: int  # number of the type in GGUF files; negative: not a GGUF type
    block: int  # weights in a block
    pieces: tuple[tuple[int, int], ...]  # (bytes of a word, words) of a block, in the order of the file
    open: Callable[[Body, int, Any], Opened]  # takes (body, lanes, address of a block)
    prefix: int = 0  # bytes before a row's first block: a scale for the whole row

    @property
    def bytes(self) -> int:
        """The bytes of one block of a row."""
        return sum(width * count for width, count in self.pieces)

    @property
    def groups(self) -> int:
        """The number of groups in a block."""
        return self.block // GROUP


def interleaved(kind: Kind, rows: Bytes, lanes: int) -> Bytes:
    """Return rows (R, row bytes) as tiles (⌈R / lanes⌉, lanes · row bytes), padded with rows of zeros."""
    count, size = rows.shape
    tiles = -(-count // lanes)
    if count % lanes:
        rows = np.concatenate([rows, np.zeros((tiles * lanes - count, size), np.uint8)])
    rows = rows.reshape(tiles, lanes, size)
    made = np.empty((tiles, size * lanes), np.uint8)
    for start, stop, width in _pieces(kind, size):
        part = rows[:, :, start:stop].reshape(tiles, lanes, -1, width).swapaxes(1, 2)
        made[:, start * lanes : stop * lanes] = part.reshape(tiles, -1)
    return made


def separated(kind: Kind, tiles: Bytes, lanes: int) -> Bytes:
    """Return the rows (R, row bytes) of tiles."""
    count, size = tiles.shape[0], tiles.shape[1] // lanes
    made = np.empty((count, lanes, size), np.uint8)
    for start, stop, width in _pieces(kind, size):
        part = tiles[:, start * lanes : stop * lanes].reshape(count, -1, lanes, width).swapaxes(1, 2)
        made[:, :, start:stop] = part.reshape(count, lanes, -1)
    return made.reshape(-1, size)


def _pieces(kind: Kind, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of each piece of a row, and the bytes of its words."""
    if kind.prefix:
        yield 0, kind.prefix, kind.prefix
    start = kind.prefix
    while start < size:
        for width, count in kind.pieces:
            yield start, start + width * count, width
            start += width * count


def _words(body: Body, lanes: int, block: Any, offset: Any, width: int) -> Any:
    """Load the word at byte `offset` of every row's block."""
    kind = vector({1: I8, 2: I16, 4: I32}[width], lanes)
    return body.load(kind, block, body.mul(offset, lanes), width)


def _halves(body: Body, lanes: int, block: Any, offset: int) -> Any:
    return body.halves(_words(body, lanes, block, offset, 2))


def _negated(body: Body, values: Any, factor: float) -> Any:
    return body.builder.fmul(values, body.number(-factor, values.type.count))


def _bytes_of(body: Body, words: Sequence[tuple[int, Callable[[], Any]]]) -> list[tuple[int, Callable[[], Any]]]:
    """Return the four codes of each word, one in each byte and below 128. `words` has the index of the first code and a
    function that emits the word. Codes are not shifted down: byte b gives the code times 2^(8 b), and the inputs are
    scaled accordingly."""

    def code(make: Callable[[], Any], byte: int, made: list[Any]) -> Callable[[], Any]:
        def read() -> Any:
            if not made:
                made.append(make())
            return body.floats(body.mask(made[0], 127 << (8 * byte)))

        return read

    found = []
    for place, make in words:
        made: list[Any] = []  # the word, once its first byte is read
        found += [(place + byte, code(make, byte, made)) for byte in range(4)]
    return found


def _no_scale(width: int, make: Callable[[Body, Any], Any]) -> Callable[[Body, int, Any], Opened]:
    """Return the opener of a kind whose words are the weights themselves."""

    def open_(body: Body, lanes: int, block: Any) -> Opened:
        def parts(_: Any) -> Iterator[Part]:
            def code(at: int) -> Callable[[], Any]:
                return lambda: make(body, _words(body, lanes, block, width * at, width))

            yield Part([(at, code(at)) for at in range(GROUP)], None)

        return parts

    return open_


def _q8_0(body: Body, lanes: int, block: Any) -> Opened:
    def parts(_: Any) -> Iterator[Part]:
        def code(at: int) -> Callable[[], Any]:
            return lambda: body.floats(_words(body, lanes, block, 2 + at, 1), signed=True)

        yield Part([(at, code(at)) for at in range(GROUP)], _halves(body, lanes, block, 0))

    return parts


_NIBBLES, _ONES, _TWOS = 0x0F0F0F0F, 0x01010101, 0x03030303
_SPREAD = 0x00204081
"""Multiplying four bits by this puts bit b at bit 8 b (and others elsewhere)."""


def _four_or_five(*, has_minimum: bool, bits: int) -> Callable[[Body, int, Any], Opened]:
    """Return the opener of Q4_0, Q4_1, Q5_0 or Q5_1: byte i of 16 holds codes i and 16 + i, and the fifth bits are in a
    separate word. A block without a stored minimum has −2^(bits − 1) times its scale."""

    def open_(body: Body, lanes: int, block: Any) -> Opened:
        def parts(_: Any) -> Iterator[Part]:
            first = 4 if has_minimum else 2
            scale = _halves(body, lanes, block, 0)
            least = _halves(body, lanes, block, 2) if has_minimum else _negated(body, scale, 1 << (bits - 1))
            high = _words(body, lanes, block, first, 4) if bits == 5 else None
            pairs = [_words(body, lanes, block, first + (0 if high is None else 4) + 4 * at, 4) for at in range(4)]

            def word(at: int, half: int) -> Callable[[], Any]:
                def make() -> Any:
                    low = body.mask(body.shift_right(pairs[at], 4 * half), _NIBBLES)
                    if high is None:
                        return low
                    four = body.mask(body.shift_right(high, 16 * half + 4 * at), 15)
                    fifth = body.mask(body.builder.mul(four, body.words(_SPREAD, lanes)), _ONES)
                    return body.builder.or_(low, body.shift_left(fifth, 4))

                return make

            words = [(16 * half + 4 * at, word(at, half)) for at in range(4) for half in range(2)]
            yield Part(_bytes_of(body, words), scale, least, is_shifted=True)

        return parts

    return open_


def _six_bits(body: Body, words: list[Any], at: int) -> tuple[Any, Any]:
    """Return scale and minimum number `at` of a block of Q4_K or Q5_K, from its three words of six-bit numbers."""
    byte = 8 * (at % 4)

    def made(low: int, word: Any) -> Any:
        if at < 4:
            return body.floats(body.mask(body.shift_right(word, byte), 63))
        top = body.shift_left(body.mask(body.shift_right(word, byte + 6), 3), 4)
        return body.floats(body.builder.or_(body.mask(body.shift_right(words[2], byte + low), 15), top))

    return made(0, words[0]), made(4, words[1])


def _scale_table(body: Body, lanes: int, block: Any) -> Any:
    """Write the eight scales and minima of a block of Q4_K or Q5_K to the stack, alternating."""
    scale, least = _halves(body, lanes, block, 0), _negated(body, _halves(body, lanes, block, 2), 1.0)
    words = [_words(body, lanes, block, 4 + 4 * word, 4) for word in range(3)]
    table = body.reserve(vector(F32, lanes), 16)
    for at in range(8):
        for place, (by, code) in enumerate(zip((scale, least), _six_bits(body, words, at), strict=True)):
            body.store(body.builder.fmul(by, code), table, (2 * at + place) * 4 * lanes, 4 * lanes)
    return table


def _q4_k(*, has_fifth: bool) -> Callable[[Body, int, Any], Opened]:
    """Return the opener of Q4_K or Q5_K: 64 weights in 32 bytes, the first half in the low nibbles."""

    def open_(body: Body, lanes: int, block: Any) -> Opened:
        table, kind = _scale_table(body, lanes, block), vector(F32, lanes)
        first = 48 if has_fifth else 16

        def parts(group: Any) -> Iterator[Part]:
            chunk = body.add(first, body.mul(body.div(group, 2), 32))
            down = body.builder.trunc(body.mul(body.builder.and_(group, I64(1)), 4), I32)
            bit = body.builder.trunc(group, I32)
            scale, least = (
                body.load(kind, table, body.add(body.mul(group, 8 * lanes), place), 4 * lanes)
                for place in (0, 4 * lanes)
            )

            def word(at: int) -> Callable[[], Any]:
                def make() -> Any:
                    pair = _words(body, lanes, block, body.add(chunk, 4 * at), 4)
                    low = body.mask(body.shift_right(pair, down), _NIBBLES)
                    if not has_fifth:
                        return low
                    fifth = body.mask(body.shift_right(_words(body, lanes, block, 16 + 4 * at, 4), bit), _ONES)
                    return body.builder.or_(low, body.shift_left(fifth, 4))

                return make

            yield Part(_bytes_of(body, [(4 * at, word(at)) for at in range(8)]), scale, least, is_shifted=True)

        return parts

    return open_


def _q6_k(body: Body, lanes: int, block: Any) -> Opened:
    """Open a block of Q6_K: two halves of 128 weights, each with 64 bytes of nibbles and 32 bytes of their upper bits;
    a scale for each 16 weights."""
    whole = _halves(body, lanes, block, 208)

    def parts(group: Any) -> Iterator[Part]:
        half, quarter = body.div(group, 4), body.builder.and_(group, I64(3))
        low = body.add(body.mul(half, 64), body.mul(body.builder.and_(quarter, I64(1)), 32))
        high = body.add(128, body.mul(half, 32))
        by_low = body.builder.trunc(body.mul(body.div(quarter, 2), 4), I32)
        by_high = body.builder.trunc(body.mul(quarter, 2), I32)

        def word(at: int) -> Callable[[], Any]:
            def make() -> Any:
                four = body.shift_right(_words(body, lanes, block, body.add(low, 4 * at), 4), by_low)
                two = body.shift_right(_words(body, lanes, block, body.add(high, 4 * at), 4), by_high)
                top = body.shift_left(body.mask(two, _TWOS), 4)
                return body.builder.or_(body.mask(four, _NIBBLES), top)

            return make

        for part in range(2):
            at = body.add(192, body.mul(group, 2), part)
            scale = body.builder.fmul(whole, body.floats(_words(body, lanes, block, at, 1), signed=True))
            words = [(16 * part + 4 * at, word(4 * part + at)) for at in range(4)]
            yield Part(_bytes_of(body, words), scale, _negated(body, scale, 32.0), is_shifted=True)

    return parts


_ALL = (
    Kind("F32", 0, 32, ((4, 32),), _no_scale(4, lambda body, word: body.singles(word))),
    Kind("F16", 1, 32, ((2, 32),), _no_scale(2, lambda body, word: body.halves(word))),
    Kind("BF16", 30, 32, ((2, 32),), _no_scale(2, lambda body, word: body.bfloats(word))),
    Kind("Q4_0", 2, 32, ((2, 1), (4, 4)), _four_or_five(has_minimum=False, bits=4)),
    Kind("Q4_1", 3, 32, ((2, 2), (4, 4)), _four_or_five(has_minimum=True, bits=4)),
    Kind("Q5_0", 6, 32, ((2, 1), (4, 5)), _four_or_five(has_minimum=False, bits=5)),
    Kind("Q5_1", 7, 32, ((2, 2), (4, 5)), _four_or_five(has_minimum=True, bits=5)),
    Kind("Q8_0", 8, 32, ((2, 1), (1, 32)), _q8_0),
    Kind("Q4_K", 12, 256, ((2, 2), (4, 35)), _q4_k(has_fifth=False)),
    Kind("Q5_K", 13, 256, ((2, 2), (4, 43)), _q4_k(has_fifth=True)),
    Kind("Q6_K", 14, 256, ((4, 48), (1, 16), (2, 1)), _q6_k),
    Kind("INT8", -1, 32, ((1, 32),), _no_scale(1, lambda body, word: body.floats(word, signed=True)), prefix=4),
)
KINDS = {kind.name: kind for kind in _ALL}
"""All kinds by name."""
