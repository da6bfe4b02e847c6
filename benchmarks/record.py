"""The result file of a benchmark: one entry per part, rewritten whenever a part has new results.

Parts are measured one after the other. If a part fails, its error is recorded with the results it had, those of an
earlier run included, and the others are still measured. Parts that are complete in the file are not measured again.
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
"""The results of a part so far; `left` says how many are still missing."""

Part = Callable[[], Iterator[Found]]
"""Yields its results so far, repeatedly."""


def said(error: Exception) -> str:
    """Format an error as one line for the result file."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def let_go() -> None:
    """Free the caches and graphs of engines that are no longer referenced."""
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
    """The results for one subject on one device."""

    def __init__(self, path: Path, about: Found, module: str) -> None:
        """Read the file if it exists; its subject must be the same."""
        self.path, about = path, json.loads(json.dumps(about))
        self.data = _read(path, module) or {"about": about, "parts": {}}
        known: Found = self.data["about"]
        if differing := [name for name in sorted({*known, *about}) if known.get(name) != about.get(name)]:
            raise ArgumentError(f"{path} was measured with another {', '.join(differing)}; choose another --out")

    @property
    def parts(self) -> Found:
        """The results of each part, by name."""
        found: Found = self.data["parts"]
        return found

    def is_done(self, name: str) -> bool:
        """Return whether a part is complete."""
        part = self.parts.get(name, {})
        return part.get("left") == 0 and "error" not in part

    def begun(self, name: str, settings: Mapping[str, Any]) -> Found:
        """Return the results so far of a part that was measured with the same settings, else nothing."""
        part: Found = self.parts.get(name, {})
        return part if all(part.get(key) == value for key, value in settings.items()) else {}

    def put(self, name: str, found: Found) -> None:
        """Store the results of a part; they are on disk when this returns."""
        self.parts[name] = json.loads(json.dumps(found))
        write_atomically(self.path, json.dumps(self.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def chosen(every: Iterable[str], only: Iterable[str]) -> list[str]:
    """Return the requested parts, or all if none are requested, in the order in which they run."""
    names, asked = list(every), list(only)
    for name in asked:
        if name not in names:
            raise UnknownNameError(f"no part is called {name!r}; {nearest(name, names)}")
    return [name for name in names if not asked or name in asked]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of a measurement, for the record, and the time limit of each part."""

    command: str
    device: torch.device
    settings: Mapping[str, Any]
    seconds: float | None = None

    def now(self) -> Found:
        """Return the record of a part that begins now."""
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        where = {"hardware": hardware(self.device), "versions": versions()}
        return {"command": self.command, "begun": begun, **where, **self.settings}


def measure(name: str, part: Part, how: Circumstances, record: Record, say: Callable[[str], None]) -> None:
    """Measure one part until it is complete or its time is over."""
    made, start = how.now(), time.monotonic()
    try:
        for found in part():
            spent = time.monotonic() - start
            record.put(name, {**made, "spent_seconds": spent, **found})
            if how.seconds is not None and spent > how.seconds:
                break
    except Exception as error:  # any error ends this part only, not the run
        say(traceback.format_exc())
        part_so_far = record.parts.get(name, {})
        record.put(name, {**(part_so_far if "left" in part_so_far else made), "error": said(error)})
    let_go()
    say(f"{name}: {_state(record.parts[name])} after {time.monotonic() - start:.0f} s")


def _state(part: Found) -> str:
    return "failed" if "error" in part else f"{part['left']} left" if part["left"] else "done"
