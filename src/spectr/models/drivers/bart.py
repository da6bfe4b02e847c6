"""BART and its kin: decoder positions are looked up by slot, so the lookup is handed ours."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.models.drivers.call import Call, additive, during, through_memory

__all__ = ["Bart"]


@dataclass(frozen=True, slots=True)
class Bart:
    """A hook on the decoder's position table, for the time of a call."""

    model: PreTrainedModel

    def __call__(self, call: Call) -> Tensor:
        """Logits (B, T, V)."""
        table: Any = self.model.get_decoder().embed_positions  # type: ignore[no-untyped-call]
        with during([partial(table.register_forward_hook, partial(_placed, query=call.query))]):
            return through_memory(self.model, call, additive(call.seen, self.model.dtype))


def _placed(table: nn.Module, args: tuple[Any, ...], _: Tensor, query: Tensor) -> Tensor:
    """(B, T, H): the table takes one row of positions, so ours are laid end to end."""
    found: Tensor = table.forward(args[0], 0, position_ids=query.reshape(-1))
    return found.reshape(*query.shape, -1)
