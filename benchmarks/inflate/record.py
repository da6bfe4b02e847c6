"""The result file: one entry for each part, rewritten whenever a part has found more."""

import json
from pathlib import Path
from typing import Any

from spectr.bench.journal import write_atomically
from spectr.errors import ArgumentError

__all__ = ["Record", "said"]


def said(error: Exception) -> str:
    """An error in a line, for a file."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {"about": dict(data["about"]), "parts": dict(data["parts"])}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} was not written by benchmarks.inflate: {error!r}; choose another --out") from None


class Record:
    """What is known of one pair on one device."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Go on with what is on disk, if it is about the same."""
        self.path, about = path, json.loads(json.dumps(about))
        self.data = _read(path) or {"about": about, "parts": {}}
        known: dict[str, Any] = self.data["about"]
        if differing := [name for name in sorted({*known, *about}) if known.get(name) != about.get(name)]:
            raise ArgumentError(f"{path} was measured with another {', '.join(differing)}; choose another --out")

    @property
    def parts(self) -> dict[str, Any]:
        """What each part has found, by its name."""
        found: dict[str, Any] = self.data["parts"]
        return found

    def is_done(self, name: str) -> bool:
        """Whether nothing of a part is missing."""
        part = self.parts.get(name, {})
        return part.get("left") == 0 and "error" not in part

    def put(self, name: str, found: dict[str, Any]) -> None:
        """On disk when this returns."""
        self.parts[name] = json.loads(json.dumps(found))
        write_atomically(self.path, json.dumps(self.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
