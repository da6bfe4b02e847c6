"""Recognises a published head by its config and tensors, and checks that it fits a target.

Names of files and repositories are not used. A head that is not supported is refused with the sizes that show why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedModel

from spectr.models.published.checkpoint import Checkpoint
from spectr.models.published.decoder import decoder_config
from spectr.models.published.states import Conventions, block_states, eagle3_states, feature_layers_of
from spectr.types import Layers

__all__ = ["BlockForm", "Eagle3Form", "Form", "Source", "Vocabulary", "family_of", "form_of"]

Family = Literal["eagle3", "peagle", "dflash", "dspark"]


@dataclass(frozen=True, slots=True)
class Source:
    """The sizes of a target that a head must fit."""

    width: int
    layers: int
    vocabulary: int
    context: int

    @classmethod
    def of(cls, target: PreTrainedModel, vocabulary: int) -> "Source":
        """Return the sizes of a target."""
        config: Any = target.config.get_text_config(decoder=True)
        context = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
        return cls(int(config.hidden_size), int(config.num_hidden_layers), vocabulary, context)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Whether a head has an embedding and an output layer of its own; None: it uses the target's."""

    own_embedding: int | None  # rows of its embedding
    own_output: int | None  # rows of its output layer
    is_mapped: bool  # the offsets in `d2t` map these rows to tokens of the target


@dataclass(frozen=True, slots=True)
class Eagle3Form:
    """The properties of an EAGLE-3 head, read from its config and the shapes of its tensors."""

    config: Any  # config of the decoder layers
    source: Source
    states: Conventions
    vocabulary: Vocabulary
    norm_before_residual: bool = False
    norm_before_fc: bool = False  # one norm over all hidden states
    fc_norm: bool = False  # a norm for each hidden state
    norm_output: bool = False  # below the root, the parent's output is read after the last norm
    mask_token: int | None = None  # P-EAGLE: stands for tokens that are not known yet
    depths: int | None = None  # P-EAGLE: tokens drafted in one call
    family: Family = "eagle3"

    @property
    def feature_layers(self) -> Layers:
        """The layers of the target whose outputs the head reads."""
        return feature_layers_of(self.states, self.source.layers)


@dataclass(frozen=True, slots=True)
class BlockForm:
    """The properties of a DFlash or DSpark head, read from its config and the shapes of its tensors."""

    config: Any
    source: Source
    states: Conventions
    vocabulary: Vocabulary
    size: int  # tokens in a block, including the root
    mask_token: int
    from_root: bool  # the root's place predicts the first token; otherwise the second place does
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    output_cap: float | None = None
    is_causal: bool | None = None  # attention inside the block; None: causal in sliding layers only
    window_from_root: bool = False  # windows are measured from the root, not from each token
    markov_rank: int = 0
    markov_type: str = "vanilla"
    family: Family = "dflash"

    @property
    def feature_layers(self) -> Layers:
        """The layers of the target whose outputs the head reads."""
        return feature_layers_of(self.states, self.source.layers)

    @property
    def depths(self) -> int:
        """The number of tokens that it drafts."""
        return self.size if self.from_root else self.size - 1


