"""What the rules are worth on paper: acceptance against the number of drafts, in closed form. Knows no models."""

from spectr.theory.compare import COLUMNS, KS, Column, Comparison, compare
from spectr.theory.families import Family, bernoulli, from_files, uniform, zipf

__all__ = [
    "COLUMNS",
    "KS",
    "Column",
    "Comparison",
    "Family",
    "bernoulli",
    "compare",
    "from_files",
    "uniform",
    "zipf",
]
