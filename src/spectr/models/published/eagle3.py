"""EAGLE-3 heads (Li et al. 2025) and their variants: 3.1, speculators, heads for gpt-oss, P-EAGLE.

At position t the head joins the embedding of token t with some hidden states of the target at t − 1, and predicts the
distribution of token t + 1. Below the root, the parent's output replaces the hidden states. P-EAGLE does not read the
parent: below the root it uses mask tokens with learnt states, so that one call predicts all depths.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from spectr.models.head import TakesFeatures
from spectr.models.internals import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
)
from spectr.models.published.formats import Eagle3Form
from spectr.models.published.sharing import PublishedHead, first_unseen

__all__ = ["Eagle3Head"]


class _FirstLayer(nn.Module):
    """A decoder layer whose attention reads embeddings and states side by side and adds its output to the states."""

    def __init__(self, form: Eagle3Form) -> None:
        super().__init__()
        config: Any = form.config
        width, heads = config.hidden_size, config.num_attention_heads * config.head_dim
        kv = config.num_key_value_heads * config.head_dim
        kind = LlamaAttention if isinstance(config, LlamaConfig) else Qwen3Attention
        self.self_attn: Any = kind(config, 0)
        for name, size in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
            setattr(self.self_attn, name, nn.Linear(2 * width, size, bias=False))
        self.mlp = Qwen3MLP(config)  # type: ignore[no-untyped-call]  # equals Llama's without a bias
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(width, eps=config.rms_norm_eps) for _ in range(3)
        )
        self._norm_before_residual = form.norm_before_residual

    def forward(self, embedded: Tensor, states: Tensor, **attention: Any) -> Tensor:
        normed = self.hidden_norm(states)
        joined = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = normed if self._norm_before_residual else states
        states = residual + self.self_attn(hidden_states=joined, **attention)[0]
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class Eagle3Head(TakesFeatures, PublishedHead):  # type: ignore[no-untyped-call]
    """Usually one layer, over hidden states of the target or the head's own outputs."""

    shape: Eagle3Form

    def __init__(self, form: Eagle3Form) -> None:
        super().__init__(form, norms=not form.norm_output)
        config, count, width = form.config, len(form.states.chosen), form.source.width
        self.fc = nn.Linear(count * width, config.hidden_size, bias=False)
        more = LlamaDecoderLayer if isinstance(config, LlamaConfig) else Qwen3DecoderLayer
        later = [more(config, at) for at in range(1, config.num_hidden_layers)]
        self.layers = nn.ModuleList([_FirstLayer(form), *later])
        self.input_norm = LlamaRMSNorm(count * width, eps=config.rms_norm_eps) if form.norm_before_fc else None
        norms = [LlamaRMSNorm(width, eps=config.rms_norm_eps) for _ in range(count)]
        self.fc_norm = nn.ModuleList(norms) if form.fc_norm else None
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, count * width)) if form.mask_token is not None else None
        self.rotary_emb = LlamaRotaryEmbedding(config)
        config.max_position_embeddings = form.source.context  # positions may exceed those of its training

    @property
    def deepest(self) -> int | None:
        """None, which means any depth, unless the head drafts all depths in one call."""
        return self.shape.depths

    def features(self, tokens: Tensor, features: Tensor, **attention: Any) -> Tensor:
        """Return the head's output (B, T, H) at `tokens` (B, T). `features` are those of the target (B, T, F) at the
        tokens before, or the head's own outputs (B, T, H) there. Tokens without features are mask tokens of P-EAGLE."""
        states, embedded = self._input_states(features.to(self.dtype)), self.embed(tokens).to(self.dtype)
        if (missing := tokens.shape[1] - states.shape[1]) > 0:
            states = torch.cat([states, self._masked().expand(len(states), missing, -1)], 1)
        masks, positions = attention.pop("attention_mask"), attention.pop("position_ids")
        attention["position_embeddings"] = self.rotary_emb(embedded, positions)
        for at, layer in enumerate(self.layers):
            mask = masks[self.config.layer_types[at]] if isinstance(masks, dict) else masks
            attention["attention_mask"] = first_unseen(mask, positions)
            states = layer(*([embedded] if at == 0 else []), states, **attention)
        output: Tensor = self.readout.norm(states) if self.shape.norm_output else states
        return output

    def _input_states(self, features: Tensor) -> Tensor:
        """Return the states of the tokens before: joined hidden states of the target, or the head's own outputs."""
        if features.shape[-1] == self.config.hidden_size:
            return features
        return self._joined(self.chosen_states(features))

    def _masked(self) -> Tensor:
        """Return the learnt states (1, 1, H) for mask tokens."""
        assert self.mask_hidden is not None
        return self._joined(list(self.mask_hidden.split(self.shape.source.width, -1)))

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if self.fc_norm is not None:
            parts = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        joined = torch.cat(parts, -1)
        states: Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return states

    def logits(self, features: Tensor) -> Tensor:
        """Return logits over the target's vocabulary for outputs of the head."""
        return self.complete(self.readout(features))

    def as_data(self) -> dict[str, Any]:
        """Return the sizes as plain data, for a file."""
        config, form = self.shape.config, self.shape
        return {
            "width": int(config.hidden_size),
            "layers": int(config.num_hidden_layers),
            "hidden_states": list(form.states.chosen),
        }
