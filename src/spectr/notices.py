"""Sentences that a user should read once: what was chosen for them, and what falls back to something slower.

They go through `logging`, under the name "spectr", as warnings: on stderr unless a program configures it otherwise.
"""

import logging

__all__ = ["forget", "notice"]

_LOGGER = logging.getLogger("spectr")
_SAID: set[str] = set()


def notice(sentence: str) -> None:
    """Log a sentence the first time it comes up in this process."""
    if sentence not in _SAID:
        _SAID.add(sentence)
        _LOGGER.warning("spectr: %s", sentence)


def forget() -> None:
    """Let every sentence be logged again; for tests, and for commands that run several times in one process."""
    _SAID.clear()
