"""Published heads compute what their reference implementations compute.

A head that is slightly wrong does not change texts; it only lowers the acceptance rate. Therefore logits are compared
to 1e-5 in float32, for all flags of the formats, and planted faults must be detected.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads import CASES, Case, drafted, golden_target, legacy, nested, own_dspark, with_settings, write_head
from tests.tiny import llama
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import spectr
from spectr.errors import MismatchError
from spectr.models import int8
from spectr.models.published import block, eagle3, loading

CLOSE = 1e-5
EAGLE3, SOME_EAGLE3 = "plain-plain-raw-all-llama-shared", "plain-plain-raw-some-llama-shared"


def difference(case: Case, folder: Path, **options: Any) -> float:
    """Return the largest difference between the reference's logits and spectr's; infinite if the trees differ."""
    logits, tokens = drafted(case, folder, **options)
    if tokens.tolist() != case.tokens.tolist():
        return torch.inf
    return float((logits[:, case.rows()] - case.logits).abs().max())


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*case, marks=pytest.mark.slow if at % 2 else ()) for at, case in enumerate(CASES)],
    ids=lambda part: part,
)
def test_logits_are_those_of_the_reference(tmp_path: Path, family: str, name: str) -> None:
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files())) < CLOSE


@pytest.mark.parametrize("name", [EAGLE3, SOME_EAGLE3, "residual-fc_norm-normed-some-qwen3-own"])
@pytest.mark.parametrize("unread", [1, 4, 8])
def test_logits_do_not_depend_on_what_was_read_when(tmp_path: Path, name: str, unread: int) -> None:
    """Logits are right however many tokens of the text are read in prefill and how many with the draft."""
    case = Case("eagle3", name)
    assert difference(case, write_head(tmp_path, case.files()), unread=unread) < CLOSE


@pytest.mark.parametrize("name", ["dflash-sliding", "dspark-rnn-later", "own-dflash-sliding"])
@pytest.mark.parametrize("unread", [1, 4, 8])
def test_blocks_do_not_depend_on_what_was_read_when(tmp_path: Path, name: str, unread: int) -> None:
    """Blocks are right however many tokens of the text are read in prefill and how many with the draft."""
    case = Case("block", name)
    assert difference(case, write_head(tmp_path, case.files()), unread=unread) < CLOSE


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("drafted_tokens", ["all", "some"])
@pytest.mark.parametrize("embedding", ["shared", "own"])
def test_eagle3_as_its_inventors_publish_it(tmp_path: Path, file: str, drafted_tokens: str, embedding: str) -> None:
    """The original EAGLE-3 format gives the logits of the reference, as safetensors and as a pickle."""
    case = Case("eagle3", f"plain-plain-raw-{drafted_tokens}-llama-{embedding}")
    folder = write_head(tmp_path, legacy(case.files()), file)
    assert difference(case, folder, hidden_states=(2, 3, 5)) < CLOSE


@pytest.mark.parametrize("name", ["plain-plain-raw-some-llama-shared", "residual-norm_before_fc-raw-some-llama-shared",
                                  "plain-fc_norm-normed-all-llama-own", "rope-llama3", "rope-yarn"])  # fmt: skip
def test_eagle3_with_settings_in_a_part_of_their_own(tmp_path: Path, name: str) -> None:
    """EAGLE-3 settings may be nested in the config."""
    case = Case("eagle3", name)
    assert difference(case, write_head(tmp_path, nested(case.files()))) < CLOSE


@pytest.mark.parametrize("name", ["dspark", "dspark-some", "dspark-gated", "dspark-rnn", "dspark-rnn-later"])
def test_dspark_as_its_inventors_publish_it(tmp_path: Path, name: str) -> None:
    """The original DSpark format gives the logits of the reference."""
    case = Case("block", name)
    assert difference(case, write_head(tmp_path, own_dspark(case.files()))) < CLOSE


def test_weights_in_parts(tmp_path: Path) -> None:
    """A sharded checkpoint with an index gives the same logits."""
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
    """A head without an output layer computes the same as one with a copy of the target's."""
    case = Case("eagle3", EAGLE3)
    config, tensors = case.files()
    own = {**tensors, "lm_head.weight": golden_target().state_dict()["lm_head.weight"].clone()}
    none = {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    meant = drafted(case, write_head(tmp_path / "own", (config, own)))
    found = drafted(case, write_head(tmp_path / "none", ({**config, "draft_vocab_size": None}, none)))
    assert torch.equal(found[1], meant[1])
    assert torch.allclose(found[0], meant[0], atol=CLOSE)


def test_a_head_that_is_narrower_than_its_target(tmp_path: Path) -> None:
    """A narrow head with its own embedding and output layer does not change texts; without its own it is refused."""
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
def test_heads_whose_queries_are_narrower_than_the_width(tmp_path: Path, kind: str) -> None:
    """Queries of three heads of width four in a head of width 16 are supported: sizes are taken from the tensors."""
    config, tensors = Case("eagle3", f"plain-plain-raw-all-{kind}-shared").files()
    rows = {"q_proj": 12, "k_proj": 4, "v_proj": 4}
    for name, count in rows.items():
        tensors[f"layers.0.self_attn.{name}.weight"] = torch.randn(count, 32) * 0.2
    tensors["layers.0.self_attn.o_proj.weight"] = torch.randn(16, 12) * 0.2
    folder = write_head(tmp_path, (with_settings(config, num_attention_heads=3, num_key_value_heads=1), tensors))
    net = golden_target(torch.float64)
    plain, lm = spectr.load(net, "none"), spectr.load(net, str(folder), nodes=9)
    decoder: Any = lm.engine.drafter.head.model.config  # type: ignore[attr-defined]
    assert (decoder.num_attention_heads, decoder.num_key_value_heads, decoder.head_dim) == (3, 1, 4)
    assert lm.generate([3, 1], 40, seed=1).tokens == plain.generate([3, 1], 40, seed=1).tokens


def test_embeddings_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """A head reads unscaled embeddings, although its target (Gemma) scales them."""
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
    """With plan="auto" no tree is deeper than the block, and texts are those of plain decoding."""
    case = Case("block", "dflash")
    config, tensors = case.files()
    folder = str(write_head(tmp_path, ({**config, "block_size": 3}, tensors)))
    net = golden_target(torch.float64)
    plain, lm = spectr.load(net, "none"), spectr.load(net, folder, plan="auto")
    assert lm.generate([3, 1], 40, seed=1).tokens == plain.generate([3, 1], 40, seed=1).tokens


def test_a_bias_that_a_checkpoint_has_is_used(tmp_path: Path) -> None:
    """Biases of queries, keys and values are used: a zero bias changes nothing, and another one changes the logits."""
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
    """Compiled layers give the logits of the reference; here graphs are traced but not compiled to kernels."""
    monkeypatch.setattr("spectr.models.compiled._BACKEND", "eager")
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files()), compile=True) < CLOSE