Form = Eagle3Form | BlockForm


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family, recognised by the tensors; raise for families that are not supported."""
    has, names = checkpoint.has, checkpoint.shapes
    if any(name.startswith(("candidate_selector.", "layers.0.attention_conv.")) for name in names):
        raise checkpoint.refusal("is a DFlash2 head (it has a candidate_selector), which is not supported")
    if "medusa_num_heads" in checkpoint.config:
        raise checkpoint.refusal("is a Medusa head (medusa_num_heads), which is not supported")
    if not has("fc.weight"):
        kind = checkpoint.config.get("speculators_model_type") or checkpoint.config.get("architectures")
        raise checkpoint.refusal(f"must have a tensor fc.weight, and has none; its config says {kind!r}")
    if has("layers.0.hidden_norm.weight") or has("midlayer.hidden_norm.weight"):
        return "peagle" if has("mask_hidden") else "eagle3"
    if has("hidden_norm.weight") and has("norm.weight") and has("layers.0.self_attn.q_norm.weight"):
        return "dspark" if has("markov_head.markov_w1.weight") else "dflash"
    raise checkpoint.refusal(
        f"has fc.weight of shape {names['fc.weight']} and no hidden_norm, like EAGLE-1 and EAGLE-2 heads, which are "
        "not supported"
    )


def form_of(checkpoint: Checkpoint, source: Source, hidden_states: tuple[int, ...] | None = None) -> Form:
    """Return the properties of a head for a target; `hidden_states` replaces those that its config names."""
    family = family_of(checkpoint)
    if family == "eagle3":
        return _eagle3(checkpoint, source, hidden_states)
    if family == "peagle":
        return _peagle(checkpoint, source, hidden_states)
    return _block(checkpoint, source, hidden_states, family)


def _vocabulary(checkpoint: Checkpoint, source: Source) -> Vocabulary:
    """Return the head's own embedding and output layer, checked against the target's vocabulary."""
    shapes, size = checkpoint.shapes, source.vocabulary
    width = shapes["norm.weight"][0]
    embedding, output = (shapes.get(f"{name}.weight", (None,))[0] for name in ("embed_tokens", "lm_head"))
    if embedding is not None and embedding < size:
        raise checkpoint.refusal(f"embeds {embedding} tokens, and the target has {size}")
    if width != source.width and (embedding is None or output is None):
        raise checkpoint.refusal(
            f"is {width} wide and the target {source.width}, so it needs an embedding and an output layer of its own, "
            "and does not have both"
        )
    if output is None or output == size:
        return Vocabulary(embedding, output, is_mapped=False)
    if checkpoint.has("d2t"):
        return Vocabulary(embedding, output, is_mapped=True)
    if output > size or output != checkpoint.config.get("vocab_size"):
        raise checkpoint.refusal(f"drafts {output} of the target's {size} tokens, and has no d2t to map them")
    return Vocabulary(embedding, output, is_mapped=False)  # the target's vocabulary is padded


def _checked(checkpoint: Checkpoint, source: Source, states: Conventions, given: tuple[int, ...] | None) -> Conventions:
    """Return the hidden states to read; raise unless they exist and their widths add up to the input of `fc`."""
    if given is not None:
        states = replace(states, chosen=given, why="given by the user", other=None)
    wide, needed = checkpoint.shapes["fc.weight"][1], len(states.chosen) * source.width
    if wide != needed:
        raise checkpoint.refusal(
            f"reads {wide} values of the target, and {len(states.chosen)} hidden states of width {source.width} "
            f"have {needed}"
        )
    if strange := [at for at in states.chosen if not 1 <= at <= source.layers]:
        raise checkpoint.refusal(
            f"reads hidden states {list(states.chosen)}, and {strange} are not among 1 … {source.layers} of a target "
            f"with {source.layers} layers ({states.why})",
            "name them with hidden_states=(…), or use a head that was made for this target",
        )
    return states


def _eagle3(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None) -> Eagle3Form:
    config = checkpoint.config
    nested: Mapping[str, Any] = config.get("eagle_config") or {}
    decoder = decoder_config(checkpoint, "midlayer" if checkpoint.has("midlayer.hidden_norm.weight") else "layers.0")
    states = _checked(checkpoint, source, eagle3_states(config, source.layers), given)
    if (1 + len(feature_layers_of(states, source.layers))) * source.width == decoder.hidden_size:
        raise checkpoint.refusal(
            f"is as wide ({decoder.hidden_size}) as all that it reads of the target, so both inputs look alike"
        )

    def flag(name: str, absent: bool = False) -> bool:
        return bool(config.get(name, nested.get(name, absent)))

    return Eagle3Form(
        decoder,
        source,
        states,
        _vocabulary(checkpoint, source),
        norm_before_residual=flag("norm_before_residual", checkpoint.is_speculators),
        norm_before_fc=checkpoint.has("input_norm.weight"),
        fc_norm=checkpoint.has("fc_norm.0.weight"),
        norm_output=flag("norm_output"),
    )


def _mask_token(checkpoint: Checkpoint, source: Source, given: Any) -> int:
    if given is None or not 0 <= given < source.vocabulary:
        most = source.vocabulary - 1
        raise checkpoint.refusal(f"must say its mask_token_id, a token of the target in 0 … {most}, got {given}")
    return int(given)


def _peagle(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None) -> Eagle3Form:
    """Return the form of a P-EAGLE head: EAGLE-3 layers over mask tokens. The config's proposals say for how many
    tokens it was trained; the default is eight."""
    config = checkpoint.config
    mask = next((config[name] for name in ("mask_token_id", "pard_token", "ptd_token_id") if name in config), None)
    proposals = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    depths = int(proposals[0].get("speculative_tokens") or 8)
    form = _eagle3(checkpoint, source, given)
    return replace(form, mask_token=_mask_token(checkpoint, source, mask), depths=depths, family="peagle")


def _block(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None, family: Family) -> BlockForm:
    config = checkpoint.config
    inner: Mapping[str, Any] = config.get("dspark_config") or config.get("dflash_config") or {}

    def value(name: str, absent: Any = None) -> Any:
        found = inner.get(name, config.get(name))
        return absent if found is None else found

    states = block_states(checkpoint, value("target_layer_ids"), source.layers)
    return BlockForm(
        decoder_config(checkpoint, "layers.0"),
        source,
        _checked(checkpoint, source, states, given),
        _vocabulary(checkpoint, source),
        size=int(value("block_size", 7 if family == "dspark" else 16)),
        mask_token=_mask_token(checkpoint, source, value("mask_token_id")),
        from_root=bool(value("sample_from_anchor", family == "dspark")),
        embedding_scale=float(value("input_embedding_scale", 1.0)),
        output_scale=float(value("output_multiplier", 1.0)),
        output_cap=value("final_logit_softcapping") or None,
        is_causal=False if value("sliding_window_non_causal", False) else value("is_causal"),
        window_from_root=checkpoint.is_speculators,
        markov_rank=checkpoint.shapes.get("markov_head.markov_w1.weight", (0, 0))[1],
        markov_type=str(value("markov_head_type", "vanilla")),
        family=family,
    )
