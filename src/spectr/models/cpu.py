"""The target for models of the Llama family on a CPU: one compiled call runs all layers, on the sessions of `target`.

The logits of a token have the same bits whether it is read in a prompt, scored alone or scored in a tree.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from spectr.kernels.cpu.decoder import CALL
from spectr.kernels.cpu.matrix import filled_table
from spectr.kernels.cpu.products import input_bytes
from spectr.kernels.cpu.threads import threads
from spectr.models.cache import SlotCache
from spectr.models.cpu_program import DecoderProgram, is_known_family, linear_layers
from spectr.models.features import last_state
from spectr.models.fresh_tokens import FreshTokens
from spectr.models.head import FeatureHead, rotated
from spectr.models.layers import layers_of
from spectr.models.logits import scale_and_cap
from spectr.models.packed import PackedLinear
from spectr.models.session import Session
from spectr.models.target import Target

__all__ = ["CpuTarget", "target_of"]

_CHUNK = 128  # prompt tokens per call; more are not faster and need more memory
_ROOM = 16  # floats that may be written behind the scores: one vector


def target_of(model: PreTrainedModel) -> Target:
    """Return a `CpuTarget` if the model's weights are packed and its family is known, else a plain `Target`."""
    if not _is_packed(model) or not is_known_family(model.config):
        return Target(model)
    return LightCpuTarget(model) if isinstance(model, FeatureHead) and model.below is not None else CpuTarget(model)


def _is_packed(model: Any) -> bool:
    if not isinstance(model.get_output_embeddings(), PackedLinear):
        return False
    return all(isinstance(module, PackedLinear) for layer in layers_of(model) for module in linear_layers(layer))


