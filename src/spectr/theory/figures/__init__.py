"""Figures of the theory with simulation beside it: sheets of numbers first, then drawings and a page of them."""

from spectr.theory.figures.atlas import SHEETS, Atlas, make_atlas
from spectr.theory.figures.sheet import Curve, Panel, Sheet, Surface

__all__ = ["SHEETS", "Atlas", "Curve", "Panel", "Sheet", "Surface", "make_atlas"]
