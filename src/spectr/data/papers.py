"""The papers behind the rules, as BibTeX: the entries of `papers.bib` next to this module.

Rules and couplings refer to a paper by its key. The comment line above an entry is how prose cites it.
"""

import re
from dataclasses import dataclass
from importlib.resources import files

from spectr.errors import UnknownNameError
from spectr.registry import nearest

__all__ = ["PAPERS", "Paper", "bibtex"]

_ENTRY = re.compile(r"^% (?P<short>.+)\n(?P<bibtex>@\w+\{(?P<key>[^,]+),\n(?:.+\n)+?\})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Paper:
    """One reference: its key, how prose cites it, and its BibTeX entry."""

    key: str
    short: str
    bibtex: str


PAPERS = {
    entry["key"]: Paper(entry["key"], entry["short"], entry["bibtex"])
    for entry in _ENTRY.finditer((files("spectr.data") / "papers.bib").read_text("utf-8"))
}


def bibtex(*keys: str) -> str:
    """Return the entries of `keys` in order, each once; the entries of all papers if there are no keys.

    >>> print(bibtex("stern2018"))
    @inproceedings{stern2018,
      title     = {Blockwise Parallel Decoding for Deep Autoregressive Models},
      author    = {Stern, Mitchell and Shazeer, Noam and Uszkoreit, Jakob},
      booktitle = {Advances in Neural Information Processing Systems},
      volume    = {31},
      year      = {2018}
    }
    >>> bibtex("stern2017")
    Traceback (most recent call last):
    spectr.errors.UnknownNameError: no paper has the key 'stern2017'; did you mean stern2018? Known: sun2023spectr, ...
    """
    for key in keys:
        if key not in PAPERS:
            raise UnknownNameError(f"no paper has the key {key!r}; {nearest(key, list(PAPERS))}")
    return "\n\n".join(PAPERS[key].bibtex for key in dict.fromkeys(keys or PAPERS))
