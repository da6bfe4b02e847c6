"""Everything spectr raises on purpose. Each message says what must hold, what was given, and what to do.

SpectrError
├── LawError            a tensor that should be a probability law is not one            (also a ValueError)
├── ArgumentError       an argument out of its range: counts, ids, shapes, dtypes       (also a ValueError)
│   └── NoRoomError     more memory is needed than there is
├── MismatchError       parts that do not belong together, e.g. a rule and a sibling law (also a ValueError)
├── RankError           a process of a model over several processes is lost, or differs  (also a RuntimeError)
├── UnknownNameError    a name the registry does not know; suggests the nearest          (also a LookupError)
└── MissingExtraError   an optional dependency that is not installed                     (also an ImportError)
"""

__all__ = [
    "ArgumentError",
    "LawError",
    "MismatchError",
    "MissingExtraError",
    "NoRoomError",
    "RankError",
    "SpectrError",
    "UnknownNameError",
]


class SpectrError(Exception):
    """Base of every error spectr raises on purpose."""


class LawError(SpectrError, ValueError):
    """A tensor that should be a probability law is not one."""


class ArgumentError(SpectrError, ValueError):
    """An argument is out of its range."""


class NoRoomError(ArgumentError):
    """More memory is needed than there is."""


class MismatchError(SpectrError, ValueError):
    """Two parts do not belong together."""


class RankError(SpectrError, RuntimeError):
    """A process of a model over several processes is lost, or ran another call than the others."""


class UnknownNameError(SpectrError, LookupError):
    """No entry of that name."""


class MissingExtraError(SpectrError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'spectr-lm[{extra}]'")
