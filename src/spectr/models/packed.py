"""Linear layers and embeddings with packed weights for CPUs, as drop-in modules for models of transformers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spectr.kernels.cpu.kinds import GROUP, KINDS
from spectr.kernels.cpu.matrix import Matrix, fits
from spectr.models.internals import copy_with_children

__all__ = ["PackedEmbedding", "PackedLinear", "block_matrix", "embedded_rows", "pack", "packed_bytes", "unpacked"]


class PackedLinear(nn.Module):
    """A linear layer whose weights are a packed matrix."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix, self.in_features, self.out_features = matrix, matrix.columns, matrix.rows

    @property
    def weight(self) -> Tensor:
        """A new float copy of the weights."""
        return self.matrix.float_rows(torch.arange(self.matrix.rows))

    @property
    def bias(self) -> Tensor | None:
        """The bias, or None."""
        return None if self.matrix.bias is None else self.matrix.bias[: self.matrix.rows]

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (…, C) and return (…, R). Gradients flow through a float copy of the weights."""
        if rows.requires_grad and torch.is_grad_enabled():
            return nn.functional.linear(rows, self.weight, self.bias)
        return self.matrix.multiply(rows).to(rows.dtype)


class PackedEmbedding(nn.Module):
    """An embedding whose rows are unpacked when they are looked up."""

    def __init__(self, matrix: Matrix, scale: float = 1.0) -> None:
        super().__init__()
        self.matrix, self.scale = matrix, scale
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    @property
    def weight(self) -> Tensor:
        """A new float copy of the weights."""
        return self.matrix.float_rows(torch.arange(self.matrix.rows))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (…, C) of tokens (…)."""
        rows = self.matrix.float_rows(tokens)
        return rows if self.scale == 1.0 else rows * self.scale


def embedded_rows(embedding: Any, rows: Tensor) -> Tensor:
    """Return rows of an embedding's weights as floats, whether they are packed or not."""
    if isinstance(embedding, PackedEmbedding):
        return embedding.matrix.float_rows(rows)
    found: Tensor = embedding.weight.detach()[rows.to(embedding.weight.device)]
    return found


def pack(module: nn.Module, kind: str | None = None) -> None:
    """Replace the linear layers and embeddings of a module on a CPU by packed ones, which store the same values, or
    int8 with kind "INT8". Layers that share weights still do. Layers that cannot be packed, such as those whose input
    size is not a multiple of 32, are kept."""
    made: dict[int, Matrix] = {}
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if type(child) is nn.Linear and _packable(child.weight):
                setattr(owner, name, PackedLinear(_matrix(child.weight, kind, child.bias, made)))
            elif isinstance(child, nn.Embedding) and _packable(child.weight):
                scale = float(getattr(child, "scalar_embed_scale", 1.0))
                setattr(owner, name, PackedEmbedding(_matrix(child.weight, kind, None, made), scale))


def block_matrix(codes: Tensor, scale: Tensor, parts: Sequence[slice] = (slice(None),)) -> Matrix:
    """Pack int8 weights (R, C), which have a half-precision scale (R, C / 64) for every 64 columns, into blocks of 32
    with the same values. `parts` selects columns; its borders are multiples of 32."""
    rows, columns = codes.shape
    scales = scale.repeat_interleave(2, 1)[:, : columns // GROUP]
    kept = np.concatenate([np.arange(columns)[part].reshape(-1, GROUP) for part in parts])
    blocks = codes.view(rows, -1, GROUP).numpy()[:, kept[:, 0] // GROUP]
    heads = scales.contiguous().numpy()[:, kept[:, 0] // GROUP, None].view(np.uint8)
    made = np.concatenate([heads, blocks.view(np.uint8)], -1).reshape(rows, -1)
    return Matrix.packed("Q8_0", made, kept.size)


def _packable(weight: Tensor) -> bool:
    known = weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return known and weight.device.type == "cpu" and fits(KINDS["F32"], weight.shape[1])


def _matrix(weight: Tensor, kind: str | None, bias: Tensor | None, made: dict[int, Matrix]) -> Matrix:
    """Return one matrix for all layers that share the weights; a layer with a bias gets a matrix of its own."""
    if bias is not None:
        return Matrix.of(weight, kind, bias)
    if weight.data_ptr() not in made:
        made[weight.data_ptr()] = Matrix.of(weight, kind)
    return made[weight.data_ptr()]


def unpacked(model: nn.Module) -> nn.Module:
    """Return a copy of a model with float32 layers of torch in place of packed ones, for comparison and for training.
    It shares everything else. A model without packed layers is returned itself."""
    if not any(isinstance(module, PackedLinear | PackedEmbedding) for module in model.modules()):
        return model
    made: dict[int, nn.Parameter] = {}

    def weight(matrix: Matrix) -> nn.Parameter:
        if id(matrix) not in made:
            made[id(matrix)] = nn.Parameter(matrix.float_rows(torch.arange(matrix.rows)), requires_grad=False)
        return made[id(matrix)]

    def change(module: Any) -> Any:
        if isinstance(module, PackedLinear):
            linear = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
            linear.weight = weight(module.matrix)
            if module.bias is not None:
                linear.bias = nn.Parameter(module.bias, requires_grad=False)
            return linear
        if isinstance(module, PackedEmbedding):
            return _ScaledEmbedding(weight(module.matrix), module.scale)
        return copy_with_children(module, change)

    found: nn.Module = change(model)
    return found


class _ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by a constant."""

    def __init__(self, weight: nn.Parameter, scale: float) -> None:
        super().__init__(weight.shape[0], weight.shape[1], device="meta")
        self.weight, self.scale = weight, scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch uses
        rows = super().forward(input)
        return rows if self.scale == 1.0 else rows * self.scale


def packed_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of packed weights by kind; shared weights count once."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for module in model.modules():
        matrix = getattr(module, "matrix", None)
        if isinstance(matrix, Matrix) and id(matrix) not in seen:
            seen.add(id(matrix))
            found[matrix.kind.name] = found.get(matrix.kind.name, 0) + matrix.bytes
    return found
