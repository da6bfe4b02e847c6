"""The config of a published head's decoder layers, with the sizes of its tensors."""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, Qwen3Config

from spectr.models.published.checkpoint import Checkpoint

__all__ = ["decoder_config"]

_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_PLAIN = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "eagle", "eagle3", "dflash", "dspark", "speculator_model")
"""Kinds of models with the decoder layers of Llama, or of Qwen3 if they have norms of queries and keys."""
_SETTINGS = (
    "num_hidden_layers", "head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings",
    "rope_theta", "partial_rotary_factor", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
)  # fmt: skip
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_ROPES = ("default", "linear", "llama3", "yarn")


def decoder_config(checkpoint: Checkpoint, first: str) -> LlamaConfig | Qwen3Config:
    """Return the config of the decoder layers; `first` is the name of the first one."""
    shapes, attention = checkpoint.shapes, f"{first}.self_attn"
    read = _read(checkpoint)
    wide, heads = shapes[f"{attention}.q_proj.weight"][0], read.num_attention_heads
    if wide % heads or (read.head_dim is not None and heads * read.head_dim != wide):
        raise checkpoint.refusal(
            f"has queries of width {wide}, and its config says {heads} heads of {read.head_dim}: gated queries are "
            "not supported"
        )
    sizes: dict[str, Any] = {
        "vocab_size": 1,  # the embedding is not part of these layers
        "hidden_size": shapes["norm.weight"][0],
        "num_hidden_layers": checkpoint.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shapes[f"{attention}.k_proj.weight"][0] // (wide // heads),
        "head_dim": wide // heads,
        "intermediate_size": shapes[f"{first}.mlp.gate_proj.weight"][0],
    }
    kept: dict[str, Any] = {
        name: getattr(read, name) for name in ("rms_norm_eps", "hidden_act", "max_position_embeddings")
    }
    kept |= {"rope_parameters": dict(read.rope_parameters), **dict.fromkeys(_TOKENS)}
    if f"{attention}.q_norm.weight" in shapes:
        return Qwen3Config(**sizes, **kept, **_windows(read, checkpoint.layers))
    if "sliding_attention" in (getattr(read, "layer_types", None) or ()):
        raise checkpoint.refusal("has sliding windows without norms of queries, which is not supported")
    # LlamaConfig requires a width that is a multiple of the number of heads, which is set only afterwards.
    made = LlamaConfig(**{**sizes, "num_attention_heads": 1}, **kept)
    made.num_attention_heads = heads
    return made


def _read(checkpoint: Checkpoint) -> Any:
    """Return the checkpoint's config as a config of its own kind, with the defaults of that kind."""
    own: dict[str, Any] = checkpoint.config.get("transformer_layer_config") or {}
    settings = own or checkpoint.config
    kind = settings.get("model_type", "qwen3" if own else "llama")
    if kind not in _PLAIN:
        raise checkpoint.refusal(f"has decoder layers of kind {kind!r}, and only {', '.join(_PLAIN)} are supported")
    given = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    if rope := {**(settings.get("rope_scaling") or {}), **(settings.get("rope_parameters") or {})}:
        given["rope_parameters"] = _rope(rope, given.pop("rope_theta", None))
    read: Any = _CONFIGS.get(kind, LlamaConfig)(**given)
    read.head_dim = given.get("head_dim")  # None: derived from the tensors
    read.num_attention_heads = int(settings.get("num_attention_heads") or read.num_attention_heads)
    rope = read.rope_parameters
    if rope.get("rope_type", "default") not in _ROPES:
        raise checkpoint.refusal(
            f"has rotary positions of type {rope['rope_type']!r}, and {', '.join(_ROPES)} are supported"
        )
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise checkpoint.refusal(f"has partial_rotary_factor {rope['partial_rotary_factor']}, and only 1 is supported")
    return read


def _rope(rope: Mapping[str, Any], theta: float | None) -> dict[str, Any]:
    """Return rotary settings in transformers' current format. Sections for images have no effect on text."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    found = {name: value for name, value in rope.items() if not name.startswith("mrope") and name != "type"}
    found["rope_type"] = "default" if kind == "mrope" else kind
    if theta is not None:
        found.setdefault("rope_theta", theta)
    return found


def _windows(read: Any, count: int) -> dict[str, Any]:
    """Return which layers have a sliding window, and its width."""
    kinds, window = getattr(read, "layer_types", None), getattr(read, "sliding_window", None)
    if not kinds or "sliding_attention" not in kinds:
        return {"layer_types": ["full_attention"] * count}
    return {"layer_types": list(kinds)[:count], "sliding_window": window, "use_sliding_window": True}
