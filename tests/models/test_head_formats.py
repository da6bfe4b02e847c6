"""The configs and tensors of published heads are read by the conventions of their publishers and validated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads import Case, Files, golden_target, legacy, nested, with_settings, write_head
from tests.tiny import llama

import spectr
from spectr.errors import ArgumentError, MismatchError
from spectr.models.published.checkpoint import Checkpoint, open_checkpoint
from spectr.models.published.formats import Source, form_of

EAGLE3, SOME_EAGLE3 = "plain-plain-raw-all-llama-shared", "plain-plain-raw-some-llama-shared"


def source(layers: int = 7) -> Source:
    return Source(16, layers, 24, 64)


def states_of(tmp_path: Path, files: Files, layers: int = 7) -> tuple[int, ...]:
    checkpoint = open_checkpoint(str(write_head(tmp_path, files)))
    assert checkpoint is not None
    return form_of(checkpoint, source(layers)).states.chosen


def test_hidden_states_by_every_convention(tmp_path: Path) -> None:
    """The hidden states that a head reads are found in every form of config, and have the right default."""
    files = Case("eagle3", EAGLE3).files()
    assert states_of(tmp_path / "top", files) == (2, 3, 5)
    assert states_of(tmp_path / "nested", nested(files)) == (2, 3, 5)
    assert states_of(tmp_path / "usual", legacy(files), 32) == (2, 16, 29)
    inner = nested(files)
    inner[0]["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 5, 7]
    assert states_of(tmp_path / "reaching", inner) == (3, 5, 7)
    none = {name: value for name, value in files[0].items() if "layer_ids" not in name}
    assert states_of(tmp_path / "none", (none, files[1]), 32) == (2, 16, 29)
    config, tensors = Case("block", "own-dflash").files()
    assert states_of(tmp_path / "dflash", (config, tensors)) == (2, 4)


def test_an_absent_flag_means_what_it_means_to_its_publisher(tmp_path: Path) -> None:
    """If `norm_before_residual` is absent, it has the default of the format's publisher."""
    files = Case("eagle3", EAGLE3).files()
    absent = {name: value for name, value in files[0].items() if name != "norm_before_residual"}
    for config, meant in ((absent, True), (files[0], False), (legacy(files)[0], False)):
        folder = write_head(tmp_path / str(len(config)), (config, files[1]))
        checkpoint = open_checkpoint(str(folder))
        assert checkpoint is not None
        form: Any = form_of(checkpoint, source(32))
        assert form.norm_before_residual is meant


def layer_shapes(name: str, width: int, reads: int, sizes: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes of a decoder layer for these widths of queries, keys and MLP."""
    queries, keys, inner = sizes
    return {
        f"{name}.self_attn.q_proj.weight": (queries, reads), f"{name}.self_attn.k_proj.weight": (keys, reads),
        f"{name}.self_attn.v_proj.weight": (keys, reads), f"{name}.self_attn.o_proj.weight": (width, queries),
        f"{name}.mlp.gate_proj.weight": (inner, width), f"{name}.mlp.up_proj.weight": (inner, width),
        f"{name}.mlp.down_proj.weight": (width, inner), f"{name}.hidden_norm.weight": (width,),
    }  # fmt: skip


def test_sizes_of_large_targets() -> None:
    """Configs and shapes of heads for an 8 B Llama, a 70 B Llama and a mixture of experts with 36 layers are accepted;
    this needs no weights."""
    usual = {"model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 32000, "max_position_embeddings": 2048}
    some = {"norm.weight": (4096,), "lm_head.weight": (32000, 4096), "d2t": (32000,), "t2d": (128256,)}
    shapes = {"fc.weight": (4096, 12288), **some, **layer_shapes("midlayer", 4096, 8192, (4096, 1024, 14336))}
    config = {**usual, "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32}
    small: Any = form_of(Checkpoint("8b", config, (), shapes), Source(4096, 32, 128256, 131072))
    assert (small.states.chosen, small.feature_layers) == ((2, 16, 29), (1, 15, 28))
    assert (small.config.num_key_value_heads, small.config.head_dim) == (8, 128)
    assert (small.vocabulary.own_output, small.vocabulary.is_mapped, small.norm_before_residual) == (32000, True, False)
    with pytest.raises(MismatchError, match="reads 12288 values of the target, and 3 hidden states of width"):
        form_of(Checkpoint("8b", config, (), shapes), Source(8192, 80, 128256, 131072))

    some = {"norm.weight": (6144,), "lm_head.weight": (32000, 6144), "embed_tokens.weight": (128256, 6144), "d2t": (1,)}
    shapes = {"fc.weight": (6144, 24576), **some, **layer_shapes("midlayer", 6144, 12288, (6144, 1024, 16384))}
    config = {**usual, "hidden_size": 6144, "num_attention_heads": 48, "target_hidden_size": 8192}
    large: Any = form_of(Checkpoint("70b", config, (), shapes), Source(8192, 80, 128256, 131072))
    assert (large.states.chosen, large.vocabulary.own_embedding) == ((2, 40, 77), 128256)

    some = {"norm.weight": (2880,), "lm_head.weight": (201088, 2880), "input_norm.weight": (8640,)}
    shapes = {"fc.weight": (2880, 8640), **some, **layer_shapes("layers.0", 2880, 5760, (4096, 512, 17280))}
    inner = {"eagle_aux_hidden_state_layer_ids": [24, 30, 36], "norm_before_fc": True}
    config = {"model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 1, "eagle_config": inner}
    mixed: Any = form_of(Checkpoint("mixture", config, (), shapes), Source(2880, 36, 201088, 131072))
    assert (mixed.states.chosen, mixed.feature_layers, mixed.norm_before_fc) == ((24, 30, 36), (23, 29, 35), True)
    assert (mixed.config.head_dim, mixed.vocabulary.is_mapped) == (64, False)


def test_positions_beyond_those_it_was_trained_for(tmp_path: Path) -> None:
    """A head is used up to the target's 64 positions, although its config says 16, and positions are not clamped."""
    folder = write_head(tmp_path, Case("eagle3", EAGLE3).files())
    plain, lm = (spectr.load(golden_target(torch.float64), name, rule="race") for name in ("none", str(folder)))
    assert lm.engine.drafter.head.context == 64  # type: ignore[attr-defined]
    assert lm.generate([3, 1, 4], 55, seed=2).tokens == plain.generate([3, 1, 4], 55, seed=2).tokens


# Heads that do not fit.

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], Files]


