"""The journal of a batch: a file beside the results to which every finished chunk is appended.

A process that is killed loses only the results that it had not appended yet; a line that was partly written is dropped.
When the journal has all results, they are written in the order of the requests, and the file of results appears in one
step.
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


def _head(line: bytes) -> dict[str, Any] | None:
    """Return the first line of a journal; None if it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    is_head = isinstance(found, dict) and isinstance(found.get("batch"), dict) and "format" in found
    return found if is_head and isinstance(found.get("created"), int) else None


class Journal:
    """The journal of one batch. It is locked, so that only one process can have it open."""

    def __init__(self, results: Path, batch: Mapping[str, Any]) -> None:
        self.results, self.path = results, results.with_name(f"{results.name}.journal")
        self._spans: dict[int, tuple[int, int]] = {}  # offset and length of each line's result
        if results.exists() and not self.path.exists():
            raise ArgumentError(f"{results} already exists; choose another --out, or move the file away")
        self._file = self._open()
        try:
            self.created = self._start_or_resume(dict(batch))
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        try:
            file = self.path.open("a+b")
        except OSError as error:
            raise ArgumentError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ArgumentError(f"another process is writing {self.path}; wait until it ends, or stop it") from None
        return file

    def _start_or_resume(self, batch: dict[str, Any]) -> int:
        """Read the journal that exists, or write the first line of a new one. Return the time at which the batch was
        started."""
        self._file.seek(0)
        first = self._file.readline()
        if not first.endswith(b"\n"):
            self._cut(0)
            created = int(time.time())
            self._append([json.dumps({"format": _FORMAT, "created": created, "batch": batch}).encode()])
            return created
        head = _head(first)
        if head is None:
            raise ArgumentError(
                f"{self.path} must be the journal of a batch, and its first line is not; remove this file to start "
                "again"
            )
        if head.get("format") != _FORMAT or head["batch"] != batch:
            before = head.get("batch", {})
            changed = [name for name in batch if before.get(name) != batch[name]] or ["format"]
            raise ArgumentError(
                f"{self.path} was started with a different {', '.join(changed)}; run the batch as it was started, or "
                "remove this file to start again"
            )
        self._read(len(first))
        return int(head["created"])

    def _read(self, offset: int) -> None:
        """Index the results in the file, and cut off a last one that was partly written."""
        for line in self._file:
            try:
                number = int(json.loads(line)["line"]) if line.endswith(b"\n") else None
            except (ValueError, KeyError, TypeError):  # a machine that lost power may have written anything
                number = None
            if number is None:
                self._cut(offset)
                return
            self._spans[number] = (offset, len(line))
            offset += len(line)

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def done(self) -> frozenset[int]:
        """The numbers of the lines that have results."""
        return frozenset(self._spans)

    def append(self, results: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Append the results of lines that have none yet. They are on disk when this returns."""
        fresh = {number: result for number, result in results if number not in self._spans}
        lines = [json.dumps({"line": number, "result": result}, ensure_ascii=False).encode()
                 for number, result in fresh.items()]  # fmt: skip
        offset = self._file.seek(0, os.SEEK_END)
        self._append(lines)
        for number, line in zip(fresh, lines, strict=True):
            self._spans[number] = (offset, len(line) + 1)
            offset += len(line) + 1

    def _append(self, lines: Iterable[bytes]) -> None:
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write all results in the order of their lines, and remove the journal."""
        draft = self.results.with_name(f"{self.results.name}.draft")
        with draft.open("wb") as file:
            for number in sorted(self._spans):
                offset, length = self._spans[number]
                self._file.seek(offset)
                result = json.loads(self._file.read(length))["result"]
                file.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.results)
        _sync_folder(self.results.parent)
        self.path.unlink()

    def close(self) -> None:
        """Close the journal and release its lock."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
