"""The version of spectr and of the packages beside it. Imports nothing heavy, so that `spectr --version` is fast."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _distribution_version

__all__ = ["DISTRIBUTION", "__version__", "installed"]

DISTRIBUTION = "spectr-lm"
"""What package indexes call spectr; the name `spectr` belongs to somebody else there."""

__version__ = "0.2.0.dev0"


def installed(package: str) -> str | None:
    """The version of an installed package, or None. spectr itself is known even when it runs from a source tree.

    >>> installed("spectr") == __version__, installed("no-such-package")
    (True, None)
    """
    if package in ("spectr", DISTRIBUTION):
        return __version__
    try:
        return _distribution_version(package)
    except PackageNotFoundError:
        return None
