"""Parts that published heads share: embedding, output layer and draft vocabulary, and the choice of hidden states."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.draft.model import LACKING
from spectr.models.int8 import rounded
from spectr.models.internals import LlamaRMSNorm, supports_sdpa
from spectr.models.packed import PackedEmbedding, PackedLinear
from spectr.models.published.formats import Form
from spectr.rows import cached_arange

__all__ = ["PublishedHead", "Readout", "first_unseen", "only_bias_of"]


class Readout(nn.Module):
    """Maps the output of a head to logits: a norm, if the head's output is taken before it, and an output layer, its
    own or the target's. The engine keeps the input of this module as the feature of a node."""

    def __init__(self, form: Form, *, norms: bool) -> None:
        super().__init__()
        self.in_features = int(form.config.hidden_size)
        self.out_features = form.vocabulary.own_output or form.source.vocabulary
        self.norm = LlamaRMSNorm(self.in_features, eps=form.config.rms_norm_eps)
        own = form.vocabulary.own_output
        self.lm_head = None if own is None else nn.Linear(self.in_features, own, bias=False)
        self._norms = norms
        self._borrowed: dict[str, Any] = {}  # neither saved nor moved

    def borrow(self, output: Any) -> None:
        """Use the target's output layer if the head has none."""
        if self.lm_head is None:
            self._borrowed["output"] = output

    def round(self) -> None:
        """On a GPU, use an int8 copy of the target's output layer: most of the weights that a shallow head reads."""
        if self.lm_head is None:
            self._borrowed["output"] = rounded(self._borrowed["output"])

    @property
    def output(self) -> Any:
        """The output layer."""
        return self._borrowed["output"] if self.lm_head is None else self.lm_head

    def forward(self, states: Tensor) -> Tensor:
        """Return logits over the tokens that the head drafts, for states (…, H)."""
        if states.shape[1] == 0:
            return states.new_zeros(*states.shape[:-1], self.out_features)
        states = self.norm(states) if self._norms else states
        output = self.output
        if not isinstance(output, PackedLinear) and output.weight.is_floating_point():
            states = states.to(output.weight.dtype)
        logits: Tensor = output(states)
        return logits


@supports_sdpa
class PublishedHead(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Base class of published heads, fitted to a target."""

    rows: Tensor  # (U,) int64: tokens of the target that are drafted

    def __init__(self, form: Form, *, norms: bool) -> None:
        super().__init__(form.config)
        self.shape = form
        self.readout = Readout(form, norms=norms)
        own = form.vocabulary.own_embedding
        self.embed_tokens = None if own is None else nn.Embedding(own, form.config.hidden_size)
        self.register_buffer("rows", torch.arange(self.readout.out_features), persistent=False)
        self._borrowed: dict[str, Any] = {}

    @property
    def vocabulary(self) -> int:
        """The size of the target's vocabulary."""
        return self.shape.source.vocabulary

    def borrow(self, target: PreTrainedModel) -> None:
        """Use the target's embedding and output layer if the head has none."""
        self._borrowed["embedding"] = target.get_input_embeddings()
        self.readout.borrow(target.get_output_embeddings())  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> Any:
        """Return the readout, whose input a child node reads as its parent's feature."""
        return self.readout

    def embed(self, tokens: Tensor) -> Tensor:
        """Return rows of the embedding without the scale that some targets apply; heads do not apply it."""
        if self.embed_tokens is not None:
            embedded: Tensor = self.embed_tokens(tokens)
            return embedded
        embedding = self._borrowed["embedding"]
        if isinstance(embedding, PackedEmbedding):
            return embedding.matrix.float_rows(tokens)
        return nn.functional.embedding(tokens, embedding.weight)

    def complete(self, logits: Tensor) -> Tensor:
        """Extend logits to all tokens of the target. Tokens that the head does not draft get the lowest logits: they
        are hardly ever drafted, but a policy that allows only such tokens still leaves a distribution."""
        size = self.vocabulary
        if logits.shape[-1] == size and not self.shape.vocabulary.is_mapped:
            return logits
        last = logits.amax(-1, keepdim=True) - LACKING
        return last.repeat(*(1,) * (logits.dim() - 1), size).index_copy_(-1, self.rows, logits)

    def chosen_states(self, features: Tensor) -> list[Tensor]:
        """Return the hidden states (B, T, Ht) that the head reads, in its order. Features (B, T, F) hold what entered
        the target's output layer, followed by what left the layers in `feature_layers`."""
        form = self.shape
        parts = features.split(form.source.width, -1)
        normed = form.source.layers if form.states.is_last_normed else None
        return [parts[0] if at == normed else parts[1 + form.feature_layers.index(at - 1)] for at in form.states.chosen]


def first_unseen(mask: Tensor, positions: Tensor) -> Tensor:
    """Return a mask (B, 1, T, M) that hides the first slot from tokens (B, T) at later positions. The first slot
    belongs to the first token of a text, which has no hidden state before it; heads begin with the second token."""
    hidden = (positions > 0)[:, None, :, None] & (cached_arange(mask.shape[-1], mask.device) == 0)
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)


def only_bias_of(head: nn.Module, names: set[str]) -> None:
    """Give the linear layers of a head exactly the biases that are in a checkpoint, whose tensors are `names`."""
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear):
            has = f"{name}.bias" in names
            bias = nn.Parameter(module.weight.new_zeros(module.out_features)) if has else None
            module.register_parameter("bias", bias)
