"""Published heads compute what their reference implementations compute, and what does not fit is refused.

A head that is a little wrong keeps the law and accepts less, so that texts show nothing: logits are compared, to 1e-5
in float32, over all flags of the formats, and faults are planted that must be seen.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads import CASES, Case, Files, drafted, golden_target, legacy, nested, own_dspark, write_head
from tests.tiny import llama
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import spectr
from spectr.errors import ArgumentError, MismatchError
from spectr.models import int8
from spectr.models.published import block, eagle3, loading
from spectr.models.published.checkpoint import Checkpoint, open_checkpoint
from spectr.models.published.formats import Source, form_of

CLOSE = 1e-5
EAGLE3, SOME_EAGLE3 = "plain-plain-raw-all-llama-shared", "plain-plain-raw-some-llama-shared"


def difference(case: Case, folder: Path, **options: Any) -> float:
    """Between the logits of the reference and ours; infinite where the trees have other tokens."""
    logits, tokens = drafted(case, folder, **options)
    if tokens.tolist() != case.tokens.tolist():
        return torch.inf
    return float((logits[:, case.rows()] - case.logits).abs().max())


@pytest.mark.parametrize(("family", "name"), CASES, ids=lambda part: part)
def test_logits_are_those_of_the_reference(tmp_path: Path, family: str, name: str) -> None:
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files())) < CLOSE


@pytest.mark.parametrize("name", [EAGLE3, SOME_EAGLE3, "residual-fc_norm-normed-some-qwen3-own"])
@pytest.mark.parametrize("unread", [1, 4, 8])
def test_logits_do_not_depend_on_what_was_read_when(tmp_path: Path, name: str, unread: int) -> None:
    case = Case("eagle3", name)
    assert difference(case, write_head(tmp_path, case.files()), unread=unread) < CLOSE


@pytest.mark.parametrize("name", ["dflash-sliding", "dspark-rnn-later", "own-dflash-sliding"])
@pytest.mark.parametrize("unread", [1, 4, 8])
def test_blocks_do_not_depend_on_what_was_read_when(tmp_path: Path, name: str, unread: int) -> None:
    case = Case("block", name)
    assert difference(case, write_head(tmp_path, case.files()), unread=unread) < CLOSE


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("drafted_tokens", ["all", "some"])
@pytest.mark.parametrize("embedding", ["shared", "own"])
def test_eagle3_as_its_inventors_publish_it(tmp_path: Path, file: str, drafted_tokens: str, embedding: str) -> None:
    case = Case("eagle3", f"plain-plain-raw-{drafted_tokens}-llama-{embedding}")
    folder = write_head(tmp_path, legacy(case.files()), file)
    assert difference(case, folder, hidden_states=(2, 3, 5)) < CLOSE


@pytest.mark.parametrize("name", ["plain-plain-raw-some-llama-shared", "residual-norm_before_fc-raw-some-llama-shared",
                                  "plain-fc_norm-normed-all-llama-own", "rope-llama3", "rope-yarn"])  # fmt: skip
def test_eagle3_with_settings_in_a_part_of_their_own(tmp_path: Path, name: str) -> None:
    case = Case("eagle3", name)
    assert difference(case, write_head(tmp_path, nested(case.files()))) < CLOSE


@pytest.mark.parametrize("name", ["dspark", "dspark-some", "dspark-gated", "dspark-rnn", "dspark-rnn-later"])
def test_dspark_as_its_inventors_publish_it(tmp_path: Path, name: str) -> None:
    case = Case("block", name)
    assert difference(case, write_head(tmp_path, own_dspark(case.files()))) < CLOSE


def test_weights_in_parts(tmp_path: Path) -> None:
    """Sharded, with an index."""
    case = Case("eagle3", SOME_EAGLE3)
    config, tensors = case.files()
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in halves.items():
        write_head(tmp_path, (config, {name: tensors[name] for name in some}), file)
    index = {"weight_map": {name: file for file, some in halves.items() for name in some}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert difference(case, tmp_path) < CLOSE


def test_without_an_output_layer_the_targets_is_used(tmp_path: Path) -> None:
    """`draft_vocab_size: null`: the same as a file that brings the target's output layer."""
    case = Case("eagle3", EAGLE3)
    config, tensors = case.files()
    own = {**tensors, "lm_head.weight": golden_target().state_dict()["lm_head.weight"].clone()}
    none = {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    meant = drafted(case, write_head(tmp_path / "own", (config, own)))
    found = drafted(case, write_head(tmp_path / "none", ({**config, "draft_vocab_size": None}, none)))
    assert torch.equal(found[1], meant[1])
    assert torch.allclose(found[0], meant[0], atol=CLOSE)


def test_a_head_that_is_narrower_than_its_target(tmp_path: Path) -> None:
    """Own embedding and output layer, and `fc` from the target's width to its own: drafted as in training."""
    folder = tmp_path
    wide = llama(5, 24, layers=7, hidden_size=32)
    config, tensors = Case("eagle3", "plain-plain-raw-some-llama-own").files()
    tensors["fc.weight"] = torch.randn(16, 3 * 32) * 0.2
    write_head(folder, ({**config, "target_hidden_size": 32}, tensors))
    plain, lm = spectr.load(wide, "none"), spectr.load(wide, str(folder), nodes=9)
    assert lm.engine.drafter.head.width == 16  # type: ignore[attr-defined]
    asked = [[3, 4, 5], [7, 7, 2, 1]]
    texts = [one.generate(asked, 40, seed=4) for one in (plain, lm)]
    assert [out.tokens for out in texts[0]] == [out.tokens for out in texts[1]]
    del tensors["embed_tokens.weight"]
    with pytest.raises(MismatchError, match="is 16 wide and the target 32, so it needs an embedding and an output"):
        spectr.load(wide, str(write_head(folder / "bare", (config, tensors))))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_heads_that_do_not_fill_the_width(tmp_path: Path, kind: str) -> None:
    """Three of four numbers each, in a head that is 16 wide: sizes are those of the tensors."""
    config, tensors = Case("eagle3", f"plain-plain-raw-all-{kind}-shared").files()
    rows = {"q_proj": 12, "k_proj": 4, "v_proj": 4}
    for name, count in rows.items():
        tensors[f"layers.0.self_attn.{name}.weight"] = torch.randn(count, 32) * 0.2
    tensors["layers.0.self_attn.o_proj.weight"] = torch.randn(16, 12) * 0.2
    folder = write_head(tmp_path, (_with(config, num_attention_heads=3, num_key_value_heads=1), tensors))
    net = golden_target(torch.float64)
    plain, lm = spectr.load(net, "none"), spectr.load(net, str(folder), nodes=9)
    decoder: Any = lm.engine.drafter.head.model.config  # type: ignore[attr-defined]
    assert (decoder.num_attention_heads, decoder.num_key_value_heads, decoder.head_dim) == (3, 1, 4)
    assert lm.generate([3, 1], 40, seed=1).tokens == plain.generate([3, 1], 40, seed=1).tokens


def test_embeddings_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """Gemma scales its own, and heads for it do not."""
    config = Gemma3TextConfig(
        vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=64,
    )  # fmt: skip
    net = Gemma3ForCausalLM(config).eval()
    folder = write_head(tmp_path, Case("eagle3", EAGLE3).files())
    head: Any = spectr.load(net, str(folder)).engine.drafter.head.model  # type: ignore[attr-defined]
    tokens = torch.tensor([[3, 7]])
    rows = net.get_input_embeddings().weight[tokens]
    assert torch.equal(head.embed(tokens), rows)
    assert not torch.allclose(net.get_input_embeddings()(tokens), rows)


def test_plans_are_chosen_no_deeper_than_a_block(tmp_path: Path) -> None:
    """plan="auto" tries several trees; a block of three places has none of three tokens."""
    case = Case("block", "dflash")
    config, tensors = case.files()
    folder = str(write_head(tmp_path, ({**config, "block_size": 3}, tensors)))
    net = golden_target(torch.float64)
    plain, lm = spectr.load(net, "none"), spectr.load(net, folder, plan="auto")
    assert lm.generate([3, 1], 40, seed=1).tokens == plain.generate([3, 1], 40, seed=1).tokens


def test_a_bias_that_a_checkpoint_has_is_used(tmp_path: Path) -> None:
    """Queries, keys and values of some heads have one; the reference is a bias of nothing, and then of something."""
    case = Case("eagle3", EAGLE3)
    config, tensors = case.files()
    shapes = {"q": 16, "k": 8, "v": 8}
    none = {f"layers.0.self_attn.{n}_proj.bias": torch.zeros(size) for n, size in shapes.items()}
    assert difference(case, write_head(tmp_path / "none", (config, {**tensors, **none}))) < CLOSE
    some = {name: value + 0.5 for name, value in none.items()}
    assert difference(case, write_head(tmp_path / "some", (config, {**tensors, **some}))) > 100 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [("eagle3", EAGLE3), ("block", "dspark-sliding")])
