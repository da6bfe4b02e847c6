"""A replay is the model: its rows, its texts and its laws; and what it does not offer is refused."""

import pytest
import torch

import spectr
from spectr.audit.equality import rows_finding
from spectr.audit.replay import Replay, TreeRows
from spectr.audit.stage import NOISY, real_stage, toy_stage
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Job, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.baselines import plain_rows
from spectr.policy import Policy

PROMPT = [3, 4, 5, 3, 4]


def test_rows_are_those_of_plain_forwards(lm: spectr.LM) -> None:
    rows = TreeRows(lm.opened.target, torch.arange(24), {tuple(PROMPT): PROMPT})
    texts = [tuple(PROMPT) + tail for tail in ((), (7,), (7, 8), (9, 1), (0, 0), (7, 9))] * 20
    assert (rows(texts) - plain_rows(lm.opened, texts)).abs().max() < 1e-5


def test_race_texts_on_a_replay_are_those_of_the_model(lm: spectr.LM) -> None:
    """Three tokens, all tokens of the model: one and the same text, drafts or not."""
    stage = real_stage(lm.opened, PROMPT, Policy(), vocabulary=24)
    assert stage.vocabulary == 24
    requests = [Request(PROMPT, seed, 3) for seed in range(60)]
    real = Engine(lm.opened.target, drafter("none"), spectr.rule("race"), lm.opened.stops).generate(Job(requests))
    for made in ("none", NOISY, "early_exit", "lookup", "ngram", "random"):
        found = stage.engine(made, spectr.rule("race")).generate(Job(requests))
        assert [r.tokens for r in found] == [r.tokens for r in real]


def test_the_tokens_that_are_left_out_are_a_policy(lm: spectr.LM) -> None:
    stage = real_stage(lm.opened, PROMPT, Policy(), vocabulary=6)
    assert stage.ids is not None
    whole = plain_rows(lm.opened, [tuple(PROMPT)])[0, stage.ids].double().softmax(-1)
    assert stage.law().laws([()])[0].tolist() == pytest.approx(whole.tolist(), abs=1e-6)
    assert [int(stage.ids[token]) for token in stage.prompt] == PROMPT


def test_what_is_deeper_is_remembered_by_its_end() -> None:
    stage = toy_stage()
    model = stage.model()
    deep = (*stage.prompt, 1, 2, 3, 4, 5)
    assert torch.equal(model.logits_after([deep]), stage.rows([(*stage.prompt, 4, 5)]).float())
    assert torch.equal(model.logits_after([deep[:-3]]), stage.rows([deep[:-3]]).float())


def test_tree_rows_of_a_replay() -> None:
    stage = toy_stage()
    found = rows_finding(stage.model(memory=20), stage.rows, [stage.prompt] * 4, "lossless")
    assert found.details["total_variation"] < 1e-6


def test_what_a_replay_does_not_offer(lm: spectr.LM) -> None:
    model = toy_stage().model()
    session = model.open(2, 4)
    for call in (
        lambda: model.open(1, 1, features=(0,)),
        lambda: model.rewind(session, [0, 0]),
        lambda: model.encode(session, [[1]]),
        lambda: model.features_at(session, torch.zeros(2, 1)),
    ):
        with pytest.raises(MismatchError, match="replay"):
            call()
    with pytest.raises(ArgumentError, match="must begin with one of the prompts"):
        TreeRows(lm.opened.target, torch.arange(24), {(1, 2): [1, 2]})([(3,)])
    with pytest.raises(ArgumentError, match="belongs to a real model"):
        toy_stage().drafter("early_exit", spectr.rule("race"))
    with pytest.raises(ArgumentError, match="at least 2 tokens, got 1"):
        real_stage(lm.opened, PROMPT, Policy(), vocabulary=1)


def test_a_drafter_with_a_model_is_replayed_too(lm: spectr.LM) -> None:
    stage = real_stage(lm.opened, PROMPT, Policy(), vocabulary=8)
    made = drafter("model", model=lm.opened.target, plan=Plan("iid", tree=(1, 1)))
    found = stage.drafter(made, spectr.rule("speculative"))
    assert isinstance(found.model, Replay)  # type: ignore[attr-defined]
    mixed = stage.drafter("lookup+early_exit", spectr.rule("race"))
    assert mixed.name == "mixed"
