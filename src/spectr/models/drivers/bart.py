"""BART and related models. They look up decoder positions by slot, so the lookup is replaced by the true positions."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.drivers.call import Call, additive, during, through_encoder

__all__ = ["Bart"]


@dataclass(frozen=True, slots=True)
class Bart:
    """Replaces the output of the decoder's position table by a hook during a call."""

    model: PreTrainedModel

    def __call__(self, call: Call) -> Tensor:
        """Return the logits (B, T, V)."""
        table: Any = self.model.get_decoder().embed_positions  # type: ignore[no-untyped-call]
        with during([partial(table.register_forward_hook, partial(_placed, query=call.query))]):
            return through_encoder(self.model, call, additive(call.seen, self.model.dtype))


def _placed(table: nn.Module, args: tuple[Any, ...], _: Tensor, query: Tensor) -> Tensor:
    """Return the position embeddings (B, T, H). The table takes a single row, so the positions of all rows are
    flattened."""
    embedded: Tensor = table.forward(args[0], 0, position_ids=query.reshape(-1))
    return embedded.reshape(*query.shape, -1)
