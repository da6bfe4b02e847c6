"""The errors that spectr raises. Each message says what must hold, what was given, and what to do.

SpectrError
├── LawError            a tensor that should be a distribution is not one              (also a ValueError)
├── ArgumentError       an argument that is out of range: counts, ids, shapes, dtypes  (also a ValueError)
│   ├── ContextError    a conversation does not fit into the model's context
│   └── NoRoomError     more memory is needed than is available
├── MismatchError       parts that do not fit together, such as a rule and a drafter   (also a ValueError)
├── RankError           a process of a tensor-parallel model is lost, or differs       (also a RuntimeError)
├── UnknownNameError    a name that is not registered; suggests the nearest            (also a LookupError)
└── MissingExtraError   an optional dependency that is not installed                   (also an ImportError)
"""

__all__ = [
    "ArgumentError",
    "ContextError",
    "LawError",
    "MismatchError",
    "MissingExtraError",
    "NoRoomError",
    "RankError",
    "SpectrError",
    "UnknownNameError",
]


class SpectrError(Exception):
    """The base class of all errors that spectr raises."""


class LawError(SpectrError, ValueError):
    """A tensor that should be a probability distribution is not one."""


class ArgumentError(SpectrError, ValueError):
    """An argument is out of range."""


class ContextError(ArgumentError):
    """A conversation and its next answer do not fit into the model's context."""


class NoRoomError(ArgumentError):
    """More memory is needed than is available."""


class MismatchError(SpectrError, ValueError):
    """Two parts do not fit together."""


class RankError(SpectrError, RuntimeError):
    """A process of a tensor-parallel model is lost, or ran another call than the others."""


class UnknownNameError(SpectrError, LookupError):
    """No entry has that name."""


class MissingExtraError(SpectrError, ImportError):
    """An optional dependency is missing."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'spectr-lm[{extra}]'")