def _tensors(**more: torch.Tensor) -> Change:
    return lambda config, tensors: (config, {**tensors, **{name.replace("__", "."): v for name, v in more.items()}})


def _settings(**settings: Any) -> Change:
    return lambda config, tensors: (with_settings(config, **settings), tensors)


REFUSED: dict[str, tuple[Change, str]] = {
    "width": (_tensors(fc__weight=torch.zeros(16, 40)), "reads 40 values of the target, and 3 hidden"),
    "states": (lambda c, t: ({**c, "eagle_aux_hidden_state_layer_ids": [2, 5, 9]}, t), r"\[9\] are not among 1 … 7"),
    "mask": (
        _tensors(mask_hidden=torch.zeros(1, 1, 48)),
        "must say its mask_token_id, a token of the target in 0 … 23",
    ),
    "dflash2": (_tensors(candidate_selector__x=torch.zeros(1)), "DFlash2 head"),
    "unknown": (_tensors(extra__weight=torch.zeros(1)), r"unknown \['extra.weight'\]"),
    "missing": (
        lambda c, t: (c, {n: v for n, v in t.items() if "o_proj" not in n}),
        r"missing \['layers.0.self_attn.o",
    ),
    "shape": (_tensors(layers__0__self_attn__o_proj__weight=torch.zeros(16, 8)), r"has shape \(16, 8\) and must have"),
    "kind": (_settings(model_type="gemma3_text"), "decoder layers of kind 'gemma3_text'"),
    "heads": (_settings(num_attention_heads=2), "queries of width 16, and its config says 2 heads of 4"),
    "rope": (
        _settings(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "of type 'dynamic'",
    ),
    "embedding": (_tensors(embed_tokens__weight=torch.zeros(20, 16)), "embeds 20 tokens, and the target has 24"),
    "vocabulary": (_tensors(lm_head__weight=torch.zeros(20, 16)), "20 of the target's 24 tokens, and has no d2t"),
    "eagle1": (lambda c, _: (c, {"fc.weight": torch.zeros(16, 32)}), "like EAGLE-1 and EAGLE-2 heads"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path, change: Change, said: str) -> None:
    """A head that does not fit the target or its own config is refused with the numbers that differ."""
    folder = write_head(tmp_path, change(*Case("eagle3", EAGLE3).files()))
    with pytest.raises(MismatchError, match=said):
        spectr.load(golden_target(), str(folder))


def test_offsets_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    config, tensors = Case("eagle3", SOME_EAGLE3).files()
    folder = write_head(tmp_path, (config, {**tensors, "d2t": tensors["d2t"] + 5}))
    with pytest.raises(MismatchError, match=r"d2t of .* must map to different tokens in 0 … 23"):
        spectr.load(golden_target(), str(folder))


def test_drafts_are_no_longer_than_a_block(tmp_path: Path) -> None:
    """A draft longer than a block is refused if it is asked for, and the default is cut to the block."""
    folder = str(write_head(tmp_path, Case("block", "dflash").files()))
    with pytest.raises(ArgumentError, match="at most 4 tokens long, as many as a block predicts, got 5"):
        spectr.load(golden_target(), folder, length=5)
    assert spectr.load(golden_target(), folder, nodes=64).engine.drafter.plan.length == 4  # type: ignore[attr-defined]


def test_hidden_states_are_for_published_heads() -> None:
    """The option `hidden_states` is refused for drafters other than published heads."""
    with pytest.raises(ArgumentError, match="takes"):
        spectr.load(golden_target(), "lookup", hidden_states=(1, 2, 3))
    with pytest.raises(ArgumentError, match="hidden_states is an option of published heads"):
        spectr.load(golden_target(), golden_target(), hidden_states=(1, 2, 3))


def test_a_model_of_one_layer_is_no_head(tmp_path: Path) -> None:
    """An ordinary model with one layer is not mistaken for a head."""
    llama(1, 24, layers=1, dtype=torch.float32).save_pretrained(tmp_path)
    assert open_checkpoint(str(tmp_path)) is None
