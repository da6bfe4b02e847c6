"""The folder in which spectr keeps downloaded and compiled files."""

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """Return the folder: $SPECTR_HOME if it is set, otherwise spectr in the user's cache folder."""
    base = os.environ.get("SPECTR_HOME")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spectr"
