"""Editing tasks whose answer repeats nearly all of the given text, so that the text can serve as a prediction."""

from dataclasses import dataclass

__all__ = ["EDITS", "Edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A text, and the instruction to edit it."""

    order: str
    text: str

    @property
    def prompt(self) -> str:
        """The prompt: the instruction, then the text."""
        return f"{self.order}\n\n{self.text}"


_CODE = '''\
import json
from pathlib import Path


class Store:
    """Values by name, kept in a file."""

    def __init__(self, path):
        self.path = Path(path)
        self.items = {}
        if self.path.exists():
            self.items = json.loads(self.path.read_text())

    def get(self, name, default=None):
        """The value of a name."""
        return self.items.get(name, default)

    def put(self, name, value):
        """Give a name a value."""
        self.items[name] = value
        self.save()

    def remove(self, name):
        """Forget a name."""
        if name not in self.items:
            raise KeyError(f"nothing is called {name}")
        del self.items[name]
        self.save()

    def rename(self, old, new):
        """Call a value by another name."""
        if new in self.items:
            raise KeyError(f"{new} is taken")
        self.items[new] = self.items.pop(old)
        self.save()

    def save(self):
        """Write all values to the file."""
        text = json.dumps(self.items, indent=1, sort_keys=True)
        self.path.write_text(text)

    def names(self):
        """All names, in order."""
        return sorted(self.items)

    def merge(self, other):
        """Take over the values of another store."""
        for name in other.names():
            if name not in self.items:
                self.items[name] = other.get(name)
        self.save()

    def __len__(self):
        return len(self.items)

    def __contains__(self, name):
        return name in self.items
'''

_PROSE = (
    "The harbour of Eastport was built in 1842 by a company of merchants from the north. It has two piers, a "
    "lighthouse of grey stone and a market hall in which fish is sold every morning. In winter the harbour freezes for "
    "three weeks, and the boats are pulled on land by horses. In summer visitors come from the city by train, walk "
    "along the piers and buy smoked herring. The lighthouse keeper, who lives alone with two cats, shows them the lamp "
    "for a small coin."
)

EDITS = {
    "rename in code": Edit("Repeat this Python code, but write values instead of items everywhere.", _CODE),
    "word in prose": Edit("Repeat this paragraph word for word, but write Westport instead of Eastport.", _PROSE),
}
