"""What a batch has finished, on disk: a file beside the results to which every chunk is appended.

A process that is killed loses what it had not appended, and no more; a line that was written half is dropped. The
results are written from the journal once it has all of them, in the order of the requests, and appear at once.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from spectr.errors import ArgumentError

__all__ = ["Journal"]

_FORMAT = 1


class Journal:
    """The journal of one batch, open in this process and in no other."""

    def __init__(self, results: Path, batch: Mapping[str, Any]) -> None:
        self.results, self.path = results, results.with_name(f"{results.name}.journal")
        self._places: dict[int, tuple[int, int]] = {}  # where the result of a line begins, and its length
        if results.exists() and not self.path.exists():
            raise ArgumentError(f"{results} is there already; give another --out, or move it away")
        self._file = self._opened()
        try:
            self.created = self._begun(dict(batch))
        except BaseException:
            self._file.close()
            raise

    def _opened(self) -> BinaryIO:
        try:
            made = self.path.open("a+b")
        except OSError as error:
            raise ArgumentError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            made.close()
            raise ArgumentError(f"another process is writing {self.path}; wait for it, or end it") from None
        return made

    def _begun(self, batch: dict[str, Any]) -> int:
        """Read what is there, or write the first line; the time at which the batch was begun."""
        self._file.seek(0)
        first = self._file.readline()
        if not first.endswith(b"\n"):
            self._cut(0)
            created = int(time.time())
            self._append([json.dumps({"format": _FORMAT, "created": created, "batch": batch}).encode()])
            return created
        head = json.loads(first)
        if head.get("format") != _FORMAT or head["batch"] != batch:
            was = head.get("batch", {})
            other = [name for name in batch if was.get(name) != batch[name]] or ["format"]
            raise ArgumentError(
                f"{self.path} was begun with another {', '.join(other)}; go on as it was begun, or remove it to start "
                "again"
            )
        self._read(len(first))
        return int(head["created"])

    def _read(self, place: int) -> None:
        """Take note of the results that are there, and cut off one that was written half."""
        for line in self._file:
            try:
                number = json.loads(line)["line"] if line.endswith(b"\n") else None
            except ValueError:  # a machine that lost its power may have written anything
                number = None
            if number is None:
                self._cut(place)
                return
            self._places[number] = (place, len(line))
            place += len(line)

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the lines that have results."""
        return frozenset(self._places)

    def append(self, results: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Keep the results of some lines; they are on disk when this returns."""
        fresh = {number: result for number, result in results if number not in self._places}
        lines = [json.dumps({"line": number, "result": result}, ensure_ascii=False).encode()
                 for number, result in fresh.items()]  # fmt: skip
        place = self._file.seek(0, os.SEEK_END)
        self._append(lines)
        for number, line in zip(fresh, lines, strict=True):
            self._places[number] = (place, len(line) + 1)
            place += len(line) + 1

    def _append(self, lines: Iterable[bytes]) -> None:
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the results, in the order of their lines, and remove the journal."""
        draft = self.results.with_name(f"{self.results.name}.draft")
        with draft.open("wb") as file:
            for number in sorted(self._places):
                place, length = self._places[number]
                self._file.seek(place)
                result = json.loads(self._file.read(length))["result"]
                file.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.results)
        _sync_folder(self.results.parent)
        self.path.unlink()

    def close(self) -> None:
        """Let other processes have it."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _sync_folder(folder: Path) -> None:
    """Make a name that was given in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
