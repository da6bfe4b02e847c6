"""Figures that compare the theory with simulation: `python -m benchmarks.figures --out FOLDER`.

The numbers are computed first, as sheets; then the sheets are drawn and collected on a page.
"""

from benchmarks.figures.atlas import SHEETS, Atlas, make_atlas
from benchmarks.figures.sheet import Curve, Panel, Sheet, Surface

__all__ = ["SHEETS", "Atlas", "Curve", "Panel", "Sheet", "Surface", "make_atlas"]
