"""Stores results so that they survive a kill: every finished cell is on disk before the next begins.

During a run `FILE.part` has a line for the head, then one for each cell. The result `FILE` is written atomically when
the run ends or is interrupted. It has all cells too, so a run can continue from either file. The contents of cells do
not matter here.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from spectr.errors import ArgumentError

__all__ = ["Journal", "read_results", "write_atomically"]

Head = Mapping[str, Any]


def write_atomically(path: Path, text: str) -> None:
    """Write a file such that it never has partial contents."""
    aside = path.with_name(f"{path.name}.new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _in_lines(data: Mapping[str, Any]) -> str:
    """Format JSON with one line for each second-level entry, so that people and diffs can read it."""

    def short(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def long(value: Any) -> str:
        if isinstance(value, dict) and value:
            return "{\n  " + ",\n  ".join(f"{short(name)}: {short(entry)}" for name, entry in value.items()) + "\n }"
        if isinstance(value, list) and value:
            return "[\n  " + ",\n  ".join(map(short, value)) + "\n ]"
        return short(value)

    return "{\n " + ",\n ".join(f"{short(name)}: {long(value)}" for name, value in data.items()) + "\n}\n"


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines; a partial last line is dropped, on disk as well."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _known(path: Path) -> tuple[Head | None, dict[str, dict[str, Any]]]:
    """Return the head and the cells on disk, of a finished run and of an unfinished one."""
    head, cells = None, dict[str, dict[str, Any]]()
    try:
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            head, cells = data["head"], data["cells"]
        for line in _lines(_part(path)):
            if "head" in line:
                head = line["head"]
            else:
                cells[line["cell"]] = line["found"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is not the result of a benchmark: {error!r}; choose another file") from None
    return head, cells


def _differing(one: Head, other: Head) -> str:
    return ", ".join(name for name in sorted({*one, *other}) if one.get(name) != other.get(name))


class Journal:
    """The cells of one run."""

    def __init__(self, path: Path, head: Head) -> None:
        """Continue the run on disk if it has the same `head`."""
        self.path, self.head = path, json.loads(json.dumps(head))
        self._file: TextIO = self._locked(_part(path))
        try:
            known, self.cells = _known(path)
        except ArgumentError:
            self._leave()
            raise
        if known is not None and known != self.head:
            self._leave()
            raise ArgumentError(
                f"{path} holds a run with another {_differing(known, self.head)}; choose another --out, or move it away"
            )
        if _part(path).stat().st_size == 0:
            self._write({"head": self.head})

    @staticmethod
    def _locked(path: Path) -> TextIO:
        """Open the file to append to, with an exclusive lock if the system supports it."""
        try:
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"cannot write {path}: {error.strerror or error}") from None
        with contextlib.suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise ArgumentError(f"another run is writing {path}; wait for it, or choose another --out") from None
        return file

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def add(self, cell: str, found: dict[str, Any]) -> None:
        """Add a finished cell; it is on disk when this returns."""
        self._write({"cell": cell, "found": found})
        self.cells[cell] = found

    def finish(self, data: Mapping[str, Any]) -> None:
        """Write the result, including head and cells, and remove the journal."""
        whole = {"head": self.head, **data, "cells": self.cells}
        write_atomically(self.path, _in_lines(whole))
        _part(self.path).unlink()
        self.close()

    def close(self) -> None:
        """Close the journal without changing the files."""
        self._file.close()

    def _leave(self) -> None:
        """Close, and remove the journal if nothing was written to it."""
        self.close()
        if _part(self.path).stat().st_size == 0:
            _part(self.path).unlink()


def read_results(path: Path) -> tuple[Head, dict[str, dict[str, Any]], dict[str, Any]]:
    """Return head, cells, and everything else of a run; of a killed run, what it had finished."""
    head, cells = _known(path)
    if head is None:
        raise ArgumentError(f"there is no benchmark in {path}; make one: spectr bench run --out {path}")
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return head, cells, {name: value for name, value in data.items() if name not in ("head", "cells")}