def test_compiled_layers_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, name: str
) -> None:
    """What was traced is run as it is."""
    monkeypatch.setattr("spectr.models.compiled._BACKEND", "eager")
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files()), compile=True) < CLOSE


@pytest.mark.parametrize(("family", "name"), [("eagle3", EAGLE3), ("block", "dflash"), ("block", "dspark")])
def test_rounded_weights_draft_nearly_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, name: str
) -> None:
    """On a GPU matrices are int8; here their kernel is interpreted, in float32."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU here")
    case = Case(family, name)
    folder = write_head(tmp_path, case.files())
    meant, tokens = drafted(case, folder)
    monkeypatch.setattr(int8, "_fits", lambda layer: type(layer) is nn.Linear and layer.bias is None)
    head: Any = spectr.load(golden_target(), str(folder)).engine.drafter.head.model  # type: ignore[attr-defined]
    for rounded in (head.fc, head.layers[0].mlp.up_proj, head.layers[0].self_attn.q_proj, head.readout.output):
        assert isinstance(rounded, int8.Int8Linear)
    assert type(golden_target().get_output_embeddings()) is nn.Linear  # type: ignore[no-untyped-call]
    found, also = drafted(case, folder)
    same = int((tokens == also).int().cumprod(0).sum())  # nodes of the same tree so far
    assert same >= 2
    assert 0 < float((found[:1] - meant[:1]).norm() / meant[:1].norm()) < 0.05


@pytest.mark.gpu
class TestOnAGpu:
    """Golden logits on CUDA: in float32, where kernels of attention differ, and in half precision with int8."""

    @pytest.mark.parametrize(("family", "name"), CASES[::7] + CASES[-17:], ids=lambda part: part)
    def test_logits_are_those_of_the_reference(self, tmp_path: Path, family: str, name: str) -> None:
        case = Case(family, name)
        net = golden_target(torch.float32, "cuda")
        assert difference(case, write_head(tmp_path, case.files()), net=net) < 1e-4

    @pytest.mark.parametrize(("family", "name"), [("eagle3", SOME_EAGLE3), ("block", "dspark"), ("block", "dflash")])
    def test_half_precision(self, tmp_path: Path, family: str, name: str) -> None:
        """Laws after the root overlap; text comes as it does without a drafter's say in it."""
        case = Case(family, name)
        net = golden_target(torch.bfloat16, "cuda")
        folder = write_head(tmp_path, case.files())
        logits, _ = drafted(case, folder, net=net)
        found, meant = logits[0, case.rows()].float().softmax(-1), case.logits[0].softmax(-1)
        assert float(torch.minimum(found, meant).sum()) > 0.95
        lm = spectr.load(net, str(folder))
        head: Any = lm.engine.drafter.head.model  # type: ignore[attr-defined]
        assert isinstance(head.layers[0].mlp.up_proj, int8.Int8Linear)
        assert len(lm.generate([[1, 2, 3], [4, 5]], 24, seed=3)) == 2


