"""Builds a model of transformers from a GGUF file: its config, its modules, and the file's weights in them.

Linear layers and embeddings keep the packed values of the file. All other weights are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from spectr.errors import MismatchError
from spectr.kernels.cpu.kinds import KINDS
from spectr.kernels.cpu.library import library
from spectr.kernels.cpu.matrix import Matrix, fits
from spectr.models.catalog import FetchError
from spectr.models.gguf.reader import GgufFile, GgufTensor
from spectr.models.packed import PackedEmbedding, PackedLinear

__all__ = ["ARCHITECTURES", "config_of", "model_of"]

ARCHITECTURES: dict[str, Any] = {
    "llama": LlamaConfig,  # and Mistral, and SmolLM
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma": GemmaConfig,
}
_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ELSEWHERE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a file that are specific to its architecture."""

    file: GgufFile
    architecture: str

    def get(self, name: str, default: Any = None) -> Any:
        return self.file.setting(f"{self.architecture}.{name}", default)

    def whole(self, name: str, default: int | None = None) -> int:
        found = self.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < 1 << 31:
            raise FetchError(
                f"{str(self.file.path)!r} must set {self.architecture}.{name} to an integer above 0, got {found!r}"
            )
        return found

    def real(self, name: str, default: float) -> float:
        found = self.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            raise FetchError(
                f"{str(self.file.path)!r} must set {self.architecture}.{name} to a number above 0, got {found!r}"
            )
        return float(found)


def _settings(file: GgufFile) -> _Settings:
    architecture = file.setting("general.architecture")
    if architecture not in ARCHITECTURES:
        raise MismatchError(
            f"{str(file.path)!r} is a {architecture!r} model; GGUF files are supported for {', '.join(ARCHITECTURES)}. "
            "Load the model from its safetensors instead"
        )
    found = _Settings(file, architecture)
    if found.get("expert_count"):
        raise MismatchError(
            f"{str(file.path)!r} is a mixture of experts, which is not supported as a GGUF file; load its safetensors"
        )
    return found


