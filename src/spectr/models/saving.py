"""Files that are complete or absent: they are written under a temporary name and renamed."""

from pathlib import Path

from safetensors.torch import save
from torch import Tensor

__all__ = ["save_tensors", "save_text"]


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors on the CPU in the safetensors format, with the permissions that the user's umask gives: files of
    safetensors' own `save_file` can be read by nobody else."""
    _save(path, save(tensors, metadata))


def save_text(path: Path, text: str) -> None:
    """Write a text file."""
    _save(path, text.encode())


def _save(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
