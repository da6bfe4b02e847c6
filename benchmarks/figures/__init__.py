"""Figures of the theory with simulation beside it: `python -m benchmarks.figures --out FOLDER`.

Sheets of numbers come first, then drawings and a page of them.
"""

from benchmarks.figures.atlas import SHEETS, Atlas, make_atlas
from benchmarks.figures.sheet import Curve, Panel, Sheet, Surface

__all__ = ["SHEETS", "Atlas", "Curve", "Panel", "Sheet", "Surface", "make_atlas"]
