"""The result file of a benchmark: one entry for each part, rewritten whenever a part has found more.

Parts are measured one after the other. One that fails says why, keeps what it had, and leaves the others alone; what is
in the file already is not measured again.
"""

import gc
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from spectr.bench.journal import write_atomically
from spectr.bench.machine import hardware, versions
from spectr.errors import ArgumentError, UnknownNameError
from spectr.registry import nearest

__all__ = ["Circumstances", "Found", "Part", "Record", "chosen", "let_go", "measure", "said"]

Found = dict[str, Any]
"""What a part has found so far; `left` says how much of it is still to come."""

Part = Callable[[], Iterator[Found]]
"""Gives what it has found so far, again and again."""


def said(error: Exception) -> str:
    """An error in a line, for a file."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def let_go() -> None:
    """Give back the caches and graphs of engines that nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _read(path: Path, module: str) -> Found | None:
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {"about": dict(data["about"]), "parts": dict(data["parts"])}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} was not written by {module}: {error!r}; choose another --out") from None


class Record:
    """What is known of one subject on one device."""

    def __init__(self, path: Path, about: Found, module: str) -> None:
        """Go on with what is on disk, if it is about the same."""
        self.path, about = path, json.loads(json.dumps(about))
        self.data = _read(path, module) or {"about": about, "parts": {}}
        known: Found = self.data["about"]
        if differing := [name for name in sorted({*known, *about}) if known.get(name) != about.get(name)]:
            raise ArgumentError(f"{path} was measured with another {', '.join(differing)}; choose another --out")

    @property
    def parts(self) -> Found:
        """What each part has found, by its name."""
        found: Found = self.data["parts"]
        return found

    def is_done(self, name: str) -> bool:
        """Whether nothing of a part is missing."""
        part = self.parts.get(name, {})
        return part.get("left") == 0 and "error" not in part

    def put(self, name: str, found: Found) -> None:
        """On disk when this returns."""
        self.parts[name] = json.loads(json.dumps(found))
        write_atomically(self.path, json.dumps(self.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def chosen(every: Iterable[str], only: Iterable[str]) -> list[str]:
    """The parts that were asked for, all of them if none was, in the order they are run."""
    names, asked = list(every), list(only)
    for name in asked:
        if name not in names:
            raise UnknownNameError(f"no part is called {name!r}; {nearest(name, names)}")
    return [name for name in names if not asked or name in asked]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How parts come about, for the record, and how long each may take."""

    command: str
    device: torch.device
    settings: Mapping[str, Any]
    seconds: float | None = None

    def now(self) -> Found:
        """For a part that begins now."""
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        where = {"hardware": hardware(self.device), "versions": versions()}
        return {"command": self.command, "begun": begun, **where, **self.settings}


def measure(name: str, part: Part, how: Circumstances, record: Record, told: Callable[[str], None]) -> None:
    """Measure one part until it is whole, or its time is over."""
    made, start = how.now(), time.monotonic()
    try:
        for found in part():
            spent = time.monotonic() - start
            record.put(name, {**made, "spent_seconds": spent, **found})
            if how.seconds is not None and spent > how.seconds:
                break
    except Exception as error:  # of any kind: it is one part's, not the run's
        told(traceback.format_exc())
        part_so_far = record.parts.get(name, {})
        kept = part_so_far if part_so_far.get("begun") == made["begun"] else made
        record.put(name, {**kept, "error": said(error)})
    let_go()
    told(f"{name}: {_state(record.parts[name])} after {time.monotonic() - start:.0f} s")


def _state(part: Found) -> str:
    return "failed" if "error" in part else f"{part['left']} left" if part["left"] else "done"
