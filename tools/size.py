"""Reports the sizes of functions, files and folders against the aims of the house style; `make size` runs it.

It needs only the standard library, so it runs before anything is installed. Its exit status is always 0.
"""

import argparse
import ast
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEDIAN, P90, LONGEST, FILE = 10, 35, 60, 350  # in lines: the first three are of functions, the last of files


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, possibly nested; `lines` counts its body without the docstring."""

    name: str
    where: str
    lines: int


@dataclass(frozen=True, slots=True)
class File:
    """A source file: the number of its lines, and of those with code (no blank lines, comments or docstrings)."""

    path: str
    lines: int
    code: int
    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The measured files; derived numbers are properties."""

    files: tuple[File, ...]

    @property
    def functions(self) -> list[Function]:
        return [function for file in self.files for function in file.functions]

    @property
    def too_long(self) -> list[Function]:
        return sorted((f for f in self.functions if f.lines > LONGEST), key=lambda f: -f.lines)

    @property
    def too_big(self) -> list[File]:
        return sorted((f for f in self.files if f.lines >= FILE), key=lambda f: -f.lines)

    @property
    def folders(self) -> dict[str, int]:
        code: dict[str, int] = {}
        for file in self.files:
            folder = str(Path(file.path).parent)
            code[folder] = code.get(folder, 0) + file.code
        return dict(sorted(code.items()))

    def quantile(self, q: float) -> int:
        ordered = sorted(function.lines for function in self.functions)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0

    @property
    def missed(self) -> list[str]:
        return [
            *_above("median function", self.quantile(0.5), MEDIAN),
            *_above("90th percentile of functions", self.quantile(0.9), P90),
            *(f"{f.where} {f.name}: {f.lines} lines, aim at most {LONGEST}" for f in self.too_long),
            *(f"{f.path}: {f.lines} lines, aim under {FILE}" for f in self.too_big),
        ]


def _above(what: str, lines: int, aim: int) -> list[str]:
    return [f"{what}: {lines} lines, aim at most {aim}"] if lines > aim else []


def _docstring(node: ast.AST) -> ast.stmt | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return node.body[0] if ast.get_docstring(node, clean=False) is not None else None


def _functions(tree: ast.Module, path: Path) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if _docstring(node) else node.body
            lines = (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0
            yield Function(node.name, f"{path}:{node.lineno}", lines)


def _lines_of_code(tree: ast.Module, text: list[str]) -> int:
    prose = {
        line
        for node in ast.walk(tree)
        if (doc := _docstring(node)) is not None
        for line in range(doc.lineno, (doc.end_lineno or doc.lineno) + 1)
    }
    return sum(
        1 for number, line in enumerate(text, 1) if number not in prose and line.strip() and line.strip()[0] != "#"
    )


def measure(path: Path) -> File:
    source = path.read_text(encoding="utf-8")
    tree, text = ast.parse(source), source.splitlines()
    return File(str(path), len(text), _lines_of_code(tree, text), tuple(_functions(tree, path)))


def report(roots: list[Path]) -> Report:
    paths = sorted(path for root in roots for path in ([root] if root.is_file() else root.rglob("*.py")))
    return Report(tuple(measure(path) for path in paths))


def as_json(found: Report) -> dict[str, Any]:
    return {
        "functions": len(found.functions),
        "median": found.quantile(0.5),
        "p90": found.quantile(0.9),
        "functions_over": [asdict(function) for function in found.too_long],
        "files_over": [{"path": file.path, "lines": file.lines} for file in found.too_big],
        "code_lines": found.folders,
        "aims": {"median": MEDIAN, "p90": P90, "longest": LONGEST, "file": FILE},
        "missed": found.missed,
    }


def as_text(found: Report) -> str:
    longest = max((function.lines for function in found.functions), default=0)
    biggest = max((file.lines for file in found.files), default=0)
    rows = [
        f"functions {len(found.functions):>6}",
        f"  median  {found.quantile(0.5):>6}   aim ≤ {MEDIAN}",
        f"  90 %    {found.quantile(0.9):>6}   aim ≤ {P90}",
        f"  longest {longest:>6}   aim ≤ {LONGEST}",
        f"files     {len(found.files):>6}",
        f"  biggest {biggest:>6}   aim < {FILE}",
        "lines of code",
        *(f"  {code:>6}  {folder}" for folder, code in found.folders.items()),
        f"  {sum(found.folders.values()):>6}  in all",
        *(["aims missed", *(f"  {line}" for line in found.missed)] if found.missed else ["every aim is met"]),
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Report function, file and folder sizes against the aims.")
    parser.add_argument("roots", nargs="*", type=Path, default=[Path("src")], help="files or folders (default: src)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = report(options.roots)
    print(json.dumps(as_json(found), indent=2) if options.json else as_text(found))


if __name__ == "__main__":
    main()