# Faults that were made somewhere: each must be seen in the logits.


def _swapped(self: Any, embedded: Any, states: Any, **attention: Any) -> Any:
    joined = torch.cat([self.hidden_norm(states), self.input_layernorm(embedded)], -1)
    states = states + self.self_attn(hidden_states=joined, **attention)[0]
    return states + self.mlp(self.post_attention_layernorm(states))


def test_planted_states_before_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("eagle3", EAGLE3)
    monkeypatch.setattr(eagle3._FirstLayer, "forward", _swapped)
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


def test_planted_offsets_taken_for_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("eagle3", SOME_EAGLE3)
    monkeypatch.setattr(loading, "_target_tokens", lambda offsets, *_: offsets.long())
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


@pytest.mark.parametrize("states", [(1, 2, 4), (3, 4, 6), (5, 3, 2)])
@pytest.mark.parametrize(("family", "name"), [("eagle3", EAGLE3), ("block", "dflash"), ("block", "dspark")])
def test_planted_other_hidden_states(tmp_path: Path, family: str, name: str, states: tuple[int, ...]) -> None:
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files()), hidden_states=states) > 100 * CLOSE


@pytest.mark.parametrize("name", ["rope-llama3", "rope-yarn", "rope-linear"])
def test_planted_rotary_settings_that_are_not_read(tmp_path: Path, name: str) -> None:
    case = Case("eagle3", name)
    config, tensors = case.files()
    rope = {"rope_type": "default", "rope_theta": 100.0}
    assert difference(case, write_head(tmp_path, (_with(config, rope_parameters=rope), tensors))) > 100 * CLOSE


