"""Parallel heads: one prediction for each of the next few tokens, all in one call (Stern et al. 2018).

Head i predicts the feature i tokens below the root without knowing the tokens in between, so that its distribution is
the same for all nodes of a depth. That is cheap, and the deeper, the less accurate.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.borrowing import Borrowing
from spectr.types import Layers

__all__ = ["BlockwiseHead", "BlockwiseShape", "blockwise_of"]


@dataclass(frozen=True, slots=True)
class BlockwiseShape:
    """The target's width, the number of depths, and the inner width of each head."""

    width: int
    depths: int = 4
    inner: int = 1536
    feature_layers: ClassVar[Layers] = ()  # it reads the input of the output layer only


class _Block(nn.Module):
    """One head: a residual layer and a norm."""

    def __init__(self, shape: BlockwiseShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)

    def forward(self, rows: Tensor) -> Tensor:
        features: Tensor = self.norm(rows + self.down(nn.functional.silu(self.up(rows))))
        return features


class BlockwiseHead(Borrowing, nn.Module):
    """A layer that joins the feature before the root with the root's embedding, and a block for each depth."""

    def __init__(self, shape: BlockwiseShape) -> None:
        nn.Module.__init__(self)
        Borrowing.__init__(self)
        self.shape = shape
        self.join = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.depths))

    @property
    def deepest(self) -> int | None:
        """The number of depths, one for each block."""
        return self.shape.depths

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.join.weight.dtype

    def guesses(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Predict the features (…, D, H) below `tokens` (…) from the features (…, H) of the tokens before them."""
        joined = self.join(torch.cat([features.to(self.dtype), self.embed(tokens).to(self.dtype)], -1))
        return torch.stack([block(joined) for block in self.blocks], -2)

    def expected(self, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
        """Return for each depth the features (B, T, H) that its block predicts at every position, for training."""
        before = nn.functional.pad(features, (0, 0, 1, 0))[:, :-1]
        guesses = self.guesses(tokens, before)  # (B, T, D, H)
        return [nn.functional.pad(guesses[:, :, d], (0, 0, d, 0))[:, : tokens.shape[1]] for d in range(depths)]

    def ahead(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return logits (B, D, V) for the depths below roots `tokens` (B,) with the features (B, H) before them."""
        return self.logits(self.guesses(tokens, features))

    def as_data(self) -> dict[str, Any]:
        """Return the sizes as plain data, for a file."""
        return asdict(self.shape)


def blockwise_of(target: PreTrainedModel, depths: int = 4) -> BlockwiseHead:
    """Return new, untrained parallel heads for this target, on its device, in float32."""
    config: Any = target.config.get_text_config(decoder=True)
    width = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * width)
    made = BlockwiseHead(BlockwiseShape(width, depths, inner)).to(target.device)
    made.borrow(target)
    return made
