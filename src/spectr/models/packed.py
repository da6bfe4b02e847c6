"""Linear layers and embeddings whose weights stay packed, on a CPU: modules of transformers keep working with them."""

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
    """A linear layer over a packed matrix."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix, self.in_features, self.out_features = matrix, matrix.columns, matrix.rows

    @property
    def weight(self) -> Tensor:
        """The weights as floats, made anew."""
        return self.matrix.look(torch.arange(self.matrix.rows))

    @property
    def bias(self) -> Tensor | None:
        """The bias, if it has one."""
        return None if self.matrix.bias is None else self.matrix.bias[: self.matrix.rows]

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (…, C) → (…, R). Gradients go through the weights as floats."""
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
        """The weights as floats, made anew."""
        return self.matrix.look(torch.arange(self.matrix.rows))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (…) → (…, C)."""
        found = self.matrix.look(tokens)
        return found if self.scale == 1.0 else found * self.scale


def embedded_rows(embedding: Any, rows: Tensor) -> Tensor:
    """Rows of an embedding's weights, packed or not."""
    if isinstance(embedding, PackedEmbedding):
        return embedding.matrix.look(rows)
    found: Tensor = embedding.weight.detach()[rows.to(embedding.weight.device)]
    return found


def pack(module: nn.Module, kind: str | None = None) -> None:
    """Replace the linear layers and embeddings below a module, on a CPU, by packed ones: numbers as they are, or
    rounded to int8. An embedding that shares its weights with the output layer still does. What cannot be packed, such
    as rows whose length is no multiple of 32, stays."""
    made: dict[int, Matrix] = {}
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if type(child) is nn.Linear and _packable(child.weight):
                setattr(owner, name, PackedLinear(_matrix(child.weight, kind, child.bias, made)))
            elif isinstance(child, nn.Embedding) and _packable(child.weight):
                scale = float(getattr(child, "scalar_embed_scale", 1.0))
                setattr(owner, name, PackedEmbedding(_matrix(child.weight, kind, None, made), scale))


def block_matrix(codes: Tensor, scale: Tensor, parts: Sequence[slice] = (slice(None),)) -> Matrix:
    """Weights (R, C) in int8 with a half-precision scale (R, C / 64) for each 64, as blocks of 32 with the same values;
    of some of the columns, whose borders are multiples of 32."""
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
    """One matrix for all who share the weights; a bias is nobody else's."""
    if bias is not None:
        return Matrix.of(weight, kind, bias)
    if weight.data_ptr() not in made:
        made[weight.data_ptr()] = Matrix.of(weight, kind)
    return made[weight.data_ptr()]


def unpacked(model: nn.Module) -> nn.Module:
    """The same model with the usual layers of torch in place of packed ones, in float32: for comparison, and for
    training. It shares everything else. A model without packed layers is given as it is."""
    if not any(isinstance(module, PackedLinear | PackedEmbedding) for module in model.modules()):
        return model
    made: dict[int, nn.Parameter] = {}

    def weight(matrix: Matrix) -> nn.Parameter:
        if id(matrix) not in made:
            made[id(matrix)] = nn.Parameter(matrix.look(torch.arange(matrix.rows)), requires_grad=False)
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
    """An embedding times a number."""

    def __init__(self, weight: nn.Parameter, scale: float) -> None:
        super().__init__(weight.shape[0], weight.shape[1], device="meta")
        self.weight, self.scale = weight, scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        found = super().forward(input)
        return found if self.scale == 1.0 else found * self.scale


def packed_bytes(model: nn.Module) -> dict[str, int]:
    """Bytes of packed weights by kind; what is shared counts once."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for module in model.modules():
        matrix = getattr(module, "matrix", None)
        if isinstance(matrix, Matrix) and id(matrix) not in seen:
            seen.add(id(matrix))
            found[matrix.kind.name] = found.get(matrix.kind.name, 0) + matrix.bytes
    return found