@pytest.mark.parametrize("flag", ["norm_output", "norm_before_residual"])
def test_planted_flags_that_are_not_read(tmp_path: Path, flag: str) -> None:
    """Recurrence behind the norm instead of before it, and a residual likewise."""
    case = Case("eagle3", EAGLE3)
    config, tensors = case.files()
    assert difference(case, write_head(tmp_path, ({**config, flag: True}, tensors))) > 100 * CLOSE


def test_planted_first_token_that_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("eagle3", EAGLE3)
    monkeypatch.setattr(eagle3, "first_unseen", lambda mask, _: mask)
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("own-dflash", {"is_causal": True}),
        ("own-dflash-sliding", {"is_causal": False}),
        ("own-dflash-sliding", {"sliding_window": 3}),
        ("own-dflash-scaled", {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3]}}),
        ("dflash", {"sample_from_anchor": True}),
        ("dflash", {"mask_token_id": 2}),
        ("dspark", {"sample_from_anchor": False}),
        ("dflash-sliding", {"sliding_window_non_causal": True}),
    ],
)
def test_planted_settings_of_blocks(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    case = Case("block", name)
    config, tensors = case.files()
    assert difference(case, write_head(tmp_path, ({**config, **changes}, tensors))) > 100 * CLOSE


def test_planted_correction_by_another_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, usual = Case("block", "dspark"), block.BlockHead.corrected
    monkeypatch.setattr(
        block.BlockHead, "corrected", lambda self, x, h, tokens, c: usual(self, x, h, (tokens + 1) % 24, c)
    )
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


# What is read from a config.


def source(layers: int = 7) -> Source:
    return Source(16, layers, 24, 64)


def states_of(tmp_path: Path, files: Files, layers: int = 7) -> tuple[int, ...]:
    checkpoint = open_checkpoint(str(write_head(tmp_path, files)))
    assert checkpoint is not None
    return form_of(checkpoint, source(layers)).states.chosen


def test_hidden_states_by_every_convention(tmp_path: Path) -> None:
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
    files = Case("eagle3", EAGLE3).files()
    absent = {name: value for name, value in files[0].items() if name != "norm_before_residual"}
    for config, meant in ((absent, True), (files[0], False), (legacy(files)[0], False)):
        folder = write_head(tmp_path / str(len(config)), (config, files[1]))
        checkpoint = open_checkpoint(str(folder))
        assert checkpoint is not None
        form: Any = form_of(checkpoint, source(32))
        assert form.norm_before_residual is meant


def layer_shapes(name: str, width: int, reads: int, sizes: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Of one decoder layer: numbers of queries, of keys, and inside the gated part."""
    queries, keys, inner = sizes
    return {
        f"{name}.self_attn.q_proj.weight": (queries, reads), f"{name}.self_attn.k_proj.weight": (keys, reads),
        f"{name}.self_attn.v_proj.weight": (keys, reads), f"{name}.self_attn.o_proj.weight": (width, queries),
        f"{name}.mlp.gate_proj.weight": (inner, width), f"{name}.mlp.up_proj.weight": (inner, width),
        f"{name}.mlp.down_proj.weight": (width, inner), f"{name}.hidden_norm.weight": (width,),
    }  # fmt: skip


def test_sizes_of_large_targets() -> None:
    """Configs and shapes as heads for an 8 B and a 70 B Llama and for a mixture of 36 layers have them; no weights."""
    usual = {"model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 32000, "max_position_embeddings": 2048}
    some = {"norm.weight": (4096,), "lm_head.weight": (32000, 4096), "d2t": (32000,), "t2d": (128256,)}
    shapes = {"fc.weight": (4096, 12288), **some, **layer_shapes("midlayer", 4096, 8192, (4096, 1024, 14336))}
    config = {**usual, "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32}
    small: Any = form_of(Checkpoint("8b", config, (), shapes), Source(4096, 32, 128256, 131072))
    assert (small.states.chosen, small.taps) == ((2, 16, 29), (1, 15, 28))
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
    assert (mixed.states.chosen, mixed.taps, mixed.norm_before_fc) == ((24, 30, 36), (23, 29, 35), True)
    assert (mixed.config.head_dim, mixed.vocabulary.is_mapped) == (64, False)


def test_positions_beyond_those_it_was_trained_for(tmp_path: Path) -> None:
    """Its config says 16 positions, and the target has 64: they are not clamped."""
    folder = write_head(tmp_path, Case("eagle3", EAGLE3).files())
    plain, lm = (spectr.load(golden_target(torch.float64), name, rule="race") for name in ("none", str(folder)))
    assert lm.engine.drafter.head.context == 64  # type: ignore[attr-defined]
    assert lm.generate([3, 1, 4], 55, seed=2).tokens == plain.generate([3, 1, 4], 55, seed=2).tokens


# What does not fit.

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], Files]


def _tensors(**more: torch.Tensor) -> Change:
    return lambda config, tensors: (config, {**tensors, **{name.replace("__", "."): v for name, v in more.items()}})


def _settings(**settings: Any) -> Change:
    return lambda config, tensors: (_with(config, **settings), tensors)


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


def _with(config: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {**config, "transformer_layer_config": {**config["transformer_layer_config"], **settings}}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_fit_is_refused_with_figures(tmp_path: Path, change: Change, said: str) -> None:
    folder = write_head(tmp_path, change(*Case("eagle3", EAGLE3).files()))
    with pytest.raises(MismatchError, match=said):
        spectr.load(golden_target(), str(folder))


def test_offsets_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    config, tensors = Case("eagle3", SOME_EAGLE3).files()
    folder = write_head(tmp_path, (config, {**tensors, "d2t": tensors["d2t"] + 5}))
    with pytest.raises(MismatchError, match=r"d2t of .* must map to different tokens in 0 … 23"):
        spectr.load(golden_target(), str(folder))


def test_a_block_is_no_deeper_than_it_is(tmp_path: Path) -> None:
    folder = str(write_head(tmp_path, Case("block", "dflash").files()))
    with pytest.raises(ArgumentError, match="at most 4 tokens long, as many as a block gives, got 5"):
        spectr.load(golden_target(), folder, length=5)
    assert spectr.load(golden_target(), folder, nodes=64).engine.drafter.plan.length == 4  # type: ignore[attr-defined]


def test_hidden_states_are_for_published_heads() -> None:
    with pytest.raises(ArgumentError, match="takes"):
        spectr.load(golden_target(), "lookup", hidden_states=(1, 2, 3))
    with pytest.raises(ArgumentError, match="hidden_states says what a published head reads"):
        spectr.load(golden_target(), golden_target(), hidden_states=(1, 2, 3))


def test_a_model_of_one_layer_is_no_head(tmp_path: Path) -> None:
    llama(1, 24, layers=1, dtype=torch.float32).save_pretrained(tmp_path)
    assert open_checkpoint(str(tmp_path)) is None
