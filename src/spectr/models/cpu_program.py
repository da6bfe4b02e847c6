"""Describes a model of the Llama family to the compiled CPU decoder: tables of sizes and of addresses of its
weights."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spectr.kernels.cpu.decoder import LAYER, PROGRAM
from spectr.kernels.cpu.kinds import GROUP
from spectr.kernels.cpu.matrix import Matrix, filled_table
from spectr.models.head import FeatureHead
from spectr.models.packed import PackedEmbedding
from spectr.models.support import needs_of

__all__ = ["DecoderProgram", "is_known_family", "linear_layers"]

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")  # `model_type` of their configs


def is_known_family(config: Any) -> bool:
    """Return whether the compiled decoder computes what models with this config do."""
    config = config.get_text_config(decoder=True)
    if config.model_type not in _FAMILIES:
        return False
    width = _head_width(config)
    rope = getattr(config, "rope_parameters", None) or {}
    widths = (config.hidden_size, config.intermediate_size, config.num_attention_heads * width)
    return (
        all(size % GROUP == 0 for size in widths)
        and width % 8 == 0
        and _activation(config) in ("silu", "gelu_pytorch_tanh")
        and not rope.get("partial_rotary_factor")
    )


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def linear_layers(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return [*(getattr(attention, f"{n}_proj") for n in "qkvo"), mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _norm(module: Any, kept: list[Any]) -> int:
    """Return the address of a norm's weight, 0 for None; `kept` keeps the tensor alive. Gemma stores weight − 1."""
    if module is None:
        return 0
    weight = module.weight.detach().float()
    if type(module).__name__.startswith("Gemma"):
        weight = weight + 1.0
    kept.append(weight.contiguous())
    return int(kept[-1].data_ptr())


@dataclass(slots=True)
class _RotaryTables:
    """Tables of cosines and sines for each kind of layer, up to the longest position needed so far."""

    module: Any  # rotary module of transformers
    kinds: tuple[str, ...]  # kind of each layer
    width: int
    tables: dict[str, Tensor] = field(default_factory=dict)
    length: int = 0

    def grow(self, length: int) -> bool:
        """Make tables for at least `length` positions; return whether they are new."""
        if length <= self.length:
            return False
        self.length = max(length, 2 * self.length, 256)
        positions = torch.arange(self.length)[None]
        for kind in set(self.kinds):
            more = (kind,) if hasattr(self.module, "layer_types") else ()
            cosine, sine = self.module(torch.empty(0), positions, *more)
            half = self.width // 2
            self.tables[kind] = torch.cat([cosine[0, :, :half], sine[0, :, :half]], -1).contiguous()
        return True


class DecoderProgram:
    """The tables that the compiled decoder reads, and the tensors that they point to."""

    def __init__(self, model: Any, layers: slice = slice(None), norm: Any = None) -> None:
        """Describe all layers of a model, or some of them and the norm behind them."""
        self.config = config = model.config.get_text_config(decoder=True)
        trunk = model.trunk if isinstance(model, FeatureHead) else model.model
        self.layers, self.width = list(trunk.layers)[layers], int(config.hidden_size)
        self.first = range(len(trunk.layers))[layers].start  # the number of the first layer in the cache
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.head_width, self.inner = _head_width(config), int(config.intermediate_size)
        kinds = (getattr(config, "layer_types", None) or ["full_attention"] * len(trunk.layers))[layers]
        self.ropes = _RotaryTables(trunk.rotary_emb, tuple(kinds), self.head_width)
        self.output: Matrix = model.get_output_embeddings().matrix
        self._kept: list[Any] = []
        window = needs_of(model).window or 0
        one_mask = needs_of(model).layer_kinds is None
        self._layers = np.concatenate([self._layer(layer) for layer in self.layers])
        by_layer = self._layers.reshape(len(self.layers), -1)
        by_layer[:, LAYER.places["window"]] = [window if one_mask or "sliding" in kind else 0 for kind in kinds]
        self.table = self._table(model, norm or trunk.norm)

    def _layer(self, layer: Any) -> NDArray[np.int64]:
        attention, mlp = layer.self_attn, layer.mlp
        is_gemma = hasattr(layer, "pre_feedforward_layernorm")  # Gemma 2 and 3 have norms before and after both halves
        after_attention = layer.post_attention_layernorm
        return filled_table(
            LAYER,
            norm=_norm(layer.input_layernorm, self._kept),
            **{name: getattr(attention, f"{name}_proj").matrix.address for name in "qkvo"},
            q_norm=_norm(getattr(attention, "q_norm", None), self._kept),
            k_norm=_norm(getattr(attention, "k_norm", None), self._kept),
            attention_norm=_norm(after_attention, self._kept) if is_gemma else 0,
            mlp_norm=_norm(layer.pre_feedforward_layernorm if is_gemma else after_attention, self._kept),
            gate=mlp.gate_proj.matrix.address,
            up=mlp.up_proj.matrix.address,
            down=mlp.down_proj.matrix.address,
            output_norm=_norm(layer.post_feedforward_layernorm, self._kept) if is_gemma else 0,
        )

    def _table(self, model: Any, norm: Any) -> NDArray[np.int64]:
        config, is_head = self.config, isinstance(model, FeatureHead)
        embedding: Any = None if is_head else model.get_input_embeddings()  # a head reads features instead
        known = isinstance(embedding, PackedEmbedding)
        return filled_table(
            PROGRAM,
            layers=len(self.layers),
            first_layer=self._layers.ctypes.data,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_width=self.head_width,
            rope_width=self.head_width,
            inner=self.inner,
            epsilon=float(config.rms_norm_eps),
            scale=float(self.layers[0].self_attn.scaling),
            cap=float(getattr(config, "attn_logit_softcapping", None) or 0.0),
            is_gelu=_activation(config) != "silu",
            embed=embedding.matrix.address if known else 0,
            embed_rows=embedding.matrix.rows_address if known else 0,
            embed_scale=float(embedding.scale) if known else 1.0,
            final_norm=_norm(norm, self._kept),
            output=self.output.address,
        )

    def reach(self, positions: int) -> None:
        """Make sure that rotary tables exist for `positions` positions."""
        if self.ropes.grow(positions):
            addresses = [self.ropes.tables[kind].data_ptr() for kind in self.ropes.kinds]
            self._layers.reshape(len(self.layers), -1)[:, LAYER.places["rope"]] = addresses
