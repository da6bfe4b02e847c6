"""The versions of spectr and of installed packages. The module imports nothing slow, so `spectr --version` is fast."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _distribution_version

__all__ = ["DISTRIBUTION", "__version__", "installed"]

DISTRIBUTION = "spectr-lm"
"""The name of spectr in package indexes, where `spectr` is another project."""

__version__ = "0.2.0.dev0"


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None. spectr has a version even when it runs from a source tree.

    >>> installed("spectr") == __version__, installed("no-such-package")
    (True, None)
    """
    if package in ("spectr", DISTRIBUTION):
        return __version__
    try:
        return _distribution_version(package)
    except PackageNotFoundError:
        return None
