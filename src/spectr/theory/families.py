"""Pairs of a target law and a draft law on which rules are compared: the papers' examples, a model-like pair, and laws
from files."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spectr.errors import ArgumentError, LawError
from spectr.transport.laws import check_law, check_pair

__all__ = ["Family", "bernoulli", "from_files", "uniform", "zipf"]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One pair of laws over one vocabulary."""

    name: str
    target: Tensor  # (V,) float64
    draft: Tensor  # (V,) float64
    note: str  # a short description

    def __post_init__(self) -> None:
        check_pair(self.target, self.draft)
        if self.target.dim() != 1 or self.draft.dim() != 1:
            raise LawError(
                f"a family is one pair of laws (V,), got {tuple(self.target.shape)} and {tuple(self.draft.shape)}"
            )


def bernoulli(target_p: float = 0.25, draft_p: float = 0.75) -> Family:
    """Return laws of two tokens, given the probabilities of the second.

    >>> bernoulli(0.25, 0.75).target.tolist()
    [0.75, 0.25]
    """
    for name, chance in (("target_p", target_p), ("draft_p", draft_p)):
        if not 0 <= chance <= 1:
            raise ArgumentError(f"{name} must lie in [0, 1], got {chance}")
    target, draft = torch.tensor([[1 - target_p, target_p], [1 - draft_p, draft_p]], dtype=torch.float64)
    note = f"target Bernoulli({target_p:g}), draft Bernoulli({draft_p:g})"
    return Family(f"bernoulli({target_p:g}, {draft_p:g})", target, draft, note)


def uniform(target_size: int = 20, draft_size: int = 40, offset: int = 4) -> Family:
    """Return a target that is uniform over the first `target_size` tokens, and a draft over `draft_size` from `offset`.

    >>> family = uniform(2, 2, offset=1)
    >>> family.target.tolist(), family.draft.tolist()
    ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5])
    """
    if target_size < 1 or draft_size < 1 or offset < 0:
        raise ArgumentError(
            f"uniform takes sizes of at least 1 and an offset of at least 0, got {target_size}, {draft_size}, {offset}"
        )
    target, draft = torch.zeros(2, max(target_size, offset + draft_size), dtype=torch.float64)
    target[:target_size] = 1 / target_size
    draft[offset : offset + draft_size] = 1 / draft_size
    shared = max(0, min(target_size, offset + draft_size) - offset)
    note = f"target uniform over {target_size} tokens, draft over {draft_size}, {shared} of them shared"
    return Family(f"uniform({target_size}, {draft_size}, offset={offset})", target, draft, note)


def zipf(size: int = 200, exponent: float = 1.3, noise: float = 1.0, temperature: float = 1.0, seed: int = 0) -> Family:
    """Return laws like those of a language model and its drafter.

    Target logits are −exponent·log rank + 0.6·N(0, 1), draft logits 0.9·target logits + noise·N(0, 1); both are divided
    by the temperature (0 is greedy)."""
    if size < 1 or not 0 <= noise < math.inf or not 0 <= temperature < math.inf or not math.isfinite(exponent):
        raise ArgumentError(
            "zipf takes a size of at least 1, finite numbers, and noise and temperature of at least 0, "
            f"got size {size}, exponent {exponent}, noise {noise}, temperature {temperature}"
        )
    generator = torch.Generator().manual_seed(seed)
    normal, wrong = torch.randn(2, size, generator=generator, dtype=torch.float64)
    target = -exponent * torch.arange(1, size + 1, dtype=torch.float64).log() + 0.6 * normal
    draft = 0.9 * target + noise * wrong
    note = f"{size} tokens, exponent {exponent:g}, draft noise {noise:g}, temperature {temperature:g}, seed {seed}"
    return Family(f"zipf(T={temperature:g})", _law(target, temperature), _law(draft, temperature), note)


def _law(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return torch.zeros_like(logits).index_fill_(-1, logits.argmax(), 1.0)
    return (logits / temperature).softmax(-1)


def from_files(target_path: str | Path, draft_path: str | Path) -> Family:
    """Read a target law and a draft law from two files: a JSON list, a NumPy array (.npy), or text with numbers
    separated by commas, blanks or line ends."""
    target_path, draft_path = Path(target_path), Path(draft_path)
    target, draft = _read_law(target_path), _read_law(draft_path)
    if len(target) != len(draft):
        raise LawError(
            f"both files must cover one vocabulary; {target_path} has {len(target)} tokens, {draft_path} {len(draft)}; "
            "pad the shorter one with 0"
        )
    return Family(f"{target_path.name}, {draft_path.name}", target, draft, "laws from files")


def _read_law(path: Path) -> Tensor:
    """Return the law in a file, (V,) float64.

    Files contain rounded numbers, so the law is checked with the tolerance of float32 and then renormalised."""
    try:
        numbers = _read_numbers(path)
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError):
        raise LawError(
            f"{path} must contain one law: a JSON list of numbers, an .npy array, or numbers separated by commas or "
            "lines"
        ) from None
    if numbers.ndim != 1:
        raise LawError(f"{path} must contain one law, a plain list of numbers; got an array of shape {numbers.shape}")
    law = torch.from_numpy(numbers)
    check_law(str(path), law.float())
    return law / law.sum()


def _read_numbers(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if path.suffix == ".npy":
        found = np.load(path, allow_pickle=False)
        if found.dtype.kind not in "fiu":
            raise TypeError(found.dtype)
        return np.asarray(found, dtype=np.float64)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json" or text.lstrip().startswith("["):
        return np.asarray(_numbers_only(json.loads(text)), dtype=np.float64)
    return np.asarray([float(word) for word in text.replace(",", " ").split()], dtype=np.float64)


def _numbers_only(found: object) -> list[float]:
    if not isinstance(found, list) or not all(type(number) in (int, float) for number in found):
        raise TypeError(found)
    return found
