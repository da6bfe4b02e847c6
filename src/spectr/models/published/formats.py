"""What a published head is, read from its config and its tensors, and whether it fits a target.

The name of a file or a repository decides nothing. What cannot be run is refused with the figures that say why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from spectr.errors import MismatchError
from spectr.models.published.checkpoint import Checkpoint
from spectr.types import Layers

__all__ = ["BlockForm", "Conventions", "Eagle3Form", "Form", "Source", "Vocabulary", "family_of", "form_of"]

Family = Literal["eagle3", "dflash", "dspark"]
_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_PLAIN = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "eagle", "eagle3", "dflash", "dspark", "speculator_model")
"""Kinds of models whose decoder layers are those of Llama, or of Qwen3 where there are norms of queries and keys."""
_SETTINGS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
             "rms_norm_eps", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
             "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "num_hidden_layers",
             "partial_rotary_factor")  # fmt: skip
_INSTEAD = "use an EAGLE-3, DFlash or DSpark head, a smaller model of the family, or spectr train"


@dataclass(frozen=True, slots=True)
class Conventions:
    """Which hidden states of the target a head reads, as numbers i of transformers' `hidden_states[i]`: what the file
    is taken to mean, and what its numbers mean to others."""

    chosen: tuple[int, ...]
    why: str
    other: tuple[int, ...] | None = None
    is_last_normed: bool = False  # the last one of all is what enters the output layer, not what leaves the last layer


@dataclass(frozen=True, slots=True)
class Source:
    """The part of a target that a head is fitted to."""

    width: int
    layers: int
    vocabulary: int
    context: int

    @classmethod
    def of(cls, target: PreTrainedModel, vocabulary: int) -> "Source":
        """The sizes of a target."""
        config: Any = target.config.get_text_config(decoder=True)
        context = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
        return cls(int(config.hidden_size), int(config.num_hidden_layers), vocabulary, context)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a head brings of its own: an embedding, an output layer over some tokens. None: the target's."""

    own_embedding: int | None  # its rows
    own_output: int | None  # its rows
    is_mapped: bool  # its rows are some of the target's tokens, by the offsets of `d2t`


@dataclass(frozen=True, slots=True)
class Eagle3Form:
    """All that is known of an EAGLE-3 head before its tensors are read."""

    config: Any  # of its decoder layers
    source: Source
    states: Conventions
    vocabulary: Vocabulary
    norm_before_residual: bool = False
    norm_before_fc: bool = False  # one norm of all hidden states together
    fc_norm: bool = False  # a norm of each
    norm_output: bool = False  # below the root a parent's output is read as it leaves the last norm
    family: Family = "eagle3"

    @property
    def taps(self) -> Layers:
        """The layers of the target whose outputs are kept for it."""
        return taps_of(self.states, self.source.layers)


@dataclass(frozen=True, slots=True)
class BlockForm:
    """All that is known of a DFlash or DSpark head before its tensors are read."""

    config: Any
    source: Source
    states: Conventions
    vocabulary: Vocabulary
    size: int  # tokens of a block, the root included
    mask_token: int
    from_root: bool  # the root's place in the block gives the first token; otherwise the second place does
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    output_cap: float | None = None
    is_causal: bool | None = None  # inside the block; None: in the sliding layers alone
    window_from_root: bool = False  # a window counts from the root, and not from each token of the block
    markov_rank: int = 0
    markov_type: str = "vanilla"
    family: Family = "dflash"

    @property
    def taps(self) -> Layers:
        """The layers of the target whose outputs are kept for it."""
        return taps_of(self.states, self.source.layers)

    @property
    def depths(self) -> int:
        """How many tokens it drafts."""
        return self.size if self.from_root else self.size - 1


Form = Eagle3Form | BlockForm


def taps_of(states: Conventions, layers: int) -> Layers:
    """Layers, counted from 0, that hidden states are the outputs of, each once."""
    return tuple(sorted({at - 1 for at in states.chosen if not (states.is_last_normed and at == layers)}))


def _refusal(checkpoint: Checkpoint, what: str, advice: str = _INSTEAD) -> MismatchError:
    return MismatchError(f"the head {checkpoint.name!r} {what}; {advice}")


