"""The files of a published head: its config, and the names, shapes and values of its tensors."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from spectr.errors import ArgumentError, MismatchError
from spectr.models.catalog import FetchError
from spectr.models.hub import why_not_on_hub
from spectr.models.internals import find_file

__all__ = ["Checkpoint", "open_checkpoint"]

_SAFE, _INDEX, _PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_CONFIG = "config.json"
_MARKS = ("draft_vocab_size", "speculators_model_type", "dflash_config", "dspark_config", "eagle_config", "markov_rank",
          "medusa_num_heads", "speculator_config")  # fmt: skip
_NAMES = ("eagle", "dflash", "dspark", "medusa", "speculator")
_PREFIX = "model."
_INSTEAD = "use an EAGLE-3, P-EAGLE, DFlash or DSpark head, a smaller model of the family, or spectr train"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The config and the tensors of a head. Tensor names are without the prefix "model." that some publishers use."""

    name: str  # folder or hub id
    config: dict[str, Any]
    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]] = field(repr=False)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, on the CPU."""
        return {_bare(name): value for file in self.files for name, value in _values(file).items()}

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this name."""
        return name in self.shapes

    @property
    def is_speculators(self) -> bool:
        """Whether the config is in the format of speculators."""
        return "speculators_model_type" in self.config

    @property
    def layers(self) -> int:
        """The number of decoder layers."""
        return 1 + max((int(name.split(".")[1]) for name in self.shapes if name.startswith("layers.")), default=0)

    def refusal(self, what: str, advice: str = _INSTEAD) -> MismatchError:
        """Return an error that says why this head cannot be used, and what can be used instead."""
        return MismatchError(f"the head {self.name!r} {what}; {advice}")


def _bare(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _values(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".bin":
        tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return tensors
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  not a mapping


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    if file.suffix == ".bin":
        return {name: tuple(value.shape) for name, value in _values(file).items()}
    with safe_open(file, "pt") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def _file(name: str, file: str) -> Path | None:
    """Return a file of a folder or of a repository on the hub, None if there is no such file."""
    try:
        path = find_file(name, file)
    except OSError as error:
        reason = (str(error).strip().splitlines() or ["transformers gives no reason"])[0].rstrip(".")
        raise FetchError(f"{file} of {name!r} could not be fetched: {reason}") from error
    return None if path is None else Path(path)


def _weights(name: str) -> tuple[Path, ...]:
    if (index := _file(name, _INDEX)) is not None:
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return tuple(found for part in parts if (found := _file(name, part)) is not None)
    found = _file(name, _SAFE) or _file(name, _PICKLED)
    return () if found is None else (found,)


def _may_be_head(config: dict[str, Any]) -> bool:
    """Return whether a config may belong to a head. A config with one layer may: the oldest heads have no other
    mark."""
    names = " ".join(str(name).lower() for name in (config.get("architectures") or []))
    is_marked = any(mark in config for mark in _MARKS) or any(name in names for name in _NAMES)
    return is_marked or config.get("num_hidden_layers") == 1


def _is_model(shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether these are the tensors of a whole language model."""
    return "fc.weight" not in shapes and "embed_tokens.weight" in shapes and "norm.weight" in shapes


def open_checkpoint(name: str) -> Checkpoint | None:
    """Open the head in a folder or under a hub id; return None if it is not a head."""
    if not Path(name).is_dir() and (Path(name).exists() or "/" not in name or why_not_on_hub(name) is not None):
        return None
    config_file = _file(name, _CONFIG)
    if config_file is None:
        return None
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{config_file} must be JSON: {error}; fetch it again") from None
    if not _may_be_head(config):
        return None
    files = _weights(name)
    shapes = {_bare(tensor): shape for file in files for tensor, shape in _shapes(file).items()}
    if not files and "medusa_num_heads" not in config:
        raise ArgumentError(f"{name!r} must contain weights, {_SAFE} or {_PICKLED}, and has neither; fetch them")
    return None if _is_model(shapes) else Checkpoint(name, config, files, shapes)
