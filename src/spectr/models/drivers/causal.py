"""Decoder-only models that take `position_ids` and a 4-D mask, which most do."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from spectr.models.attention import has_grouped_heads
from spectr.models.drivers.call import Call, additive

__all__ = ["Causal"]


@dataclass(frozen=True, slots=True)
class Causal:
    """Passes one mask, or one for each kind of layer."""

    model: PreTrainedModel
    layer_kinds: tuple[str, ...] | None  # None: the model takes one mask
    window: int | None  # width of the sliding window
    passes_on: bool  # whether its attention gets arguments that the model does not know

    def __call__(self, call: Call) -> Tensor:
        """Return the logits (B, T, V)."""
        more = {} if call.features is None else {"features": call.features}
        if self.passes_on and has_grouped_heads(self.model):
            more["row_ends"] = call.row_ends
        out: Any = self.model(
            input_ids=call.tokens,
            position_ids=call.query,
            attention_mask=self._masks(call),
            past_key_values=call.cache,
            use_cache=True,
            **more,
        )
        found: Tensor = out.logits
        return found

    def _masks(self, call: Call) -> Tensor | dict[str, Tensor]:
        """Build the masks. A window is measured in positions, because slots of a tree are not in the order of the
        text."""
        seen, dtype = call.seen, self.model.dtype
        near = seen if self.window is None else seen & (call.query[:, :, None] - call.key[:, None, :] < self.window)
        if self.layer_kinds is None:
            return additive(near, dtype)
        return {kind: additive(near if "sliding" in kind else seen, dtype) for kind in self.layer_kinds}
