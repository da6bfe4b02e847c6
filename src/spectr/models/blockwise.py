"""Parallel heads: one guess for each of the next few tokens from the root alone, all in one call (Stern et al. 2018).

Head i expects the feature i tokens below the root, whatever was drafted in between, so its law is the same for all
nodes of a depth: cheap, and worse the deeper it guesses.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.head import Borrowing

__all__ = ["BlockwiseHead", "BlockwiseShape", "blockwise_of"]


@dataclass(frozen=True, slots=True)
class BlockwiseShape:
    """The target's width, how many tokens ahead, and the inner width of each head."""

    width: int
    depths: int = 4
    inner: int = 1536


class _Block(nn.Module):
    """One guess: a residual layer and a norm."""

    def __init__(self, shape: BlockwiseShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.norm(rows + self.down(nn.functional.silu(self.up(rows))))
        return found


class BlockwiseHead(Borrowing, nn.Module):
    """What joins the feature before the root with the root's embedding, and a block for each depth."""

    def __init__(self, shape: BlockwiseShape) -> None:
        nn.Module.__init__(self)
        Borrowing.__init__(self)
        self.shape = shape
        self.join = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.depths))

    @property
    def deepest(self) -> int | None:
        """As many depths as it has heads."""
        return self.shape.depths

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.join.weight.dtype

    def guesses(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Expected features (…, D, H) below `tokens` (…), given the features (…, H) of the tokens before them."""
        joined = self.join(torch.cat([features.to(self.dtype), self.embed(tokens).to(self.dtype)], -1))
        return torch.stack([block(joined) for block in self.blocks], -2)

    def expected(self, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
        """For training: at each position what the head for each depth expected there, from the root above it."""
        before = nn.functional.pad(features, (0, 0, 1, 0))[:, :-1]
        found = self.guesses(tokens, before)  # (B, T, D, H)
        return [nn.functional.pad(found[:, :, d], (0, 0, d, 0))[:, : tokens.shape[1]] for d in range(depths)]

    def ahead(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Logits (B, D, V) of the tokens below roots (B,) with the features (B, H) before them."""
        return self.logits(self.guesses(tokens, features))

    def as_data(self) -> dict[str, Any]:
        """The sizes, for a file."""
        return asdict(self.shape)


def blockwise_of(target: PreTrainedModel, depths: int = 4) -> BlockwiseHead:
    """Fresh parallel heads for this target, on its device, in float32."""
    config: Any = target.config.get_text_config(decoder=True)
    width = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * width)
    made = BlockwiseHead(BlockwiseShape(width, depths, inner)).to(target.device)
    made.borrow(target)
    return made
