"""Registries of named objects, which are imported when they are first used.

An entry is `"module:attribute"`, with the options that belong to its name. Installed packages add entries through an
entry point group (`spectr.rules`, `spectr.couplings`, `spectr.drafters`).
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

from spectr.errors import ArgumentError, UnknownNameError

__all__ = ["Entry", "Registry", "nearest"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The class or function of an entry as `"module:attribute"`, and the options that belong to its name."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Import and return the class or function."""
        module, _, attribute = self.target.partition(":")
        maker: Callable[..., Any] = getattr(import_module(module), attribute)
        return maker


def nearest(name: str, known: list[str]) -> str:
    """Return the end of an error message, which suggests the nearest known name.

    >>> nearest("ksec", ["kseq", "race"])
    'did you mean kseq? Known: kseq, race'
    """
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}Known: {', '.join(known)}"


class Registry:
    """A lazy table of objects of one kind, which is named in messages."""

    def __init__(self, kind: str, entries: Mapping[str, Entry], group: str) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._group = group

    def names(self) -> list[str]:
        """Return the built-in names, then those that installed packages add."""
        return [*self._entries, *(p.name for p in entry_points(group=self._group) if p.name not in self._entries)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def make(self, name: str, **options: Any) -> Any:
        """Return a new object called `name`, made with `options`."""
        entry = self._find(name)
        maker, arguments = entry.load(), {**entry.options, **options}
        try:
            signature(maker).bind(**arguments)
        except TypeError as error:
            raise ArgumentError(f"{self.kind} {name!r} was given an option it does not take: {error}") from None
        return maker(**arguments)

    def _find(self, name: str) -> Entry:
        if name in self._entries:
            return self._entries[name]
        for point in entry_points(group=self._group):
            if point.name == name:
                return Entry(point.value)
        raise UnknownNameError(f"no {self.kind} is called {name!r}; {nearest(name, self.names())}")
