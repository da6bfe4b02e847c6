"""Where spectr keeps what it fetches and compiles."""

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """The folder: $SPECTR_HOME, else spectr under the user's cache folder."""
    base = os.environ.get("SPECTR_HOME")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spectr"
