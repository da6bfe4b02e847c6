"""Prefill by replayed CUDA graphs, in a session of its own.

A forward pass launches a thousand kernels, which for a short piece of a prompt takes the host longer than the work
takes the GPU. A graph has fixed buffer addresses, and a request's row is seldom the same twice. So a piece of a prompt
is read in a separate session: what the row has read so far is copied there, the graph for that size is replayed, and
what it added is copied back. The copies take a hundredth of the time of the pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.models.graphs import Captured
from spectr.models.session import Session, round_up_16
from spectr.notices import notice
from spectr.rows import copy_to_device

__all__ = ["WIDTHS", "GraphPrefill", "pass_sizes"]

WIDTHS = (32, 64, 128, 192, 256, 320, 384, 448, 512)
"""Tokens per row that one graph reads, padding included; the rest of a longer piece is read by another."""
_ATTENDED = (1024, 4096, 16384, 65536, 131072)
"""Slots that one graph attends to. There are few sizes, because capturing a graph takes a tenth of a second."""
_TOGETHER = 512  # tokens that several rows read in one pass, padding included; also their slots
_ROWS = (1, 2, 4, 8, 16)
_ONE_BY_ONE = 4  # rows that are read one after the other if they do not fit into one pass

Pass = Callable[[Session, Tensor, Tensor, int], None]
"""Reads the first counts (B,) of the tokens (B, T) of each row into a session; the int is the number of attended
slots."""
OpenSession = Callable[[int, int], Session]
"""Opens a session with a number of rows and of slots."""


def pass_sizes() -> list[tuple[int, int]]:
    """Return the sizes (rows, tokens per row) that graphs have."""
    return [(rows, width) for rows in _ROWS for width in WIDTHS if rows * width <= _TOGETHER]


def _fitting(sizes: Sequence[int], wanted: int) -> int | None:
    """Return the smallest size that is at least `wanted`, None if there is none."""
    return next((size for size in sizes if size >= wanted), None)


@dataclass(slots=True)
class _GraphSession:
    """A separate session, the static inputs of its passes, and their graphs."""

    session: Session
    graphs: Captured = field(default_factory=Captured)
    static: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # input features, at fixed addresses

    def features(self, given: Tensor, width: int) -> Tensor:
        """Copy input features, padded, to a tensor with a fixed address."""
        shape = (given.shape[0], width, given.shape[2])
        if shape not in self.static:
            self.static[shape] = given.new_zeros(shape)
        self.static[shape][:, : given.shape[1]] = given
        return self.static[shape]


class GraphPrefill:
    """Reads prompts for the sessions of one model."""

    def __init__(self, run: Pass, open_session: OpenSession) -> None:
        self._run, self._open_session = run, open_session
        self._single: _GraphSession | None = None  # for one row of any length
        self._several_rows: _GraphSession | None = None  # for several short rows
        self.is_off = False  # True once there was not enough memory

    def can_read(self, session: Session, texts: list[list[int]], filled: list[int]) -> bool:
        """Return whether graphs can read these texts: a few rows, or several that fit into one pass, if there is
        memory. The session's buffers must exist, which its first pass allocates."""
        together = len(texts) > 1 and _fit_together(texts, filled)
        if self.is_off or not session.cache.buffers() or not (together or len(texts) <= _ONE_BY_ONE):
            return False
        try:
            if together:
                self._several(session)
            else:
                self._one(session, max(start + len(text) for start, text in zip(filled, texts, strict=True)))
        except (ArgumentError, torch.OutOfMemoryError) as error:
            self.is_off = True
            notice(f"prompts are read without CUDA graphs, because memory is short: {error}")
        return not self.is_off

    def read(self, session: Session, texts: list[list[int]], filled: list[int]) -> None:
        """Commit more tokens to each row of a session; the rows have `filled` tokens so far."""
        given, session.input_features = session.input_features, None
        if len(texts) > 1 and _fit_together(texts, filled):
            self._read(self._several(session), session, texts, filled, given)
            return
        for row, (text, start) in enumerate(zip(texts, filled, strict=True)):
            for first in range(0, len(text), WIDTHS[-1]):
                piece, at = text[first : first + WIDTHS[-1]], start + first
                part = None if given is None else given[row : row + 1, first : first + len(piece)]
                self._read(self._one(session, at), session.window(row, row + 1, at), [piece], [at], part)

    def _one(self, session: Session, start: int) -> _GraphSession:
        """Return the place for one row, with room for a pass that begins at `start`."""
        needed = max(session.cache.size, start + WIDTHS[-1])
        if self._single is None or self._single.session.cache.size < needed:
            self._single = None  # frees its memory before the next is allocated
            self._single = self._place(session, 1, _fitting(_ATTENDED, needed) or needed)
        return self._single

    def _several(self, session: Session) -> _GraphSession:
        """Return the place for several short rows."""
        if self._several_rows is None:
            self._several_rows = self._place(session, _ROWS[-1], _TOGETHER)
        return self._several_rows

    def _place(self, session: Session, rows: int, slots: int) -> _GraphSession:
        with torch.inference_mode(False):
            made = self._open_session(rows, slots)
            made.cache.make_buffers_like(session.cache)
        return _GraphSession(made)

    def _read(
        self, place: _GraphSession, session: Session, texts: list[list[int]], filled: list[int], given: Tensor | None
    ) -> None:
        """Run one pass for all rows of a session: copy the rows, replay a graph, copy the result back."""
        longest, most = max(map(len, texts)), max(filled)
        width, rows = _fitting(WIDTHS, longest), _fitting(_ROWS, len(texts))
        assert width is not None
        assert rows is not None
        device = session.filled.device
        ends = [start + len(text) for start, text in zip(filled, texts, strict=True)]
        apart = place.session.window(0, len(texts), most)
        _copy(session, apart, 0, most)
        padding = [0] * (rows - len(texts))
        place.session.filled[:rows] = copy_to_device([*filled, *padding], device)
        tokens = [[len(text), *text, *[0] * (width - len(text))] for text in texts]
        packed = copy_to_device([*tokens, *[[0] * (width + 1) for _ in padding]], device)
        window = place.session.window(0, rows, most)
        size = place.session.cache.size
        attended = min(_fitting(_ATTENDED, round_up_16(most + width)) or size, size)
        if given is not None:
            given = place.features(_more_rows(given, rows), width)

        def run(packed: Tensor) -> Tensor:
            window.input_features = given
            self._run(window, packed[:, 1:], packed[:, 0], attended)
            return window.filled

        place.graphs((rows, width, attended), run, packed)
        window.input_features = None
        _copy(apart, session, min(filled), max(ends))
        session.filled.copy_(copy_to_device(ends, device))


def _fit_together(texts: list[list[int]], filled: list[int]) -> bool:
    """Return whether one pass can read all rows."""
    rows, width = _fitting(_ROWS, len(texts)), _fitting(WIDTHS, max(map(len, texts)))
    if rows is None or width is None:
        return False
    return rows * width <= _TOGETHER and max(filled) + width <= _TOGETHER


def _more_rows(values: Tensor, rows: int) -> Tensor:
    """(B, …) with zeros below, for `rows` rows."""
    extra = rows - values.shape[0]
    return torch.cat([values, values.new_zeros(extra, *values.shape[1:])]) if extra else values


def _copy(source: Session, target: Session, start: int, stop: int) -> None:
    """Copy slots `start` to `stop` of all rows: keys and values, positions, features."""
    if start >= stop:
        return
    for old, new in zip(source.cache.buffers(), target.cache.buffers(), strict=True):
        new[..., start:stop, :].copy_(old[..., start:stop, :])
    target.store.position[:, start:stop] = source.store.position[:, start:stop]
    if source.store.features is not None and target.store.features is not None:
        target.store.features[:, start:stop] = source.store.features[:, start:stop]