def family_of(checkpoint: Checkpoint) -> Family:
    """The family by the tensors that there are; those that cannot be run are refused."""
    has, names = checkpoint.has, checkpoint.shapes
    if has("mask_hidden"):
        raise _refusal(checkpoint, "is a P-EAGLE head (it has mask_hidden), which is not run here")
    if any(name.startswith(("candidate_selector.", "layers.0.attention_conv.")) for name in names):
        raise _refusal(checkpoint, "is a DFlash2 head (it has a candidate_selector), which is not run here")
    if "medusa_num_heads" in checkpoint.config:
        raise _refusal(checkpoint, "is a Medusa head (medusa_num_heads), which is not run here")
    if not has("fc.weight"):
        kind = checkpoint.config.get("speculators_model_type") or checkpoint.config.get("architectures")
        raise _refusal(checkpoint, f"must have a tensor fc.weight, and has none; its config says {kind!r}")
    if has("layers.0.hidden_norm.weight") or has("midlayer.hidden_norm.weight"):
        return "eagle3"
    if has("hidden_norm.weight") and has("norm.weight") and has("layers.0.self_attn.q_norm.weight"):
        return "dspark" if has("markov_head.markov_w1.weight") else "dflash"
    width = names["fc.weight"]
    raise _refusal(
        checkpoint, f"has fc.weight of shape {width} and no hidden_norm, as EAGLE-1 and EAGLE-2 heads have; these are "
        "not run here"
    )  # fmt: skip


def form_of(checkpoint: Checkpoint, source: Source, hidden_states: tuple[int, ...] | None = None) -> Form:
    """What the checkpoint is, fitted to a target; `hidden_states` takes the place of those that its config names."""
    family = family_of(checkpoint)
    if family == "eagle3":
        return _eagle3(checkpoint, source, hidden_states)
    return _block(checkpoint, source, hidden_states, family)


def _is_speculators(checkpoint: Checkpoint) -> bool:
    return "speculators_model_type" in checkpoint.config


def _decoder(checkpoint: Checkpoint, first: str) -> Any:
    """The config of the decoder layers, with the sizes that the tensors of the `first` layer have."""
    settings: dict[str, Any] = checkpoint.config.get("transformer_layer_config") or checkpoint.config
    kind = settings.get("model_type", "qwen3" if settings is not checkpoint.config else "llama")
    if kind not in _PLAIN:
        raise _refusal(checkpoint, f"has decoder layers of kind {kind!r}, and only {', '.join(_PLAIN)} are run here")
    shapes, normed = checkpoint.shapes, checkpoint.has(f"{first}.self_attn.q_norm.weight")
    given = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    if rope := {**(given.pop("rope_scaling", None) or {}), **(given.pop("rope_parameters", None) or {})}:
        given["rope_parameters"] = _rope(rope, given.pop("rope_theta", None))
    read = _CONFIGS.get(kind, LlamaConfig)(**given)  # what is left out has the default of its own kind
    heads, wide = int(read.num_attention_heads), shapes[f"{first}.self_attn.q_proj.weight"][0]
    stated = given.get("head_dim")
    if wide % heads or (stated is not None and heads * stated != wide):
        raise _refusal(
            checkpoint, f"has {wide} rows of queries, and its config says {heads} heads"
            + (f" of {stated}" if stated is not None else "") + ": queries with a gate are not run here"
        )  # fmt: skip
    rope = read.rope_parameters
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        raise _refusal(checkpoint, f"has rotary positions of type {rope['rope_type']!r}, which are not run here")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise _refusal(checkpoint, f"turns {rope['partial_rotary_factor']} of each head, and all of it is turned here")
    count = 1 + max((int(n.split(".")[1]) for n in shapes if n.startswith("layers.")), default=0)
    more = {"layer_types": list(read.layer_types)[:count], "sliding_window": read.sliding_window} if normed else {}
    if normed and read.sliding_window is not None:
        more["use_sliding_window"] = True
    return (Qwen3Config if normed else LlamaConfig)(
        vocab_size=1,
        hidden_size=shapes["norm.weight"][0],
        num_hidden_layers=count,
        num_attention_heads=heads,
        num_key_value_heads=shapes[f"{first}.self_attn.k_proj.weight"][0] // (wide // heads),
        head_dim=wide // heads,
        intermediate_size=shapes[f"{first}.mlp.gate_proj.weight"][0],
        rms_norm_eps=read.rms_norm_eps,
        hidden_act=read.hidden_act,
        max_position_embeddings=read.max_position_embeddings,
        rope_parameters=dict(rope),
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **more,
    )


