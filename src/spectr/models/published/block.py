"""DFlash heads, and DSpark heads with a correction by the parent token: a whole block of tokens in one pass.

The joined hidden states of the target give the keys and values of the text in every layer. The queries belong to a
block that consists of the root and mask tokens. Tokens of the block attend to the text and to each other, so that one
pass predicts several depths. DSpark adds a low-rank term to the logits that depends on the parent token.

Slot t holds keys and values of the hidden states at token t − 1, as in other heads, so the block begins one position
after the root's. Positions are rotary, so that only distances matter.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from spectr.models.head import rotated
from spectr.models.internals import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    Qwen3Attention,
    Qwen3MLP,
    attention_function,
)
from spectr.models.published.formats import BlockForm
from spectr.models.published.sharing import PublishedHead
from spectr.rows import cached_arange

__all__ = ["BlockHead"]

_SLIDING = "sliding_attention"


class _Attention(Qwen3Attention):
    """Attention with keys and values of the text's joined hidden states and of the block, and queries of the block."""

    def remember(self, text: Tensor, rotary: tuple[Tensor, Tensor], cache: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values of the text's joined hidden states (B, T, H); return all keys and values in use."""
        return self._written(self._heads(self.k_proj(text)), self._heads(self.v_proj(text)), rotary, cache)

    def forward(  # type: ignore[override]
        self, block: Tensor, text: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, cache: Any
    ) -> Tensor:
        """Attend from the block (B, Q, H) to the cached text, to the new text (B, C, H) and to itself. The three
        products have one input, so that they can be computed as one; queries of the text are not used."""
        count, joined = block.shape[1], torch.cat([text, block], 1)
        queries, keys, values = (self._heads(layer(joined)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        keys, values = self._written(keys, values, rotary, cache)
        queries = rotated(self.q_norm(queries[:, -count:]).transpose(1, 2), (r[:, -count:] for r in rotary))
        seen, _ = attention_function(self.config)(self, queries, keys, values, mask, dropout=0.0, scaling=self.scaling)
        output: Tensor = self.o_proj(seen.reshape(*block.shape[:-1], -1))
        return output

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.head_dim)

    def _written(
        self, keys: Tensor, values: Tensor, rotary: tuple[Tensor, Tensor], cache: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, T, H, d) to the cache; return all that are in use."""
        keys = rotated(self.k_norm(keys).transpose(1, 2), rotary)
        in_use: tuple[Tensor, Tensor] = cache.update(keys, values.transpose(1, 2), self.layer_idx)
        return in_use


class _Layer(nn.Module):
    """A decoder layer for the block."""

    def __init__(self, config: Any, at: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, at)
        self.mlp = Qwen3MLP(config)  # type: ignore[no-untyped-call]
        self.input_layernorm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2)
        )

    def remember(self, text: Tensor, rotary: tuple[Tensor, Tensor], cache: Any) -> None:
        """Write keys and values of the text, without a block."""
        self.self_attn.remember(text, rotary, cache)

    def forward(
        self, block: Tensor, text: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past_key_values: Any
    ) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), text, rotary, mask, past_key_values)
        output: Tensor = block + self.mlp(self.post_attention_layernorm(block))
        return output


class _Markov(nn.Module):
    """The correction by the parent token: a low-rank product, plain, with a gate, or with a state along the path."""

    def __init__(self, form: BlockForm) -> None:
        super().__init__()
        rank, width = form.markov_rank, int(form.config.hidden_size)
        drafted = form.vocabulary.own_output or form.source.vocabulary
        self.kind, self.rank = form.markov_type, rank
        self.markov_w1 = nn.Embedding(form.source.vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def forward(self, tokens: Tensor, states: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is added to the logits (B, M, U) of parents with `tokens` (B, M), and the next state of their
        paths. `states` (B, M, H) are the block's at their depth, `carried` (B, M, R) the state of their paths so
        far."""
        parent = self.markov_w1(tokens)
        states = states.to(parent.dtype)
        if self.kind == "gated":
            parent = parent * torch.sigmoid(self.gate_proj(torch.cat([states, parent], -1)))
        elif self.kind == "rnn":
            gate, fresh, parent = self.joint_proj(torch.cat([carried, parent, states], -1)).chunk(3, -1)
            gate, parent = torch.sigmoid(gate), torch.tanh(parent)
            carried = gate * carried + (1 - gate) * torch.tanh(fresh)
        return self.markov_w2(parent), carried


def _inside(mask: Tensor, hidden: Tensor, slots: Tensor) -> Tensor:
    """Return a mask (B, 1, Q, M) in which a block at slots (B, Q) attends to itself except where `hidden` (Q, Q)."""
    own = mask.new_zeros(hidden.shape).masked_fill(hidden, torch.finfo(mask.dtype).min)
    return mask.scatter(-1, slots[:, None, None].expand(*mask.shape[:-1], -1), own.expand(*mask.shape[:-1], -1))


class BlockHead(PublishedHead):  # type: ignore[no-untyped-call]
    """A few layers over a block that attends to the text."""

    shape: BlockForm

    def __init__(self, form: BlockForm) -> None:
        super().__init__(form, norms=False)
        config = form.config
        self.fc = nn.Linear(len(form.states.chosen) * form.source.width, config.hidden_size, bias=False)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(config, at) for at in range(config.num_hidden_layers))
        self.markov_head = _Markov(form) if form.markov_rank else None
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self._kinds, self._window = tuple(config.layer_types), config.sliding_window
        config.layer_types = ["full_attention"] * len(self._kinds)  # this class makes the masks of windows
        config.sliding_window, config.max_position_embeddings = None, form.source.context

    @property
    def deepest(self) -> int | None:
        """The number of depths that a block predicts."""
        return self.shape.depths

    def forward(  # noqa: PLR0913  names of transformers
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Any,
        past_key_values: Any,
        use_cache: bool = True,
        features: Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        """Return logits at the tokens of the block. Of the tokens (B, T) the first C are text with features (B, C, F)
        of the target, and the others are the block. Without a block, keys and values of the text are written and no
        logits are computed."""
        assert features is not None
        text = self.hidden_norm(self.fc(torch.cat(self.chosen_states(features.to(self.dtype)), -1)))
        rotary = self.rotary_emb(text, position_ids)
        known = features.shape[1]
        block = (self.embed(input_ids[:, known:]) * self.shape.embedding_scale).to(self.dtype)
        if block.shape[1]:
            mask = next(iter(attention_mask.values())) if isinstance(attention_mask, dict) else attention_mask
            masks = self._masks(mask[:, :, known:], position_ids[:, known:], past_key_values.slots[:, known:])
            for kind, layer in zip(self._kinds, self.layers, strict=True):
                block = layer(block, text, rotary, masks[kind], past_key_values=past_key_values)
            block = self.readout.norm(block)
        else:
            for layer in self.layers:
                layer.remember(text, rotary, past_key_values)  # type: ignore[operator]
        return CausalLMOutputWithPast(logits=self._finished(self.readout(block)))

    def _finished(self, logits: Tensor) -> Tensor:
        """Scale and cap logits as the config says."""
        if self.shape.output_scale != 1.0:
            logits = logits * self.shape.output_scale
        if (cap := self.shape.output_cap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _masks(self, mask: Tensor, places: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Return a mask for each kind of layer, from a mask (B, 1, Q, M) with which the block (B, Q) attends to all of
        the text and of itself. Slots of the text are positions; the first slot has no hidden states and is hidden."""
        form, every = self.shape, cached_arange(mask.shape[-1], mask.device)
        at = cached_arange(places.shape[1], mask.device)
        gap = at[:, None] - at  # distance between two places of the block
        mask = mask.masked_fill(every == 0, torch.finfo(mask.dtype).min)
        found = {"full_attention": _inside(mask, gap < 0, slots) if form.is_causal else mask}
        if _SLIDING not in self._kinds:
            return found
        hidden = (gap < 0) if form.is_causal is not False else torch.zeros_like(gap, dtype=torch.bool)
        if form.window_from_root:
            near = places[:, :1] - self._window
        else:
            near, hidden = places + 1 - self._window, hidden | (gap.abs() >= self._window)
        far = mask.masked_fill(every < near[:, None, :, None], torch.finfo(mask.dtype).min)
        return {**found, _SLIDING: _inside(far, hidden, slots)}

    def corrected(self, logits: Tensor, states: Tensor, tokens: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, M, V) over the target's tokens after parents with `tokens` (B, M), and the next state of
        their paths. `logits` (B, 1, U) and `states` (B, 1, H) are the block's at their depth, `carried` (B, M, R) the
        state of the paths so far."""
        if self.markov_head is None:
            return self.complete(logits).expand(-1, tokens.shape[1], -1), carried
        added, carried = self.markov_head(tokens, states.expand(-1, tokens.shape[1], -1), carried)
        return self.complete(logits + added), carried

    def carried_from(self, states: Tensor, root: Tensor) -> Tensor:
        """Return the state (B, 1, R) of paths at their roots (B,), given the states (B, Q, H) of the block."""
        head = self.markov_head
        if head is None or head.kind != "rnn":
            return states.new_zeros(len(root), 1, 0 if head is None else head.rank)
        nothing = states.new_zeros(len(root), 1, head.rank)
        if self.shape.from_root:
            return nothing
        carried: Tensor = head(root[:, None], states[:, :1], nothing)[1]  # the first place of the block is the root's
        return carried