@dataclass(slots=True)
class _Buffers:
    """Scratch memory, reused by all calls."""

    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def take(self, name: str, size: int) -> int:
        """Return the address of a buffer of at least `size` bytes, aligned to 64."""
        if self.sizes.get(name, 0) < size:
            self.sizes[name], self.tensors[name] = size, torch.empty(size // 4 + 16)
        address = self.tensors[name].data_ptr()
        return address + -address % 64


@dataclass(frozen=True, slots=True)
class _Seen:
    """The N tokens of a call that are not padding, and the slots that each attends to."""

    flat: NDArray[np.int64]  # (N,) indices into (B · T)
    batch: NDArray[np.int64]  # (N,) row of the batch
    plain: NDArray[np.int64]  # (N,) number of slots, from the first, that it attends to without gaps
    more: NDArray[np.int64]  # (N,) number of slots beyond them
    tail: NDArray[np.int64]  # (N, W) these slots


def _causal(filled: NDArray[np.int64], slots: NDArray[np.int64], trash: int) -> _Seen:
    """Return the tokens of a prompt: each attends to all slots up to its own."""
    flat = np.flatnonzero(slots.ravel() != trash)
    batch = flat // slots.shape[1]
    plain = filled[batch] + flat % slots.shape[1] + 1
    return _Seen(flat, batch, plain, np.zeros_like(flat), np.zeros((len(flat), 1), np.int64))


def _tree(filled: NDArray[np.int64], within: NDArray[np.bool_]) -> _Seen:
    """Return the tokens of a tree: each attends to the committed text and to the scratch nodes `within` (B, T, S +
    T)."""
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
    """Runs a model of the Llama family with packed weights."""

    runs_own_threads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, _CHUNK)
        self.joint, self.program, self._scratch_buffers = True, self._whole_program(model), _Buffers()
        self.threads = torch.get_num_threads()

    def _whole_program(self, model: PreTrainedModel) -> DecoderProgram:
        return DecoderProgram(model)

    @property
    def _uniform_layers(self) -> int:
        """All layers cache the same, whether they have a sliding window or not."""
        return len(self.layers)

    def compile(self) -> None:
        """Do nothing: the decoder is compiled already."""

    def _run(self, session: Session, fresh: FreshTokens, select: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Call the compiled decoder; return the logits of all fresh tokens, or of those that `select` picks. For a
        prompt no logits are computed."""
        cache, shape, program = session.cache, fresh.tokens.shape, self._program_of(session)
        slots = np.ascontiguousarray(fresh.slots[:, -shape[1] :].numpy())
        filled, is_prompt = session.filled.numpy(), select is last_state
        seen = _causal(filled, slots, cache.size) if is_prompt else _tree(filled, fresh.within.numpy())
        chosen = np.empty(0, np.int64) if is_prompt else _selected_tokens(select, shape)
        logits = torch.empty(len(chosen), program.output.padded)
        layers = session.feature_layers
        features = None if layers is None else torch.empty(len(seen.flat), (1 + len(layers)) * self.width)
        program.reach(fresh.attended + 1)
        called: dict[str, Any] = {
            "rows": len(seen.flat), "positions": _unpadded(fresh.positions, seen), "slots": slots.ravel()[seen.flat],
            "batch": seen.batch, "plain": seen.plain, "more": seen.more, "tail": seen.tail,
            "tail_stride": 8 * seen.tail.shape[1], "selected": len(chosen), "selection": chosen, "logits": logits,
            "logits_stride": 4 * program.output.padded,
            **self._entering(session, fresh, seen), **self._places(cache, program),
            **self._leaving(session, features, program), **self._scratch(len(seen.flat), fresh.attended),
        }  # fmt: skip
        table = filled_table(CALL, **{name: _number(value) for name, value in called.items()})
        threads(self.threads).run(program.table.ctypes.data, table.ctypes.data)
        self._store_features(session, seen, features, slots)
        return self._scale_and_cap(logits[:, : program.output.rows].unflatten(0, (shape[0], -1)))

    def _program_of(self, session: Session) -> DecoderProgram:
        """Return the program of the next call."""
        return self.program

    def _entering(self, session: Session, fresh: FreshTokens, seen: _Seen) -> dict[str, Any]:
        """Return the input of the first layer: tokens, or for a head the rows that its joining layer reads."""
        features, session.input_features = session.input_features, None
        if features is None:
            return {"tokens": _unpadded(fresh.tokens, seen)}
        head: Any = self.model
        rows, joint = head.joining(fresh.tokens, features)
        rows = rows.flatten(0, 1)[torch.from_numpy(seen.flat)].contiguous()
        return {"given": rows, "given_stride": 4 * rows.shape[1], "join": joint.matrix.address}

    def _places(self, cache: SlotCache, program: DecoderProgram) -> dict[str, Any]:
        """Return the addresses and strides of the cache."""
        keys, values = cache.joint_buffers(len(self.layers), program.kv_heads, program.head_width)
        far = 4 * keys.stride(0) * (program.first + np.arange(len(program.layers), dtype=np.int64))
        return {
            "keys": keys.data_ptr() + far, "values": values.data_ptr() + far, "batch_stride": 4 * keys.stride(1),
            "head_stride": 4 * keys.stride(2), "slot_stride": 4 * keys.stride(3),
        }  # fmt: skip

    def _scratch(self, rows: int, attended: int) -> dict[str, Any]:
        """Return scratch buffers for `rows` tokens that attend to `attended` slots."""
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

    def _leaving(self, session: Session, features: Tensor | None, program: DecoderProgram) -> dict[str, Any]:
        """Return where the decoder writes the features: the output of the last norm and of the `feature_layers`."""
        offsets = np.zeros(len(program.layers), np.int64)
        if features is None:
            return {"feature_offsets": offsets}
        for place, layer in enumerate(session.feature_layers or (), start=1):
            offsets[layer] = 4 * place * self.width
        return {"feature_offsets": offsets, "features": features, "features_stride": 4 * features.shape[1]}

    def _store_features(self, session: Session, seen: _Seen, features: Tensor | None, slots: NDArray[np.int64]) -> None:
        """Keep the features of this call in the session, and those of every slot in the store."""
        session.features = None
        if features is None:
            return
        whole = features
        if len(seen.flat) < slots.size:
            whole = features.new_zeros(slots.size, features.shape[1])
            whole[torch.from_numpy(seen.flat)] = features
        session.features = whole.view(*slots.shape, -1)
        stored = session.store.features
        if stored is not None and not session.is_view:
            stored[torch.from_numpy(seen.batch), torch.from_numpy(slots.ravel()[seen.flat])] = features

    def _scale_and_cap(self, logits: Tensor) -> Tensor:
        """Apply what the family does after its output layer; for a head, complete the vocabulary."""
        if isinstance(self.model, FeatureHead):
            return self.model.complete(logits)
        return scale_and_cap(logits, self.program.config)


class LightCpuTarget(CpuTarget):
    """Runs a light head: all layers but the last where the target's features are known, else the last alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        head: Any = model
        self.below = DecoderProgram(model, slice(len(self.layers) - 1, None), head.below.norm)

    def _whole_program(self, model: PreTrainedModel) -> DecoderProgram:
        head: Any = model
        return DecoderProgram(model, slice(0, len(head.trunk.layers) - 1))

    def _program_of(self, session: Session) -> DecoderProgram:
        given = session.input_features
        return self.below if given is not None and given.shape[-1] == self.width else self.program

    def _run(self, session: Session, fresh: FreshTokens, select: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Call the program of these tokens. The predictions of those at the root are what the last layer attends to."""
        is_below = self._program_of(session) is self.below
        logits = super()._run(session, fresh, select)
        if not is_below:
            self._write_keys(session, fresh)
        return logits

    def _write_keys(self, session: Session, fresh: FreshTokens) -> None:
        """Write the last layer's keys and values of the predictions of a call, at the slots of their tokens."""
        head: Any = self.model
        attention, count = head.trunk.layers[-1].self_attn, fresh.tokens.shape[1]
        assert session.features is not None
        states = head.below.text_norm(session.features)
        rotary = head.trunk.rotary_emb(states, fresh.positions)
        keys, values = (made(states).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                        for made in (attention.k_proj, attention.v_proj))  # fmt: skip
        cache = session.cache
        buffers = cache.joint_buffers(len(self.layers), self.program.kv_heads, self.program.head_width)
        slots = fresh.slots[:, -count:, None]  # padding goes to the slot that nothing attends to
        row, heads = torch.arange(len(slots))[:, None, None], torch.arange(keys.shape[1])
        for buffer, made in zip(buffers, (rotated(keys, rotary), values), strict=True):
            buffer[-1][row, heads, slots] = made.transpose(1, 2)


def _selected_tokens(select: Callable[[Tensor], Tensor] | None, shape: torch.Size) -> NDArray[np.int64]:
    """Return the flat indices of the tokens of (B, T) whose logits are computed."""
    every = torch.arange(shape[0] * shape[1]).view(*shape, 1)
    chosen = every if select is None else select(every)
    return np.ascontiguousarray(chosen.flatten().numpy())


def _unpadded(values: Tensor, seen: _Seen) -> NDArray[np.int64]:
    """Return the values (B, T) of the tokens that are not padding, as (N,)."""
    kept: NDArray[np.int64] = values.reshape(-1).numpy()[seen.flat]
    return kept


def _number(value: Any) -> Any:
    """Return an entry of a table: a number itself, the address of a tensor or an array."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return value.ctypes.data if isinstance(value, np.ndarray) else value