def _rope(rope: Mapping[str, Any], theta: float | None) -> dict[str, Any]:
    """Rotary settings in transformers' present form. Sections for images change nothing about text."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    found = {name: value for name, value in rope.items() if not name.startswith("mrope") and name != "type"}
    found["rope_type"] = "default" if kind == "mrope" else kind
    if theta is not None:
        found.setdefault("rope_theta", theta)
    return found


def _vocabulary(checkpoint: Checkpoint, source: Source) -> Vocabulary:
    """Own embedding and output layer, checked against the target's tokens."""
    shapes, size = checkpoint.shapes, source.vocabulary
    width = shapes["norm.weight"][0]
    embedding, output = (shapes.get(f"{name}.weight", (None,))[0] for name in ("embed_tokens", "lm_head"))
    if embedding is not None and embedding < size:
        raise _refusal(checkpoint, f"embeds {embedding} tokens, and the target has {size}")
    if width != source.width and (embedding is None or output is None):
        raise _refusal(
            checkpoint, f"is {width} wide and the target {source.width}, so it needs an embedding and an output layer "
            "of its own, and has not got both"
        )  # fmt: skip
    mapped = checkpoint.has("d2t") and output is not None and output != size
    if output is not None and not mapped and output != size and output != checkpoint.config.get("vocab_size"):
        raise _refusal(checkpoint, f"drafts {output} of the target's {size} tokens, and has no d2t that says which")
    if output is not None and output > size and not mapped:
        raise _refusal(checkpoint, f"drafts {output} tokens, and the target has {size}")
    return Vocabulary(embedding, output, mapped)


def _checked(checkpoint: Checkpoint, source: Source, states: Conventions) -> Conventions:
    """Hidden states that there are, as many as `fc` takes."""
    wide = checkpoint.shapes["fc.weight"][1]
    needed = len(states.chosen) * source.width
    if wide != needed:
        raise _refusal(
            checkpoint, f"reads {wide} numbers of the target, and {len(states.chosen)} hidden states of a target that "
            f"is {source.width} wide have {needed}"
        )  # fmt: skip
    if strange := [at for at in states.chosen if not 1 <= at <= source.layers]:
        raise _refusal(
            checkpoint, f"reads hidden states {list(states.chosen)}, and {strange} are not among 1 … {source.layers} "
            f"of a target with {source.layers} layers ({states.why})", "say which: hidden_states=(…), or " + _INSTEAD
        )  # fmt: skip
    return states


def _eagle3(checkpoint: Checkpoint, source: Source, hidden_states: tuple[int, ...] | None) -> Eagle3Form:
    config, is_new = checkpoint.config, _is_speculators(checkpoint)
    nested: Mapping[str, Any] = config.get("eagle_config") or {}
    first = "midlayer" if checkpoint.has("midlayer.hidden_norm.weight") else "layers.0"
    decoder = _decoder(checkpoint, first)
    states = _checked(checkpoint, source, _eagle3_states(checkpoint, source, hidden_states))
    if (1 + len(taps_of(states, source.layers))) * source.width == decoder.hidden_size:
        raise _refusal(checkpoint, f"is as wide ({decoder.hidden_size}) as all that it reads of the target")

    def flag(name: str, absent: bool = False) -> bool:
        return bool(config.get(name, nested.get(name, absent)))

    return Eagle3Form(
        decoder,
        source,
        states,
        _vocabulary(checkpoint, source),
        norm_before_residual=flag("norm_before_residual", is_new),
        norm_before_fc=checkpoint.has("input_norm.weight"),
        fc_norm=checkpoint.has("fc_norm.0.weight"),
        norm_output=flag("norm_output"),
    )


