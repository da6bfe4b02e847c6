"""An extension of griffe that renders docstrings and comments of the package on the reference page.

Docstrings are plain prose with doctests in between; Markdown would render their `>>>` as nested quotations. Fields of
dataclasses are described by a comment at the end of their line, which griffe does not read. And `spectr.rule` is a
function that griffe confuses with the module of the same name, in which rules are defined.
"""

from typing import Any

import griffe

__all__ = ["ReadableDocstrings", "fenced", "trailing_comment"]


def fenced(text: str) -> str:
    """Put every doctest, which ends at a blank line, into a code block.

    >>> print(fenced("A sum.\\n\\n>>> 1 + 1\\n2"))
    A sum.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])


def trailing_comment(lines: list[str]) -> str | None:
    """Return the comment after a statement as a sentence.

    >>> trailing_comment(["steps: int = 0  # target calls"]), trailing_comment(["steps: int = 0"])
    ('Target calls.', None)
    """
    comment = lines[-1].partition("  # ")[2].strip() if lines else ""
    return f"{comment[0].upper()}{comment[1:].rstrip('.')}." if comment else None


class ReadableDocstrings(griffe.Extension):
    """Fences the examples in docstrings, uses comments as docstrings of fields, and finds shadowed functions."""

    def __init__(self) -> None:
        self._functions: dict[str, griffe.Function] = {}

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        self._functions[func.path] = func

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Where a public name refers to a module, make it refer to the function with the module's name."""
        for name, member in list(pkg.members.items()):
            if not member.is_alias or name not in (pkg.exports or ()) or not member.is_module:
                continue
            path = member.final_target.path
            found = self._functions.get(path) or self._functions.get(f"{path}.{name}")
            if found is not None:
                pkg.set_member(name, found)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and attr.lineno is not None and attr.endlineno is not None:
            lines = attr.lines_collection[attr.filepath][attr.lineno - 1 : attr.endlineno]
            if (comment := trailing_comment(lines)) is not None:
                attr.docstring = griffe.Docstring(comment, parent=attr)
