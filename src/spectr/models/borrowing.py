"""The target's embedding and output layer, which a trained head uses and does not save."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.draft.model import LACKING
from spectr.models.int8 import rounded
from spectr.models.logits import scale_and_cap
from spectr.models.packed import PackedLinear

__all__ = ["Borrowing"]


class Borrowing:
    """Holds the target's embedding and output layer, which a head uses and does not save."""

    def __init__(self) -> None:
        self._borrowed: dict[str, Any] = {}

    def borrow(self, target: PreTrainedModel, rows: Tensor | None = None) -> None:
        """Use the target's embedding and its output layer, or only `rows` (R,) of the output layer."""
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        if rows is not None and isinstance(output, PackedLinear):
            output = PackedLinear(output.matrix.select_rows(rows))
        elif rows is not None:
            few = nn.Linear(output.in_features, len(rows), bias=output.bias is not None, device=output.weight.device)
            few.weight = nn.Parameter(output.weight.detach()[rows], requires_grad=False)
            if output.bias is not None:
                few.bias = nn.Parameter(output.bias.detach()[rows], requires_grad=False)
            output = few
        size = int(getattr(target.get_output_embeddings(), "out_features", 0))  # type: ignore[no-untyped-call]
        self._borrowed = {
            "embedding": target.get_input_embeddings(),
            "output": output,
            "config": target.config.get_text_config(decoder=True),
            "rows": rows,
            "size": size,
        }

    def round_output(self) -> None:
        """On a GPU, use an int8 copy of the output layer: most of the weights that a shallow head reads are there."""
        self._borrowed["output"] = rounded(self._borrowed["output"])

    @property
    def vocabulary(self) -> int:
        """The size of the target's vocabulary."""
        return int(self._borrowed["size"])

    def get_output_embeddings(self) -> Any:
        """Return the target's output layer, or the part of it that is used."""
        return self._borrowed.get("output")

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the target's embeddings of `tokens`."""
        found: Tensor = self._borrowed["embedding"](tokens)
        return found

    @property
    def drafted(self) -> Tensor | None:
        """The tokens (R,) that the head drafts, in increasing order; None: all."""
        rows: Tensor | None = self._borrowed["rows"]
        return rows

    def logits(self, features: Tensor) -> Tensor:
        """Return logits over the target's vocabulary for predicted features (…, H)."""
        return self.complete(self._output(features))

    def drafted_logits(self, features: Tensor) -> Tensor:
        """Return logits of the drafted tokens alone, (…, R), for features (…, H)."""
        return scale_and_cap(self._output(features), self._borrowed["config"])

    def _output(self, features: Tensor) -> Tensor:
        output = self._borrowed["output"]
        if isinstance(output, PackedLinear) or not output.weight.is_floating_point():
            made: Tensor = output(features)
        else:
            made = output(features.to(output.weight.dtype))
        return made

    def complete(self, logits: Tensor) -> Tensor:
        """Extend what left the output layer to the target's whole vocabulary. Tokens without a row get the lowest
        logits: they are hardly ever drafted, but a policy that allows only such tokens still leaves a distribution."""
        rows, made = self._borrowed["rows"], scale_and_cap(logits, self._borrowed["config"])
        if rows is None:
            return made
        last = made.amax(-1, keepdim=True) - LACKING
        return last.repeat(*(1,) * (made.dim() - 1), self._borrowed["size"]).index_copy_(-1, rows, made)