def _eagle3_states(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None) -> Conventions:
    """Which hidden states, by the convention of whoever wrote the config."""
    name, layers = "eagle_aux_hidden_state_layer_ids", source.layers
    if given is not None:
        return Conventions(given, "as asked for")
    if top := checkpoint.config.get(name):
        top = tuple(int(at) for at in top)
        return Conventions(top, f"{name} at the top of its config counts hidden states", _next(top, layers))
    if inner := (checkpoint.config.get("eagle_config") or {}).get(name):
        inner = tuple(int(at) for at in inner)
        if max(inner) >= layers:
            return Conventions(inner, f"{name} in eagle_config reaches {max(inner)}, so it counts hidden states")
        later = tuple(at + 1 for at in inner)
        return Conventions(later, f"{name} in eagle_config counts the layers that they leave", inner)
    usual = (2, layers // 2, layers - 3)
    return Conventions(usual, "its config names none, so the usual three are taken", _next(usual, layers))


def _next(states: tuple[int, ...], layers: int) -> tuple[int, ...] | None:
    """One further each, if there are such."""
    return tuple(at + 1 for at in states) if max(states) < layers else None


def _block(checkpoint: Checkpoint, source: Source, hidden_states: tuple[int, ...] | None, family: Family) -> BlockForm:
    config, is_new = checkpoint.config, _is_speculators(checkpoint)
    inner: Mapping[str, Any] = config.get("dspark_config") or config.get("dflash_config") or {}

    def value(name: str, absent: Any = None) -> Any:
        found = inner.get(name, config.get(name))
        return absent if found is None else found

    size, mask = value("block_size", 7 if family == "dspark" else 16), value("mask_token_id")
    if mask is None or not 0 <= mask < source.vocabulary:
        raise _refusal(
            checkpoint, f"must say its mask_token_id, one of the target's {source.vocabulary} tokens, got {mask}"
        )
    decoder = _decoder(checkpoint, "layers.0")
    if decoder.hidden_size != source.width and not checkpoint.has("embed_tokens.weight"):
        raise _refusal(
            checkpoint, f"is {decoder.hidden_size} wide, and the target whose embedding it uses {source.width}"
        )
    markov = checkpoint.shapes.get("markov_head.markov_w1.weight", (0, 0))
    return BlockForm(
        decoder,
        source,
        _checked(checkpoint, source, _block_states(checkpoint, source, hidden_states, value)),
        _vocabulary(checkpoint, source),
        size=int(size),
        mask_token=int(mask),
        from_root=bool(value("sample_from_anchor", family == "dspark")),
        embedding_scale=float(value("input_embedding_scale", 1.0)),
        output_scale=float(value("output_multiplier", 1.0)),
        output_cap=value("final_logit_softcapping") or None,
        is_causal=False if value("sliding_window_non_causal", False) else value("is_causal"),
        window_from_root=is_new,
        markov_rank=markov[1],
        markov_type=str(value("markov_head_type", "vanilla")),
        family=family,
    )


def _block_states(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None, value: Any) -> Conventions:
    layers = source.layers
    if given is not None:
        return Conventions(given, "as asked for")
    if _is_speculators(checkpoint):
        if (ids := checkpoint.config.get("aux_hidden_state_layer_ids")) is None:
            ids = (2, layers // 2, layers - 3)
        found = tuple(int(at) for at in ids)
        return Conventions(found, "aux_hidden_state_layer_ids counts hidden states", _next(found, layers))
    ids = tuple(int(at) for at in value("target_layer_ids", _even(checkpoint, layers)))
    found = tuple(at + 1 for at in ids)
    return Conventions(found, "target_layer_ids counts the layers that they leave", ids, is_last_normed=True)


def _even(checkpoint: Checkpoint, layers: int) -> list[int]:
    """The layers of a DFlash head that names none: from the second to the third from the end, evenly, one for each of
    its own."""
    count = 1 + max(int(name.split(".")[1]) for name in checkpoint.shapes if name.startswith("layers."))
    return [layers // 2] if count == 1 else [round(1 + at * (layers - 4) / (count - 1)) for at in range(count)]
