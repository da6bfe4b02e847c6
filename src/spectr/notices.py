"""Notices that a user should read once: which defaults were chosen, and what falls back to a slower path.

They are warnings of the logger "spectr", and so go to stderr unless a program configures `logging` otherwise.
"""

import logging

__all__ = ["forget", "notice"]

_LOGGER = logging.getLogger("spectr")
_LOGGED: set[str] = set()


def notice(sentence: str) -> None:
    """Log a sentence the first time it occurs in this process."""
    if sentence not in _LOGGED:
        _LOGGED.add(sentence)
        _LOGGER.warning("spectr: %s", sentence)


def forget() -> None:
    """Let every sentence be logged again, for tests and for commands that run several times in one process."""
    _LOGGED.clear()
