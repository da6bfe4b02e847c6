"""What a published head is, read from its config and its tensors, and whether it fits a target.

The name of a file or a repository decides nothing. What cannot be run is refused with the figures that say why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedModel

from spectr.models.published.checkpoint import Checkpoint
from spectr.models.published.decoder import decoder_config
from spectr.models.published.states import Conventions, block_states, eagle3_states, taps_of
from spectr.types import Layers

__all__ = ["BlockForm", "Eagle3Form", "Form", "Source", "Vocabulary", "family_of", "form_of"]

Family = Literal["eagle3", "peagle", "dflash", "dspark"]


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
    mask_token: int | None = None  # P-EAGLE: what stands for tokens that are not known
    depths: int | None = None  # P-EAGLE: tokens that it drafts in one call
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


def family_of(checkpoint: Checkpoint) -> Family:
    """The family by the tensors that there are; those that cannot be run are refused."""
    has, names = checkpoint.has, checkpoint.shapes
    if any(name.startswith(("candidate_selector.", "layers.0.attention_conv.")) for name in names):
        raise checkpoint.refusal("is a DFlash2 head (it has a candidate_selector), which is not run here")
    if "medusa_num_heads" in checkpoint.config:
        raise checkpoint.refusal("is a Medusa head (medusa_num_heads), which is not run here")
    if not has("fc.weight"):
        kind = checkpoint.config.get("speculators_model_type") or checkpoint.config.get("architectures")
        raise checkpoint.refusal(f"must have a tensor fc.weight, and has none; its config says {kind!r}")
    if has("layers.0.hidden_norm.weight") or has("midlayer.hidden_norm.weight"):
        return "peagle" if has("mask_hidden") else "eagle3"
    if has("hidden_norm.weight") and has("norm.weight") and has("layers.0.self_attn.q_norm.weight"):
        return "dspark" if has("markov_head.markov_w1.weight") else "dflash"
    raise checkpoint.refusal(
        f"has fc.weight of shape {names['fc.weight']} and no hidden_norm, as EAGLE-1 and EAGLE-2 heads have, which are "
        "not run here"
    )


def form_of(checkpoint: Checkpoint, source: Source, hidden_states: tuple[int, ...] | None = None) -> Form:
    """What the checkpoint is, fitted to a target; `hidden_states` takes the place of those that its config names."""
    family = family_of(checkpoint)
    if family == "eagle3":
        return _eagle3(checkpoint, source, hidden_states)
    if family == "peagle":
        return _peagle(checkpoint, source, hidden_states)
    return _block(checkpoint, source, hidden_states, family)


def _vocabulary(checkpoint: Checkpoint, source: Source) -> Vocabulary:
    """Own embedding and output layer, checked against the target's tokens."""
    shapes, size = checkpoint.shapes, source.vocabulary
    width = shapes["norm.weight"][0]
    embedding, output = (shapes.get(f"{name}.weight", (None,))[0] for name in ("embed_tokens", "lm_head"))
    if embedding is not None and embedding < size:
        raise checkpoint.refusal(f"embeds {embedding} tokens, and the target has {size}")
    if width != source.width and (embedding is None or output is None):
        raise checkpoint.refusal(
            f"is {width} wide and the target {source.width}, so it needs an embedding and an output layer of its own, "
            "and has not got both"
        )
    if output is None or output == size:
        return Vocabulary(embedding, output, is_mapped=False)
    if checkpoint.has("d2t"):
        return Vocabulary(embedding, output, is_mapped=True)
    if output > size or output != checkpoint.config.get("vocab_size"):
        raise checkpoint.refusal(f"drafts {output} of the target's {size} tokens, and has no d2t that says which")
    return Vocabulary(embedding, output, is_mapped=False)  # a target that is padded by some tokens more


def _checked(checkpoint: Checkpoint, source: Source, states: Conventions, given: tuple[int, ...] | None) -> Conventions:
    """Hidden states that there are, as many as `fc` takes."""
    if given is not None:
        states = replace(states, chosen=given, why="as asked for", other=None)
    wide, needed = checkpoint.shapes["fc.weight"][1], len(states.chosen) * source.width
    if wide != needed:
        raise checkpoint.refusal(
            f"reads {wide} numbers of the target, and {len(states.chosen)} hidden states of a target that is "
            f"{source.width} wide have {needed}"
        )
    if strange := [at for at in states.chosen if not 1 <= at <= source.layers]:
        raise checkpoint.refusal(
            f"reads hidden states {list(states.chosen)}, and {strange} are not among 1 … {source.layers} of a target "
            f"with {source.layers} layers ({states.why})",
            "say which with hidden_states=(…), or use a head that was made for this target",
        )
    return states


def _eagle3(checkpoint: Checkpoint, source: Source, given: tuple[int, ...] | None) -> Eagle3Form:
    config = checkpoint.config
    nested: Mapping[str, Any] = config.get("eagle_config") or {}
    decoder = decoder_config(checkpoint, "midlayer" if checkpoint.has("midlayer.hidden_norm.weight") else "layers.0")
    states = _checked(checkpoint, source, eagle3_states(config, source.layers), given)
    if (1 + len(taps_of(states, source.layers))) * source.width == decoder.hidden_size:
        raise checkpoint.refusal(f"is as wide ({decoder.hidden_size}) as all that it reads of the target")

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
    """EAGLE-3 layers over mask tokens; how many it was trained for is in its proposals, eight where it is not said."""
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
