"""speculators reads the heads that spectr writes; this is checked with golden files, and with the package itself if it
is installed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.heads import CASES, GOLDEN, Case, WrittenCase, drafted, golden_target, write_eagle3
from tests.tiny import llama

import spectr
from spectr.errors import MismatchError
from spectr.models.depths import expected_features
from spectr.models.published.making import Written, eagle3_of, save_eagle3
from spectr.models.target import Target

ROOT = Path(__file__).resolve().parents[2]
ORACLE = os.environ.get("SPECTR_ORACLE")  # a Python with speculators 0.9.0, see tools/golden_heads.py


def difference(case: Case, folder: Path) -> float:
    logits, tokens = drafted(case, folder)
    if tokens.tolist() != case.tokens.tolist():
        return torch.inf
    return float((logits[:, case.rows()] - case.logits).abs().max())


def test_speculators_computes_the_same_from_what_we_write(tmp_path: Path) -> None:
    """A golden file of speculators' output for a written head equals spectr's own logits."""
    assert difference(WrittenCase(GOLDEN / "written.safetensors"), write_eagle3(tmp_path)) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(ORACLE is None, reason="set SPECTR_ORACLE to a python that has speculators 0.9.0")
def test_a_round_trip_through_speculators(tmp_path: Path) -> None:
    """speculators loads a head that spectr has just written and computes the same logits."""
    folder, tool = write_eagle3(tmp_path / "head"), ROOT / "tools" / "golden_heads.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(ORACLE), str(tool), str(tmp_path), "--written", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert difference(WrittenCase(tmp_path / "written.safetensors"), folder) < 1e-5


@pytest.mark.parametrize("fault", ["absolute", "flag", "states"])
def test_planted_faults_of_the_writer_are_seen(tmp_path: Path, fault: str) -> None:
    """Planted faults: tokens instead of offsets, an inverted flag, and hidden states that are numbered differently."""
    from safetensors.torch import save_file

    folder = write_eagle3(tmp_path)
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    if fault == "absolute":
        tensors["d2t"] = tensors["d2t"] - tensors["d2t"].clamp_max(1)
    elif fault == "flag":
        config["norm_before_residual"] = False
    else:
        config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    case = WrittenCase(GOLDEN / "written.safetensors")
    try:
        assert difference(case, folder) > 1e-3
    except MismatchError:
        assert fault == "absolute"


def test_all_settings_are_those_that_speculators_writes(tmp_path: Path) -> None:
    """The config has exactly the settings that speculators writes."""
    config = json.loads((write_eagle3(tmp_path) / "config.json").read_text())
    theirs = Case(*next(case for case in CASES if case[1] == "residual-plain-raw-some-llama-shared")).files()[0]
    assert set(config) == set(theirs)
    assert set(config["speculators_config"]) == set(theirs["speculators_config"])
    assert set(config["transformer_layer_config"]) <= set(theirs["transformer_layer_config"])
    assert config["speculators_config"]["verifier"]["name_or_path"] == "somebody/target"


def test_without_a_draft_vocabulary_all_tokens_are_written(tmp_path: Path) -> None:
    """A head without a draft vocabulary is written with all tokens and can be loaded again."""
    head = eagle3_of(golden_target())
    save_eagle3(tmp_path, head, Written("x", ("LlamaForCausalLM",), 4))
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (24, 16)
    assert "d2t" not in tensors
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == 24
    plain, lm = (spectr.load(golden_target(torch.float64), name) for name in ("none", str(tmp_path)))
    assert lm.generate([1, 2], 8, seed=1).tokens == plain.generate([1, 2], 8, seed=1).tokens


def test_a_target_with_too_few_layers_is_refused() -> None:
    with pytest.raises(MismatchError, match="reads three hidden states, and this target has 2 layers"):
        eagle3_of(llama(0, layers=2))


def test_what_is_trained_is_what_is_drafted(tmp_path: Path) -> None:
    """The logits of four depths in training equal those of a drafted chain of four tokens."""
    net, head = golden_target(), eagle3_of(golden_target())
    with torch.no_grad():
        for weights in head.parameters():
            weights.copy_(torch.randn(weights.shape) * 0.2 + (1.0 if weights.dim() == 1 else 0.0))
    save_eagle3(tmp_path, head, Written("x", ("LlamaForCausalLM",), 4))
    case: Any = Case(*CASES[0])
    case.branching = [1, 1, 1, 1]
    logits, tokens = drafted(case, tmp_path)
    text = torch.tensor([[*case.text, *tokens.tolist()]])
    target = Target(net)
    session = target.open(1, 40, feature_layers=head.shape.feature_layers)
    target.read(session, [text[0].tolist()])
    features = target.features_at(session, torch.arange(text.shape[1])[None])
    with torch.no_grad():
        meant = [head.logits(found) for found in expected_features(head, text, features, 4)]
    for depth in range(4):
        at = len(case.text) - 1 + depth
        assert torch.allclose(logits[depth], meant[depth][0, at], atol=1e-5)
