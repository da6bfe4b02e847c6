"""Reads the settings and tensors of a GGUF file. Every length in the file is checked against its size.

The file is mapped into memory, and tensors are views of the mapping until they are copied.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectr.kernels.cpu.kinds import KINDS
from spectr.models.catalog import FetchError

__all__ = ["GgufFile", "GgufTensor", "open_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = "BbHhIif?"  # `struct` codes of the types 0 to 7
_STRING, _ARRAY = 8, 9
_WIDE = {10: "Q", 11: "q", 12: "d"}
_KINDS = {kind.number: kind for kind in KINDS.values() if kind.number >= 0}
_NAMES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
_LONGEST = 1 << 26  # bytes of a string; chat templates are far shorter
_DEEPEST = 2  # arrays in arrays
_DIMENSIONS = 4
_LARGEST = 1 << 40  # size of any dimension


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its kind, its shape (rows first) and its bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # (rows, bytes of a row), a view of the file

    @property
    def columns(self) -> int:
        """The number of values in a row."""
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The settings and tensors of a file."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    release: Callable[[], None]  # drops the pages that were read from memory

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    @property
    def kinds(self) -> str:
        """The kinds of its matrices, separated by commas."""
        return ", ".join(sorted({tensor.kind for tensor in self.tensors.values() if len(tensor.shape) > 1}))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default if the file does not have it."""
        return self.settings.get(name, default)


class _Cursor:
    """Reads values one after the other and checks that they are inside the file."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def fail(self, why: str) -> FetchError:
        return FetchError(f"{str(self.path)!r} is not a valid GGUF file: {why}; fetch it again")

    def take(self, size: int, what: str) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise self.fail(f"it ends at byte {len(self.data)}, within {what}")
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def number(self, form: str, what: str) -> Any:
        size = struct.calcsize(f"<{form}")
        return struct.unpack(f"<{form}", self.take(size, what))[0]

    def count(self, least: int, what: str) -> int:
        """Read a count of items of at least `least` bytes each; raise if the rest of the file is too short for them."""
        number = int(self.number("Q", what))
        if number * least > len(self.data) - self.at:
            raise self.fail(f"it claims {number} {what}, more than it has room for")
        return number

    def string(self, what: str) -> str:
        size = self.count(1, f"bytes of {what}")
        if size > _LONGEST:
            raise self.fail(f"{what} has {size} bytes")
        try:
            return bytes(self.take(size, what)).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8 text") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind < len(_NUMBERS):
            return self.number(_NUMBERS[kind], what)
        if kind in _WIDE:
            return self.number(_WIDE[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY or depth >= _DEEPEST:
            raise self.fail(f"{what} has the unknown type {kind}")
        return self.array(what, depth)

    def array(self, what: str, depth: int) -> Any:
        kind = int(self.number("I", what))
        form = _NUMBERS[kind] if kind < len(_NUMBERS) else _WIDE.get(kind)
        if form is not None:
            size = struct.calcsize(f"<{form}")
            count = self.count(size, f"entries of {what}")
            dtype = np.dtype(f"<{form}" if form != "?" else "?")
            return np.frombuffer(self.take(count * size, what), dtype).tolist()
        return [self.value(kind, what, depth + 1) for _ in range(self.count(8, f"entries of {what}"))]


def open_gguf(path: Path) -> GgufFile:
    """Map a file and read its settings and the list of its tensors; raise `FetchError` if it is not valid."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise FetchError(f"{str(path)!r} cannot be opened as a GGUF file: {error}") from None
    cursor = _Cursor(memoryview(mapped), path)
    count, settings = _header(cursor)
    tensors = _tensors(cursor, count, settings)
    return GgufFile(path, settings, tensors, lambda: mapped.madvise(mmap.MADV_DONTNEED))


def _header(cursor: _Cursor) -> tuple[int, dict[str, Any]]:
    """Return the number of tensors and the settings."""
    if bytes(cursor.take(4, "its first four bytes")) != _MAGIC:
        raise cursor.fail("it does not begin with GGUF")
    version = cursor.number("I", "its version")
    if version not in _VERSIONS:
        raise cursor.fail(f"its version is {version}, and only {' and '.join(map(str, _VERSIONS))} are supported")
    count, entries = cursor.count(24, "tensors"), cursor.count(12, "settings")
    settings: dict[str, Any] = {}
    for _ in range(entries):
        name = cursor.string("the name of a setting")
        settings[name] = cursor.value(int(cursor.number("I", name)), name)
    return count, settings


def _tensors(cursor: _Cursor, count: int, settings: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """Return the tensors by name; raise if any of them is not completely in the file."""
    infos = [_info(cursor) for _ in range(count)]
    alignment = settings.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise cursor.fail(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    made: dict[str, GgufTensor] = {}
    for name, shape, number, offset in infos:
        if name in made:
            raise cursor.fail(f"it has two tensors {name!r}")
        made[name] = _tensor(cursor, (name, shape, number), start + offset)
    return made


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Read the name, shape, type and offset of a tensor."""
    name = cursor.string("the name of a tensor")
    dimensions = cursor.number("I", name)
    if not 1 <= dimensions <= _DIMENSIONS:
        raise cursor.fail(f"{name!r} has {dimensions} dimensions")
    shape = tuple(int(cursor.number("Q", name)) for _ in range(dimensions))[::-1]  # the file lists columns first
    if any(not 1 <= size <= _LARGEST for size in shape):
        raise cursor.fail(f"{name!r} has the shape {shape}")
    return name, shape, int(cursor.number("I", name)), int(cursor.number("Q", name))


def _tensor(cursor: _Cursor, about: tuple[str, tuple[int, ...], int], start: int) -> GgufTensor:
    """Return one tensor; raise if its kind is not supported or its bytes are not in the file."""
    name, shape, number = about
    kind = _KINDS.get(number)
    if kind is None:
        raise FetchError(
            f"{str(cursor.path)!r} holds {name!r} as {_NAMES.get(number, f'type {number}')}, which is not supported; "
            f"take a file with {', '.join(KINDS[name].name for name in KINDS if KINDS[name].number >= 0)}"
        )
    rows, block = 1, kind.block if kind.number not in _PLAIN else 1
    for size in shape[:-1]:
        rows *= size
    if shape[-1] % block:
        raise cursor.fail(f"{name!r} is {kind.name} with rows of {shape[-1]}, which is not a multiple of {block}")
    size = shape[-1] // block * (kind.bytes // (kind.block // block))
    if start + rows * size > len(cursor.data):
        raise cursor.fail(f"it ends at byte {len(cursor.data)}, within tensor {name!r}")
    data = np.frombuffer(cursor.data, np.uint8, rows * size, start).reshape(rows, size)
    return GgufTensor(name, kind.name, shape, data)


_PLAIN = (0, 1, 30)  # types without blocks
