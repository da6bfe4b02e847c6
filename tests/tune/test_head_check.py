"""The check of a published head: its acceptance equals that of whole texts, and the right hidden states win."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads import random_head
from tests.saved import save_model, tokenizer
from tests.tiny import widen
from transformers import LlamaConfig, LlamaForCausalLM

import spectr
from spectr.errors import ArgumentError
from spectr.models.depths import expected_features
from spectr.models.published.checkpoint import open_checkpoint
from spectr.models.published.loading import load_head
from spectr.tune.head_check import HeadCheck, Tried, check_head


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of ten layers, whose distributions depend on all of them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=10, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return save_model(widen(LlamaForCausalLM(config), 0.3), tmp_path_factory.mktemp("target"), tokenizer())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", ["dspark", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("eagle3", "peagle", "dflash"))]
)
def test_every_format_is_examined(target: Path, tmp_path: Path, kind: str) -> None:
    lm = spectr.load(str(target), "none")
    folder = random_head(lm.opened.target.model, kind, tmp_path)
    found = check_head(lm, str(folder), "the quick brown fox")
    assert found.form["format"].lower().replace("-", "") == kind
    assert found.form["tokens"] == "drafts 319 of 320"
    assert found.tried[0].states == (1, 2, 10)
    assert len(found.tried) == 1  # hidden state 11 is not there
    assert 0 < found.tried[0].acceptance[0] < 1
    assert found.step["tokens per call"] >= 1
    assert found.step["draft ms"] > 0


def test_acceptance_is_that_of_the_whole_text(target: Path, tmp_path: Path) -> None:
    """Drafting step by step gives the same as training's computation of all positions, with both sets of hidden
    states."""
    lm = spectr.load(str(target), "none", weights="float32")
    net, taken = lm.opened.target.model, lm.opened.target
    folder = random_head(net, "eagle3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [1, 4, 8]}))
    found = check_head(lm, str(folder), "the quick brown fox")
    assert [one.states for one in found.tried] == [(1, 4, 8), (2, 5, 9)]
    start = lm.encode("the quick brown fox")
    text = torch.tensor([[*start, *lm.generate(start, 64, seed=0).tokens]])
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint is not None
    for tried in found.tried:
        head: Any = load_head(checkpoint, net, 320, tried.states)
        session = taken.open(1, 200, feature_layers=head.shape.feature_layers)
        taken.read(session, [text[0].tolist()])
        features = taken.features_at(session, torch.arange(text.shape[1])[None])
        with torch.no_grad():
            laws = net(text).logits[0].softmax(-1)
            expected = expected_features(head, text, features, 4)
        for depth, states in enumerate(expected):
            drafts = head.logits(states)[0].softmax(-1)
            places = range(len(start) - 1 + depth, text.shape[1] - 4 + depth)
            meant = sum(float(torch.minimum(laws[at], drafts[at]).sum()) for at in places) / len(places)
            assert tried.acceptance[depth] == pytest.approx(meant, abs=1e-4)
    first, second = (one.acceptance[0] for one in found.tried)
    assert abs(first - second) > 1e-3


def test_advice_is_given_for_more_than_chance() -> None:
    step = {"ms": 1.0}
    near = HeadCheck({}, (Tried((2, 5, 7), (0.5,)), Tried((3, 6, 8), (0.51,))), step)
    assert near.advice is None
    assert HeadCheck({}, (Tried((2, 5, 7), (0.5,)), Tried((3, 6, 8), (0.6,))), step).advice is not None


def test_what_is_no_head_is_refused(target: Path) -> None:
    lm = spectr.load(str(target), "none")
    with pytest.raises(ArgumentError, match="doctor examines published heads"):
        check_head(lm, str(target), "the quick brown fox")
