"""A target of the Llama family on a CPU: all layers in one compiled call, over the same sessions as any other target.

A token's logits have the same bits whether it is read in a prompt, scored alone or scored in a tree.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.kernels.cpu.decoder import CALL, LAYER, PROGRAM
from spectr.kernels.cpu.kinds import GROUP
from spectr.kernels.cpu.matrix import Matrix, filled_table
from spectr.kernels.cpu.products import input_bytes
from spectr.kernels.cpu.threads import threads
from spectr.models.cache import SlotCache
from spectr.models.head import FeatureHead, finished
from spectr.models.hidden_states import last_state
from spectr.models.layers import layers_of
from spectr.models.packed import PackedEmbedding, PackedLinear
from spectr.models.session import Session
from spectr.models.support import needs_of
from spectr.models.target import Fresh, Target

__all__ = ["CpuTarget", "is_known_family", "target_of"]

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
"""What transformers calls them."""
_CHUNK = 128  # prompt tokens of a call: more gain nothing, and need more room
_ROOM = 16  # floats that scores may take beyond the slots: a whole vector


def target_of(model: PreTrainedModel) -> Target:
    """The target for a model: compiled, if its weights are packed and all that its layers do is known here."""
    return CpuTarget(model) if _is_packed(model) and is_known_family(model.config) else Target(model)


def _is_packed(model: Any) -> bool:
    if not isinstance(model.get_output_embeddings(), PackedLinear):
        return False
    return all(isinstance(module, PackedLinear) for layer in layers_of(model) for module in _linear(layer))


def is_known_family(config: Any) -> bool:
    """Whether the compiled decoder does what models of this config do."""
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


def _linear(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return [*(getattr(attention, f"{n}_proj") for n in "qkvo"), mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _norm(module: Any, kept: list[Any]) -> int:
    """The address of a norm's weight; 0 without one. Gemma's weights are what is added to 1."""
    if module is None:
        return 0
    weight = module.weight.detach().float()
    if type(module).__name__.startswith("Gemma"):
        weight = weight + 1.0
    kept.append(weight.contiguous())
    return int(kept[-1].data_ptr())


@dataclass(slots=True)
class _Ropes:
    """Cosines and sines of positions, for each kind of layer, as far as they have been needed."""

    module: Any  # of transformers
    kinds: tuple[str, ...]  # of each layer
    width: int
    tables: dict[str, Tensor] = field(default_factory=dict)
    length: int = 0

    def grow(self, length: int) -> bool:
        """Make tables for so many positions at least; whether they are new ones."""
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


class _Program:
    """The tables that tell the compiled decoder of a model, and what they point to."""

    def __init__(self, model: Any) -> None:
        self.config = config = model.config.get_text_config(decoder=True)
        trunk = model.trunk if isinstance(model, FeatureHead) else model.model
        self.layers, self.width = list(trunk.layers), int(config.hidden_size)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.head_width, self.inner = _head_width(config), int(config.intermediate_size)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(self.layers)
        self.ropes = _Ropes(trunk.rotary_emb, tuple(kinds), self.head_width)
        self.output: Matrix = model.get_output_embeddings().matrix
        self._kept: list[Any] = []
        window = needs_of(model).window or 0
        one_mask = needs_of(model).layer_kinds is None
        self._layers = np.concatenate([self._layer(layer) for layer in self.layers])
        by_layer = self._layers.reshape(len(self.layers), -1)
        by_layer[:, LAYER.places["window"]] = [window if one_mask or "sliding" in kind else 0 for kind in kinds]
        self.table = self._table(model, trunk)

    def _layer(self, layer: Any) -> NDArray[np.int64]:
        attention, mlp = layer.self_attn, layer.mlp
        is_gemma = hasattr(layer, "pre_feedforward_layernorm")  # norms before and behind both halves
        behind = layer.post_attention_layernorm
        return filled_table(
            LAYER,
            norm=_norm(layer.input_layernorm, self._kept),
            **{name: getattr(attention, f"{name}_proj").matrix.address for name in "qkvo"},
            q_norm=_norm(getattr(attention, "q_norm", None), self._kept),
            k_norm=_norm(getattr(attention, "k_norm", None), self._kept),
            attention_norm=_norm(behind, self._kept) if is_gemma else 0,
            mlp_norm=_norm(layer.pre_feedforward_layernorm if is_gemma else behind, self._kept),
            gate=mlp.gate_proj.matrix.address,
            up=mlp.up_proj.matrix.address,
            down=mlp.down_proj.matrix.address,
            output_norm=_norm(layer.post_feedforward_layernorm, self._kept) if is_gemma else 0,
        )

    def _table(self, model: Any, trunk: Any) -> NDArray[np.int64]:
        config, is_head = self.config, isinstance(model, FeatureHead)
        embedding: Any = (
            None if is_head else model.get_input_embeddings()
        )  # a head is given what enters its first layer
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
            final_norm=_norm(trunk.norm, self._kept),
            output=self.output.address,
        )

    def reach(self, positions: int) -> None:
        """Have rotary tables for so many positions."""
        if self.ropes.grow(positions):
            addresses = [self.ropes.tables[kind].data_ptr() for kind in self.ropes.kinds]
            self._layers.reshape(len(self.layers), -1)[:, LAYER.places["rope"]] = addresses


@dataclass(slots=True)
class _Buffers:
    """Room that calls use one after the other."""

    sizes: dict[str, int] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)

    def take(self, name: str, size: int) -> int:
        """The address of so many bytes."""
        if self.sizes.get(name, 0) < size:
            self.sizes[name], self.held[name] = size, torch.empty(size // 4 + 16)
        found = self.held[name].data_ptr()
        return found + -found % 64


@dataclass(frozen=True, slots=True)
class _Seen:
    """The tokens of a call that are no padding: which they are, and which slots each sees."""

    flat: NDArray[np.int64]  # (N,) places in (B · T)
    batch: NDArray[np.int64]
    plain: NDArray[np.int64]  # slots from the first that it sees all of
    more: NDArray[np.int64]  # slots seen beyond them
    tail: NDArray[np.int64]  # (N, W) their numbers


def _causal(filled: NDArray[np.int64], slots: NDArray[np.int64], trash: int) -> _Seen:
    """Of a prompt: each token sees all slots up to its own."""
    flat = np.flatnonzero(slots.ravel() != trash)
    batch = flat // slots.shape[1]
    plain = filled[batch] + flat % slots.shape[1] + 1
    return _Seen(flat, batch, plain, np.zeros_like(flat), np.zeros((len(flat), 1), np.int64))


def _tree(filled: NDArray[np.int64], within: NDArray[np.bool_]) -> _Seen:
    """Of a tree: the committed text, then the scratch nodes (B, T, S + T) that each token sees."""
    rows, count, scratch = within.shape
    leading = np.logical_and.accumulate(within, -1)
    run, all_ = leading.sum(-1).ravel(), within.sum(-1).ravel()
    flat = np.arange(rows * count)
    batch, more = flat // count, all_ - run
    tail = np.zeros((len(flat), max(1, int(more.max()))), np.int64)
    if more.any():
        token, node = np.nonzero((within & ~leading).reshape(-1, scratch))
        first = np.concatenate([[0], np.cumsum(more)[:-1]])
        tail[token, np.arange(len(token)) - first[token]] = filled[token // count] + node
    return _Seen(flat, batch, filled[batch] + run, more, tail)


class CpuTarget(Target):
    """A model of the Llama family with packed weights."""

    runs_own_threads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, _CHUNK)
        self.joint, self.program, self._scratch_buffers = True, _Program(model), _Buffers()
        self.threads = torch.get_num_threads()

    @property
    def _alike(self) -> int:
        """All layers keep as much of a token, whatever window they look through."""
        return len(self.program.layers)

    def compile(self) -> None:
        """Nothing is left to compile."""

    def _run(self, session: Session, fresh: Fresh, choose: Callable[[Tensor], Tensor] | None) -> Tensor:
        """One call of the compiled decoder; logits of all fresh tokens, or of those chosen, none of a prompt."""
        cache, shape, program = session.cache, fresh.tokens.shape, self.program
        slots = np.ascontiguousarray(fresh.slots[:, -shape[1] :].numpy())
        filled, is_prompt = session.filled.numpy(), choose is last_state
        seen = _causal(filled, slots, cache.size) if is_prompt else _tree(filled, fresh.within.numpy())
        chosen = np.empty(0, np.int64) if is_prompt else _chosen(choose, shape)
        logits = torch.empty(len(chosen), program.output.padded)
        features = torch.empty(len(seen.flat), self._feature_width(session)) if session.wants_features else None
        program.reach(fresh.attended + 1)
        called: dict[str, Any] = {
            "rows": len(seen.flat), "positions": _some(fresh.where, seen), "slots": slots.ravel()[seen.flat],
            "batch": seen.batch, "plain": seen.plain, "more": seen.more, "tail": seen.tail,
            "tail_stride": 8 * seen.tail.shape[1], "selected": len(chosen), "selection": chosen, "logits": logits,
            "logits_stride": 4 * program.output.padded,
            **self._entering(session, fresh, seen), **self._places(cache), **self._leaving(session, features),
            **self._scratch(len(seen.flat), fresh.attended),
        }  # fmt: skip
        table = filled_table(CALL, **{name: _number(value) for name, value in called.items()})
        threads(self.threads).run(program.table.ctypes.data, table.ctypes.data)
        self._store_features(session, seen, features, slots)
        return self._finished(logits[:, : program.output.rows].unflatten(0, (shape[0], -1)))

    def _entering(self, session: Session, fresh: Fresh, seen: _Seen) -> dict[str, Any]:
        """What enters the first layer: tokens, or for a head what it joins."""
        given, session.given = session.given, None
        if given is None:
            return {"tokens": _some(fresh.tokens, seen)}
        head: Any = self.model
        rows, joint = head.joining(fresh.tokens, given)
        rows = rows.flatten(0, 1)[torch.from_numpy(seen.flat)].contiguous()
        return {"given": rows, "given_stride": 4 * rows.shape[1], "join": joint.matrix.address}

    def _places(self, cache: SlotCache) -> dict[str, Any]:
        """The buffers of the cache."""
        program = self.program
        keys, values = cache.joint_buffers(len(program.layers), program.kv_heads, program.head_width)
        far = 4 * keys.stride(0) * np.arange(len(program.layers), dtype=np.int64)
        return {
            "keys": keys.data_ptr() + far, "values": values.data_ptr() + far, "batch_stride": 4 * keys.stride(1),
            "head_stride": 4 * keys.stride(2), "slot_stride": 4 * keys.stride(3),
        }  # fmt: skip

    def _scratch(self, rows: int, attended: int) -> dict[str, Any]:
        """Buffers for so many tokens that look at so many slots."""
        program, take = self.program, self._scratch_buffers.take
        first = program.layers[0]
        queries, keys, values = (getattr(first.self_attn, f"{name}_proj").matrix.padded for name in "qkv")
        inner = first.mlp.gate_proj.matrix.padded
        wide = 4 * max(queries + keys + values, 2 * inner, program.width)
        join = getattr(getattr(self.model, "join", None), "in_features", 0)
        size = input_bytes(max(program.width, program.heads * program.head_width, program.inner, join))
        scores = 4 * (attended + 2 * _ROOM)
        return {
            "hidden": take("hidden", 4 * rows * program.width), "hidden_stride": 4 * program.width,
            "inputs": take("inputs", rows * size), "inputs_stride": size,
            "wide": take("wide", rows * wide), "wide_stride": wide, "k_offset": 4 * queries,
            "v_offset": 4 * (queries + keys), "up_offset": 4 * inner,
            "scores": take("scores", self.threads * scores), "scores_stride": scores,
        }  # fmt: skip

    def _feature_width(self, session: Session) -> int:
        return (1 + len(session.extra_layers)) * self.width

    def _leaving(self, session: Session, features: Tensor | None) -> dict[str, Any]:
        """Where states go that leave the last norm, and some layers, if anybody wants them."""
        taps = np.zeros(len(self.program.layers), np.int64)
        if features is None:
            return {"taps": taps}
        for place, layer in enumerate(session.extra_layers, start=1):
            taps[layer] = 4 * place * self.width
        return {"taps": taps, "features": features, "features_stride": 4 * features.shape[1]}

    def _store_features(self, session: Session, seen: _Seen, features: Tensor | None, slots: NDArray[np.int64]) -> None:
        """The session holds the features of its last call, and the store those of every slot."""
        session.features = None
        if features is None:
            return
        whole = features
        if len(seen.flat) < slots.size:
            whole = features.new_zeros(slots.size, features.shape[1])
            whole[torch.from_numpy(seen.flat)] = features
        session.features = whole.view(*slots.shape, -1)
        held = session.store.features
        if held is not None and not session.is_view:
            held[torch.from_numpy(seen.batch), torch.from_numpy(slots.ravel()[seen.flat])] = features

    def _finished(self, logits: Tensor) -> Tensor:
        """What the family does behind its output layer; a head that drafts some tokens ranks the others last."""
        if isinstance(self.model, FeatureHead):
            return self.model.complete(logits)
        return finished(logits, self.program.config)


def _chosen(choose: Callable[[Tensor], Tensor] | None, shape: torch.Size) -> NDArray[np.int64]:
    """Which tokens of (B, T) the logits are wanted of."""
    every = torch.arange(shape[0] * shape[1]).view(*shape, 1)
    found = every if choose is None else choose(every)
    return np.ascontiguousarray(found.flatten().numpy())


def _some(values: Tensor, seen: _Seen) -> NDArray[np.int64]:
    """Of values (B, T) those of the tokens that are no padding."""
    found: NDArray[np.int64] = values.reshape(-1).numpy()[seen.flat]
    return found


def _number(value: Any) -> Any:
    """An entry of a table: a number as it is, of anything else the address."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return value.ctypes.data if isinstance(value, np.ndarray) else value