@pytest.mark.parametrize(("family", "name"), [("eagle3", EAGLE3), ("block", "dflash"), ("block", "dspark")])
def test_rounded_weights_draft_nearly_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, name: str
) -> None:
    """With int8 weights, as on a GPU, the first nodes and their logits are nearly the same.

    Here the kernel is interpreted, in float32.
    """
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
    same = int((tokens == also).int().cumprod(0).sum())  # nodes before the trees differ
    assert same >= 2
    assert 0 < float((found[:1] - meant[:1]).norm() / meant[:1].norm()) < 0.05


@pytest.mark.gpu
class TestOnAGpu:
    """Golden logits on CUDA, in float32 with other attention kernels, and in bfloat16 with int8."""

    @pytest.mark.parametrize(("family", "name"), CASES[::7] + CASES[-17:], ids=lambda part: part)
    def test_logits_are_those_of_the_reference(self, tmp_path: Path, family: str, name: str) -> None:
        case = Case(family, name)
        net = golden_target(torch.float32, "cuda")
        assert difference(case, write_head(tmp_path, case.files()), net=net) < 1e-4

    @pytest.mark.parametrize(("family", "name"), [("eagle3", SOME_EAGLE3), ("block", "dspark"), ("block", "dflash")])
    def test_half_precision(self, tmp_path: Path, family: str, name: str) -> None:
        """In bfloat16 with int8 weights the distributions after the root overlap by more than 95 %."""
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


# Planted faults, which have occurred in practice: each must change the logits.


def _swapped(self: Any, embedded: Any, states: Any, **attention: Any) -> Any:
    joined = torch.cat([self.hidden_norm(states), self.input_layernorm(embedded)], -1)
    states = states + self.self_attn(hidden_states=joined, **attention)[0]
    return states + self.mlp(self.post_attention_layernorm(states))


def test_planted_states_before_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: hidden states and embeddings are joined in the wrong order."""
    case = Case("eagle3", EAGLE3)
    monkeypatch.setattr(eagle3._FirstLayer, "forward", _swapped)
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


def test_planted_offsets_taken_for_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: offsets of the draft vocabulary are used as token ids."""
    case = Case("eagle3", SOME_EAGLE3)
    monkeypatch.setattr(loading, "_target_tokens", lambda offsets, *_: offsets.long())
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE


@pytest.mark.parametrize("states", [(1, 2, 4), (3, 4, 6), (5, 3, 2)])
@pytest.mark.parametrize(("family", "name"), [("eagle3", EAGLE3), ("block", "dflash"), ("block", "dspark")])
def test_planted_other_hidden_states(tmp_path: Path, family: str, name: str, states: tuple[int, ...]) -> None:
    """Planted fault: the head reads other hidden states of the target."""
    case = Case(family, name)
    assert difference(case, write_head(tmp_path, case.files()), hidden_states=states) > 100 * CLOSE


@pytest.mark.parametrize("name", ["rope-llama3", "rope-yarn", "rope-linear"])
def test_planted_rotary_settings_that_are_not_read(tmp_path: Path, name: str) -> None:
    """Planted fault: the rotary settings of the config are ignored."""
    case = Case("eagle3", name)
    config, tensors = case.files()
    rope = {"rope_type": "default", "rope_theta": 100.0}
    assert difference(case, write_head(tmp_path, (with_settings(config, rope_parameters=rope), tensors))) > 100 * CLOSE


@pytest.mark.parametrize("flag", ["norm_output", "norm_before_residual"])
def test_planted_flags_that_are_not_read(tmp_path: Path, flag: str) -> None:
    """Logits depend on the flags, which decide whether the recurrence and the residual are taken before or after a
    norm."""
    case = Case("eagle3", EAGLE3)
    config, tensors = case.files()
    assert difference(case, write_head(tmp_path, ({**config, flag: True}, tensors))) > 100 * CLOSE


def test_planted_first_token_that_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the head attends to the first token of the text."""
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
    """Planted fault: a setting of a block head has another value."""
    case = Case("block", name)
    config, tensors = case.files()
    assert difference(case, write_head(tmp_path, ({**config, **changes}, tensors))) > 100 * CLOSE


def test_planted_correction_by_another_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the Markov correction uses another token."""
    case, usual = Case("block", "dspark"), block.BlockHead.corrected
    monkeypatch.setattr(
        block.BlockHead, "corrected", lambda self, x, h, tokens, c: usual(self, x, h, (tokens + 1) % 24, c)
    )
    assert difference(case, write_head(tmp_path, case.files())) > 100 * CLOSE
