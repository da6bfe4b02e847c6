"""A replay has the model's logits, texts and laws, and refuses operations that it does not support."""

from dataclasses import replace

import pytest
import torch

import spectr
from spectr.audit.equality import rows_finding
from spectr.audit.replay import Replay, TreeRows
from spectr.audit.setup import NOISY, real_setup, toy_setup
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.baselines import plain_rows
from spectr.policy import Policy

PROMPT = [3, 4, 5, 3, 4]


def test_rows_are_those_of_plain_forwards(lm: spectr.LM) -> None:
    rows = TreeRows(lm.opened.target, torch.arange(24), {tuple(PROMPT): PROMPT})
    texts = [tuple(PROMPT) + tail for tail in ((), (7,), (7, 8), (9, 1), (0, 0), (7, 9))] * 20
    assert (rows(texts) - plain_rows(lm.opened, texts)).abs().max() < 1e-5


def test_race_texts_on_a_replay_are_those_of_the_model(lm: spectr.LM) -> None:
    """With all tokens of the model, texts of three tokens are equal with and without drafts."""
    setup = real_setup(lm.opened, PROMPT, Policy(), vocabulary=24)
    assert setup.vocabulary == 24
    requests = [Request(PROMPT, seed, 3) for seed in range(60)]
    real = Engine(lm.opened.target, drafter("none"), spectr.rule("race"), lm.opened.stops).generate(requests)
    for made in ("none", NOISY, "early_exit", "lookup", "ngram", "random"):
        found = setup.engine(made, spectr.rule("race")).generate(requests)
        assert [r.tokens for r in found] == [r.tokens for r in real]


def test_the_tokens_that_are_left_out_are_a_policy(lm: spectr.LM) -> None:
    setup = real_setup(lm.opened, PROMPT, Policy(), vocabulary=6)
    assert setup.ids is not None
    whole = plain_rows(lm.opened, [tuple(PROMPT)])[0, setup.ids].double().softmax(-1)
    assert setup.law().laws([()])[0].tolist() == pytest.approx(whole.tolist(), abs=1e-6)
    assert [int(setup.ids[token]) for token in setup.prompt] == PROMPT


def test_what_is_deeper_is_remembered_by_its_end() -> None:
    setup = toy_setup()
    model = setup.model()
    deep = (*setup.prompt, 1, 2, 3, 4, 5)
    assert torch.equal(model.logits_after([deep]), setup.rows([(*setup.prompt, 4, 5)]).float())
    assert torch.equal(model.logits_after([deep[:-3]]), setup.rows([deep[:-3]]).float())


def test_tree_rows_of_a_replay() -> None:
    setup = toy_setup()
    found = rows_finding(replace(setup, memory=20).model(), setup.rows, [setup.prompt] * 4, "lossless")
    assert found.details["total_variation"] < 1e-6


def test_rows_that_move_and_begin_anew() -> None:
    """A window shares its text with the whole session; rows are copied, added and emptied."""
    setup = toy_setup()
    model = setup.model()
    session = model.open(2, 4)

    def following() -> list[int]:
        """Return the likeliest token after appending a 1 to each row."""
        tokens = torch.ones(len(session.state), 1, dtype=torch.int64)
        window, seen = model.window(session, 0, len(tokens), 99), torch.ones(len(tokens), 1, 1, dtype=torch.bool)
        return model.score(window, tokens, seen, 0 * tokens)[:, 0].argmax(-1).tolist()

    def meant(*texts: tuple[int, ...]) -> list[int]:
        return model.logits_after([(*text, 1) for text in texts]).argmax(-1).tolist()

    start = setup.prompt
    model.read(model.window(session, 1, 2, 0), [list(start)], [0])
    assert following() == meant((), start)
    model.read(model.window(session, 0, 2, 9), [[5], [6]])
    assert following() == meant((5,), (*start, 6))
    model.make_room(session, 3, 99)
    model.copy_rows(session, [1, 0], [2, 1], 99)
    assert following() == meant((5,), (5,), (*start, 6))
    model.rewind(model.window(session, 0, 3, 9), [0, 1, 6])
    assert following() == meant((), (5,), (*start, 6))
    window = model.window(session, 1, 3, 9)
    chain = torch.ones(2, 2, 2, dtype=torch.bool).tril()
    model.score(window, torch.tensor([[7, 8], [7, 8]]), chain, torch.tensor([[0, 1], [0, 1]]))
    model.keep(window, torch.tensor([[0, -1], [0, 1]]))
    assert following() == meant((), (5, 7), (*start, 6, 7, 8))


def test_unsupported_operations_of_a_replay_are_refused(lm: spectr.LM) -> None:
    model = toy_setup().model()
    session = model.open(2, 4)
    model.read(session, [[3, 4, 3], [3]])
    for call in (
        lambda: model.open(1, 1, feature_layers=(0,)),
        lambda: model.rewind(session, [2, 0]),
        lambda: model.copy_rows(session, [0], [1], 2),
        lambda: model.encode_row(session, 0, [1]),
        lambda: model.features_at(session, torch.zeros(2, 1)),
    ):
        with pytest.raises(MismatchError, match="replay"):
            call()
    with pytest.raises(ArgumentError, match="must begin with one of the prompts"):
        TreeRows(lm.opened.target, torch.arange(24), {(1, 2): [1, 2]})([(3,)])
    with pytest.raises(ArgumentError, match="requires a real model"):
        toy_setup().drafter("early_exit", spectr.rule("race"))
    with pytest.raises(ArgumentError, match="at least 2 tokens, got 1"):
        real_setup(lm.opened, PROMPT, Policy(), vocabulary=1)


def test_a_drafter_with_a_model_is_replayed_too(lm: spectr.LM) -> None:
    setup = real_setup(lm.opened, PROMPT, Policy(), vocabulary=8)
    made = drafter("model", model=lm.opened.target, plan=Plan("iid", tree=(1, 1)))
    found = setup.drafter(made, spectr.rule("speculative"))
    assert isinstance(found.model, Replay)  # type: ignore[attr-defined]
    mixed = setup.drafter("lookup+early_exit", spectr.rule("race"))
    assert mixed.name == "mixed"
