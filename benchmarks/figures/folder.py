"""Writes an atlas to a folder: each sheet as PNG and SVG, the page, and the numbers as JSON."""

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures.atlas import Atlas
from benchmarks.figures.draw import draw_sheet, rendered
from benchmarks.figures.page import page
from spectr.errors import ArgumentError
from spectr.theory.figure import check_matplotlib

__all__ = ["KINDS", "check_out", "write_atlas"]

KINDS = ("png", "svg")


def check_out(folder: Path) -> None:
    """Check before any work that matplotlib is installed and that the folder can be written."""
    check_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".spectr"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ArgumentError(
            f"--out must be a folder that can be written: {folder}: {error.strerror or error}"
        ) from None


def write_atlas(atlas: Atlas, folder: Path, progress: Callable[[], None] = lambda: None) -> list[Path]:
    """Write all files, and call `progress` after each sheet. Return the paths, the page first."""
    check_out(folder)
    files: dict[str, bytes] = {}
    for sheet in atlas.sheets:
        figure = draw_sheet(sheet)
        files |= {f"{sheet.name}.{kind}": rendered(figure, kind) for kind in KINDS}
        progress()
    pictures = {sheet.name: files[f"{sheet.name}.svg"] for sheet in atlas.sheets}
    numbers = json.dumps(atlas.as_data(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    texts = {"index.html": page(atlas, pictures), "numbers.json": numbers}
    return _written(folder, {**{name: text.encode() for name, text in texts.items()}, **files})


def _written(folder: Path, files: dict[str, bytes]) -> list[Path]:
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise ArgumentError(f"cannot write into {folder}: {error.strerror or error}") from None
    return [folder / name for name in files]
