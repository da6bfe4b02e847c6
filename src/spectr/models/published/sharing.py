"""What published heads have in common: embeddings, output layers and draft vocabularies, and the hidden states of the
target that they read."""

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
    """From what a head hands on to logits: a norm, if it hands on what comes before it, and an output layer, its own or
    the target's. What enters here is what the engine keeps as a node's feature."""

    def __init__(self, form: Form, *, norms: bool) -> None:
        super().__init__()
        self.in_features = int(form.config.hidden_size)
        self.out_features = form.vocabulary.own_output or form.source.vocabulary
        self.norm = LlamaRMSNorm(self.in_features, eps=form.config.rms_norm_eps)
        own = form.vocabulary.own_output
        self.lm_head = None if own is None else nn.Linear(self.in_features, own, bias=False)
        self._norms = norms
        self._borrowed: dict[str, Any] = {}  # not saved, nor moved

    def borrow(self, output: Any) -> None:
        """Use the target's output layer, if there is none of its own."""
        if self.lm_head is None:
            self._borrowed["output"] = output

    def round(self) -> None:
        """Use a borrowed output layer with int8 weights of its own, on a GPU: most of what a shallow head reads."""
        if self.lm_head is None:
            self._borrowed["output"] = rounded(self._borrowed["output"])

    @property
    def output(self) -> Any:
        """The output layer."""
        return self._borrowed["output"] if self.lm_head is None else self.lm_head

    def forward(self, states: Tensor) -> Tensor:
        """States (…, H) to logits over the tokens that the head drafts."""
        if states.shape[1] == 0:
            return states.new_zeros(*states.shape[:-1], self.out_features)
        states = self.norm(states) if self._norms else states
        output = self.output
        if not isinstance(output, PackedLinear) and output.weight.is_floating_point():
            states = states.to(output.weight.dtype)
        found: Tensor = output(states)
        return found


@supports_sdpa
class PublishedHead(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A head with its form, fitted to a target."""

    rows: Tensor  # (U,) int64: the target's tokens that are drafted

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
        """The target's."""
        return self.shape.source.vocabulary

    def borrow(self, target: PreTrainedModel) -> None:
        """Use this target's embedding and output layer, where the head has none of its own."""
        self._borrowed["embedding"] = target.get_input_embeddings()
        self.readout.borrow(target.get_output_embeddings())  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> Any:
        """The readout: its input is what a child reads of its parent."""
        return self.readout

    def embed(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding as they are stored: some targets scale theirs, and heads do not."""
        if self.embed_tokens is not None:
            found: Tensor = self.embed_tokens(tokens)
            return found
        embedding = self._borrowed["embedding"]
        if isinstance(embedding, PackedEmbedding):
            return embedding.matrix.look(tokens)
        return nn.functional.embedding(tokens, embedding.weight)

    def complete(self, logits: Tensor) -> Tensor:
        """Logits over all tokens of the target. Those that the head does not draft come last: hardly ever drafted, and
        yet a law is left where a policy leaves no others."""
        size = self.vocabulary
        if logits.shape[-1] == size and not self.shape.vocabulary.is_mapped:
            return logits
        last = logits.amax(-1, keepdim=True) - LACKING
        return last.repeat(*(1,) * (logits.dim() - 1), size).index_copy_(-1, self.rows, logits)

    def chosen_states(self, features: Tensor) -> list[Tensor]:
        """The hidden states (B, T, Ht) that it reads, in its order, of features (B, T, F): what entered the target's
        output layer, then what left the layers that the form names."""
        form = self.shape
        parts = features.split(form.source.width, -1)
        normed = form.source.layers if form.states.is_last_normed else None
        return [parts[0] if at == normed else parts[1 + form.taps.index(at - 1)] for at in form.states.chosen]


def first_unseen(mask: Tensor, positions: Tensor) -> Tensor:
    """A mask (B, 1, T, M) that hides the first slot from tokens (B, T) at later positions. It stands for the first
    token of a text, before which there is no hidden state: heads begin with the second."""
    hidden = (positions > 0)[:, None, :, None] & (cached_arange(mask.shape[-1], mask.device) == 0)
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)


def only_bias_of(head: nn.Module, names: set[str]) -> None:
    """Give the linear layers of a head the biases that a checkpoint has, and no others."""
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear):
            has = f"{name}.bias" in names
            bias = nn.Parameter(module.weight.new_zeros(module.out_features)) if has else None
            module.register_parameter("bias", bias)
