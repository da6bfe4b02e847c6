"""A feature head: a few decoder layers over the target's features, with the target's embedding and output layer.

At position t it reads the features of token t − 1 (what entered the target's output layer there, and what left some of
its layers) and the embedding of token t. It predicts what enters the output layer at t, and hence the distribution of
token t + 1. Below the root of a tree its own prediction replaces the target's feature, and zeros replace what left the
layers. The head's layers are those of transformers' Llama.

A light head has one more layer, which alone runs below the root. It attends to the head's predictions for the text and
to the nodes of its path, and costs a fraction of all layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from spectr.errors import ArgumentError
from spectr.kernels.cpu.matrix import Matrix
from spectr.models.borrowing import Borrowing
from spectr.models.int8 import rounded
from spectr.models.internals import LlamaRMSNorm, rotate_half, supports_sdpa
from spectr.models.packed import PackedLinear
from spectr.types import Layers

__all__ = ["FeatureHead", "HeadShape", "TakesFeatures", "head_of", "rotated"]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sizes of a head; its width is the target's."""

    width: int
    layers: int = 2
    heads: int = 9
    kv_heads: int = 3
    inner: int = 1536
    theta: float = 10_000.0
    context: int = 8192
    feature_layers: Layers = ()  # layers of the target whose outputs it reads as well
    light: bool = False  # whether one more layer drafts below the root, instead of all layers

    @classmethod
    def for_target(
        cls,
        model: PreTrainedModel,
        layers: int = 2,
        feature_layers: Layers | None = None,
        light: bool = False,
        inner: int = 0,
    ) -> "HeadShape":
        """Return a shape with the heads and the inner width of the target's layers, if its config states them; `inner`
        is another inner width. By default the head reads the outputs of two layers, at one and two thirds of the
        target's depth."""
        config: Any = model.config.get_text_config(decoder=True)
        width = int(config.hidden_size)
        heads = int(getattr(config, "num_attention_heads", 0) or max(1, width // 64))
        kv = int(getattr(config, "num_key_value_heads", None) or heads)
        inner = inner or int(getattr(config, "intermediate_size", None) or 4 * width)
        rope = getattr(config, "rope_parameters", None) or {}
        theta = rope.get("rope_theta", 10_000.0) if isinstance(rope, dict) else 10_000.0
        if width % heads or heads % kv or (width // heads) % 2:
            heads = kv = next(count for count in range(max(1, width // 64), 0, -1) if width % (2 * count) == 0)
        context = int(getattr(config, "max_position_embeddings", None) or 8192)
        count = int(config.num_hidden_layers)
        thirds = tuple(sorted({count // 3, 2 * count // 3} - {count - 1}))
        read = thirds if feature_layers is None else feature_layers
        return cls(width, layers, heads, kv, inner, float(theta), context, read, light)

    def config(self) -> LlamaConfig:
        """Return the sizes as a Llama config; its vocabulary is 1, since the head uses the target's embedding."""
        return LlamaConfig(
            vocab_size=1,
            hidden_size=self.width,
            num_hidden_layers=self.layers + self.light,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.inner,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.theta},
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )


class TakesFeatures:
    """Gives a head the call signature of transformers' causal models, with features beside the tokens."""

    dtype: torch.dtype
    features: Callable[..., Tensor]
    logits: Callable[[Tensor], Tensor]

    def expected(self, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
        """Return the head's output at each depth for whole texts (B, T) with the target's features (B, T, F), for
        training."""
        from spectr.models.depths import expected_features

        return expected_features(self, tokens, features, depths)

    def forward(  # noqa: PLR0913  named as transformers names them
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Any,
        past_key_values: Any,
        use_cache: bool = True,
        features: Tensor | None = None,
        **attention: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits after each token."""
        assert features is not None
        found = self.features(
            input_ids,
            features,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **attention,
        )
        return CausalLMOutputWithPast(logits=self.logits(found))


class BelowRoot(nn.Module):
    """What a light head has besides its last layer: a layer that joins a prediction and an embedding, and two norms."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width, bias=False)
        self.text_norm = LlamaRMSNorm(width, eps=epsilon)  # of predictions for the text, to which the layer attends
        self.norm = LlamaRMSNorm(width, eps=epsilon)


def rotated(states: Tensor, rotary: Iterable[Tensor]) -> Tensor:
    """Apply rotary positions to states (B, H, T, d)."""
    cosine, sine = (part.unsqueeze(1) for part in rotary)
    found: Tensor = states * cosine + rotate_half(states) * sine  # type: ignore[no-untyped-call]
    return found


def _write_keys(attention: Any, states: Tensor, rotary: tuple[Tensor, Tensor], cache: Any) -> None:
    """Write the keys and values of states (B, T, H) into the cache of an attention layer, without attending."""
    shape = (*states.shape[:-1], -1, attention.head_dim)
    keys, values = (made(states).view(shape).transpose(1, 2) for made in (attention.k_proj, attention.v_proj))
    cache.update(rotated(keys, rotary), values, attention.layer_idx)


@supports_sdpa
class FeatureHead(TakesFeatures, Borrowing, PreTrainedModel):  # type: ignore[no-untyped-call]
    """The trained part: a linear layer that joins features and embeddings, and a few decoder layers."""

    config_class = LlamaConfig

    def __init__(self, shape: HeadShape) -> None:
        config = shape.config()
        PreTrainedModel.__init__(self, config)
        Borrowing.__init__(self)
        self.shape = shape
        self.join = nn.Linear((2 + len(shape.feature_layers)) * shape.width, shape.width, bias=False)
        self._short: dict[str, nn.Module] = {}  # neither saved nor trained
        self.trunk = LlamaModel(config)
        self.below = BelowRoot(shape.width, config.rms_norm_eps) if shape.light else None
        if shape.light and not shape.feature_layers:
            raise ArgumentError("a light head must read outputs of the target's layers, by which it knows the root")

    def features(self, tokens: Tensor, features: Tensor, **attention: Any) -> Tensor:
        """Predict the features (B, T, H) at `tokens` (B, T) from the features (B, T, F) of the tokens before them."""
        if self.below is not None:
            return self._light_features(tokens, features, self.below, **attention)
        rows, join = self.joining(tokens, features)
        found: Tensor = self.trunk(inputs_embeds=join(rows), **attention).last_hidden_state
        return found

    def _light_features(self, tokens: Tensor, features: Tensor, below: BelowRoot, **attention: Any) -> Tensor:
        """Predict features with all layers but the last where the target's features are known, else with the last."""
        *layers, light = self.trunk.layers
        is_below = features.shape[-1] == self.shape.width
        rows, join = self.joining(tokens, features)
        states = join(rows)
        rotary = self.trunk.rotary_emb(states, attention["position_ids"])
        for layer in [light] if is_below else layers:
            states = layer(states, position_embeddings=rotary, **attention)
        predicted: Tensor = below.norm(states) if is_below else self.trunk.norm(states)
        if not is_below:
            _write_keys(light.self_attn, below.text_norm(predicted), rotary, attention["past_key_values"])
        return predicted

    def joining(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Any]:
        """Return the input (B, T, C) of the joining layer, and the layer to apply to it."""
        embedded, features = self.embed(tokens).to(self.dtype), features.to(self.dtype)
        short = None if self.training else self._short.get("join")
        if self.below is not None:
            short = self.below.join
        if short is not None and features.shape[-1] == self.shape.width:
            return torch.cat([features, embedded], -1), short
        return torch.cat([*self._split(features), embedded], -1), self.join

    def _split(self, features: Tensor) -> list[Tensor]:
        """Return what entered the output layer, and what left the layers, normalised; zeros where that is not known."""
        width, count = self.shape.width, len(self.shape.feature_layers)
        if features.shape[-1] == width:
            return [features, features.new_zeros(*features.shape[:-1], count * width)]
        left = features[..., width:].unflatten(-1, (count, width))
        return [features[..., :width], nn.functional.rms_norm(left, (width,)).flatten(-2)]

    def shorten(self, matrix: Matrix | None = None) -> None:
        """Prepare for drafting: below the root, where outputs of the layers are not known, use a joining layer without
        their columns. `matrix` gives these weights packed. Training uses the whole layer."""
        if not self.shape.feature_layers or self.shape.light:
            return
        if matrix is not None:
            self._short = {"join": PackedLinear(matrix)}
            return
        parts = self.join.weight.detach().split(self.shape.width, 1)
        made = nn.Linear(2 * self.shape.width, self.shape.width, bias=False, device="meta")
        made.weight = nn.Parameter(torch.cat([parts[0], parts[-1]], 1), requires_grad=False)
        self._short = {"join": rounded(made)}

    def with_light_layer(self) -> "FeatureHead":
        """Return a light head with the weights of this one and a new layer below the root, which begins with this
        head's joining layer and norm."""
        made = FeatureHead(replace(self.shape, light=True))
        made.load_state_dict(self.state_dict(), strict=False)
        assert made.below is not None
        parts = self.join.weight.detach().split(self.shape.width, 1)
        made.below.join.weight = nn.Parameter(torch.cat([parts[0], parts[-1]], 1))
        made.below.norm.load_state_dict(self.trunk.norm.state_dict())
        return made

    deepest: int | None = None
    """None: the head drafts to any depth."""

    def as_data(self) -> dict[str, Any]:
        """Return the sizes as plain data, for a file."""
        return asdict(self.shape)


def head_of(
    target: PreTrainedModel, layers: int = 2, feature_layers: Layers | None = None, light: bool = False, inner: int = 0
) -> FeatureHead:
    """Return a new, untrained head for this target, on its device, in float32; see `HeadShape.for_target`."""
    made = FeatureHead(HeadShape.for_target(target, layers, feature_layers, light, inner))
    made.to(target.device)  # type: ignore[arg-type]
    made.borrow(target)
    return made