def config_of(file: GgufFile) -> Any:
    """Return the config of transformers for a file."""
    known = _settings(file)
    heads, width = known.whole("attention.head_count"), known.whole("embedding_length")
    head_width = known.whole("attention.key_length", max(1, width // heads))
    special = {name: file.setting(f"tokenizer.ggml.{name}") for name in ("bos_token_id", "eos_token_id")}
    embedding, rope = _tensor(file, "token_embd.weight"), _rope(known, head_width)
    more: dict[str, Any] = {}
    if known.architecture == "llama":
        more = {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "mlp_bias": False}
    try:
        made = ARCHITECTURES[known.architecture](
            vocab_size=embedding.shape[0],
            hidden_size=width,
            intermediate_size=known.whole("feed_forward_length"),
            num_hidden_layers=known.whole("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=known.whole("attention.head_count_kv", heads),
            head_dim=head_width,
            max_position_embeddings=known.whole("context_length"),
            rms_norm_eps=known.real("attention.layer_norm_rms_epsilon", 1e-6),
            rope_parameters=rope,
            tie_word_embeddings="output.weight" not in file.tensors,
            **special, **more,
        )  # fmt: skip
    except (TypeError, ValueError, StrictDataclassError) as error:
        why = str(error.__cause__ or error).splitlines()[0]  # the last kind of error has the reason as its cause
        raise FetchError(f"{str(file.path)!r} does not describe a valid model: {why}") from None
    made.name_or_path = str(file.path)
    made.architectures = [_CLASSES[known.architecture]]
    return made


_CLASSES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gemma": "GemmaForCausalLM",
}  # fmt: skip


def _rope(known: _Settings, head_width: int) -> dict[str, Any]:
    """Return the rotary settings; raise if only a part of each head is rotated, which is not supported."""
    turned = known.whole("rope.dimension_count", head_width)
    if turned != head_width:
        raise MismatchError(
            f"{str(known.file.path)!r} applies rotary positions to {turned} of the {head_width} values of a head, "
            "which is not supported"
        )
    base = {"rope_theta": known.real("rope.freq_base", 10_000.0)}
    kind, factor = known.get("rope.scaling.type", "none"), known.real("rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", **base}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor, **base}
    if kind == "yarn":
        original = known.whole("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **base}
    raise MismatchError(
        f"{str(known.file.path)!r} scales rotary positions by {kind!r}; only linear and yarn are supported"
    )


def _tensor(file: GgufFile, name: str) -> GgufTensor:
    if name not in file.tensors:
        raise FetchError(f"{str(file.path)!r} lacks the tensor {name!r}; fetch it again, or use another file")
    return file.tensors[name]


def _unturned(heads: int, rows: int) -> NDArray[np.int64]:
    """Return the order that turns rows of Llama files into transformers' order: the files store the two rows of a
    rotary pair side by side."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()


def _floats(tensor: GgufTensor) -> Tensor:
    """Return a tensor as float32."""
    if tensor.kind == "BF16":
        return torch.from_numpy(tensor.data.copy().view(np.int16)).view(torch.bfloat16).float().view(tensor.shape)
    if tensor.kind in _DTYPES:
        return torch.from_numpy(tensor.data.copy().view(_DTYPES[tensor.kind]).astype(np.float32)).view(tensor.shape)
    return _matrix(tensor).float_rows(torch.arange(len(tensor.data))).view(tensor.shape)


def _matrix(tensor: GgufTensor, order: NDArray[np.int64] | None = None, bias: Tensor | None = None) -> Matrix:
    rows = tensor.data if order is None else tensor.data[order]
    return Matrix.packed(tensor.kind, rows, tensor.columns, bias)


def _orders(config: Any) -> Callable[[str, int], NDArray[np.int64] | None]:
    """Return a function from a tensor's name to the order of its rows, or None to keep the order of the file."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}

    def order(name: str, rows: int) -> NDArray[np.int64] | None:
        part = name.split(".")[-2]
        if config.model_type != "llama" or part not in heads:
            return None
        return _unturned(heads[part], rows)

    return order


def _places(config: Any) -> dict[str, str]:
    """Return the path of the module for each name in the file."""
    places = {name: place for name, place in _ELSEWHERE.items() if name != "output" or not config.tie_word_embeddings}
    for layer in range(config.num_hidden_layers):
        for name, place in _LAYER.items():
            if not name.endswith(("_q_norm", "_k_norm")) or config.model_type == "qwen3":
                places[f"blk.{layer}.{name}"] = f"model.layers.{layer}.{place}"
    return places


def _check(file: GgufFile, name: str, shape: tuple[int, ...]) -> GgufTensor:
    found = _tensor(file, name)
    if found.shape != shape:
        raise FetchError(f"{str(file.path)!r}: {name!r} must have the shape {shape}, got {found.shape}")
    return found


def model_of(
    file: GgufFile, weights: str | None = "file", progress: Callable[[str], None] = lambda _: None
) -> PreTrainedModel:
    """Return the model in a file, on the CPU. `weights` says how they are stored: packed as in the file ("file"), as
    "float32" or as "int8"; None unpacks them to plain layers of torch in float32."""
    config = config_of(file)
    library().load({tensor.kind for tensor in file.tensors.values()}, progress)
    with torch.device("meta"):
        net: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    order = _orders(config)
    for name, place in _places(config).items():
        above, _, last = place.rpartition(".")
        made = _filled(file, name, net.get_submodule(place), order)
        setattr(net.get_submodule(above), last, _stored(made, weights))
        file.release()
    if config.tie_word_embeddings:
        net.lm_head = _tied(net.model.embed_tokens)
    net.model.rotary_emb = type(net.model.rotary_emb)(config)
    if _FACTORS in file.tensors:
        net.model.rotary_emb.inv_freq /= _floats(_check(file, _FACTORS, (net.model.rotary_emb.inv_freq.numel(),)))
    model: PreTrainedModel = net.eval().requires_grad_(False)
    return model


def _filled(file: GgufFile, name: str, module: Any, order: Callable[[str, int], Any]) -> nn.Module:
    """Return a module with the weights of the file."""
    tensor = _check(file, f"{name}.weight", tuple(module.weight.shape))
    if tensor.data.shape[0] > 1 and not fits(KINDS[tensor.kind], tensor.columns):
        raise FetchError(
            f"{str(file.path)!r}: rows of {name!r} have {tensor.columns} values, which is not a multiple of 32; load "
            "the model from its safetensors instead"
        )
    if isinstance(module, nn.Linear):
        rows = order(f"{name}.weight", tensor.shape[0])
        bias = None if module.bias is None else _floats(_check(file, f"{name}.bias", tuple(module.bias.shape)))
        return PackedLinear(_matrix(tensor, rows, bias if bias is None or rows is None else bias[rows]))
    if isinstance(module, nn.Embedding):
        return PackedEmbedding(_matrix(tensor), float(getattr(module, "scalar_embed_scale", 1.0)))
    weight = _floats(tensor)
    module.weight = nn.Parameter(weight - 1.0 if "Gemma" in type(module).__name__ else weight, requires_grad=False)
    norm: nn.Module = module
    return norm


def _stored(module: Any, weights: str | None) -> nn.Module:
    """Return a module with its weights stored as `weights` says; None: a plain module of torch in float32."""
    same: nn.Module = module
    if weights == "file" or not isinstance(module, PackedLinear | PackedEmbedding):
        return same
    if weights is not None:
        bias = module.matrix.bias
        bias = None if bias is None else bias[: module.matrix.rows]
        module.matrix = Matrix.of(module.weight, {"float32": "F32", "int8": "INT8"}[weights], bias)
        return same
    if isinstance(module, PackedLinear):
        made = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
        if module.bias is not None:
            made.bias = nn.Parameter(module.bias.clone(), requires_grad=False)
        made.weight = nn.Parameter(module.weight, requires_grad=False)
        return made
    embedding = nn.Embedding(module.num_embeddings, module.embedding_dim, device="meta")
    embedding.weight = nn.Parameter(module.weight, requires_grad=False)
    return embedding


def _tied(embedding: Any) -> nn.Module:
    """Return an output layer that shares the weights of the embedding."""
    if isinstance(embedding, PackedEmbedding):
        return PackedLinear(embedding.matrix)
    made = nn.Linear(embedding.embedding_dim, embedding.num_embeddings, bias=False, device="meta")
    made.weight = embedding.weight
    return made
