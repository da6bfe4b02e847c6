"""Drafts from a prediction: the position of a row's text in it, the length of the branch, and the tree to which it is
added."""

import random

import pytest
import torch
from tests.predicting import Follower

from spectr.draft import drafter
from spectr.draft.lookup import Lookup
from spectr.draft.prediction import LENGTH, PredictionDrafter, PredictionDrafting, Predictions
from spectr.policy import History
from spectr.types import Draft, Opening, Scene

SIZE = 100


def opened(rows: int = 1, **options: object) -> PredictionDrafting:
    return PredictionDrafter(drafter("none"), **options).open(Opening(rows, 999, SIZE, None))  # type: ignore[arg-type]


def proposed(drafting: PredictionDrafting, texts: list[list[int]], active: list[bool] | None = None) -> Draft:
    history, root = History.of(texts, SIZE), torch.tensor([text[-1] for text in texts])
    runs = torch.tensor(active or [True] * len(texts))
    return drafting.propose(Scene(history, root, runs, None, None, None, None, 999))  # type: ignore[arg-type]


def paths(draft: Draft) -> list[list[tuple[int, ...]]]:
    """Return the path to each leaf of each row."""
    found = []
    for tokens, parents, alive in zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True):
        way: list[tuple[int, ...]] = [()]
        for node in range(1, len(tokens)):
            way.append((*way[parents[node]], tokens[node]))
        inner = {parents[node] for node in range(1, len(tokens)) if alive[node]}
        found.append([way[node] for node in range(1, len(tokens)) if alive[node] and node not in inner])
    return found


def test_tokens_for_the_next_step_are_drafted_once() -> None:
    drafting = opened(3)
    for row in range(3):
        drafting.begin(row, [1, 2], 99, None)
    drafting.set_next_tokens(0, [5, 6, 7])
    drafting.set_next_tokens(2, range(30))  # type: ignore[arg-type]
    texts = [[1, 2], [1, 2], [1, 2]]
    assert paths(proposed(drafting, texts)) == [[(5, 6, 7)], [], [tuple(range(LENGTH))]]
    assert paths(proposed(drafting, texts)) == [[], [], []]
    drafting.set_next_tokens(0, [5, 6, 7])
    drafting.set_next_tokens(0, [8])
    drafting.set_next_tokens(1, [9])
    drafting.set_next_tokens(1, [])
    drafting.copy_rows([0], [2], 99)
    assert paths(proposed(drafting, texts)) == [[(8,)], [], [(8,)]]


def test_tokens_for_the_next_step_replace_a_prediction_for_that_step() -> None:
    drafting = opened()
    drafting.begin(0, [1, 2], 99, None)
    drafting.set_prediction(0, list(range(10, 40)), 2)
    drafting.set_next_tokens(0, [5, 6])
    assert paths(proposed(drafting, [[1, 2]])) == [[(5, 6)]]
    assert paths(proposed(drafting, [[1, 2, 10]])) == [[tuple(range(11, 27))]]


def test_tokens_that_both_draft_are_one_node() -> None:
    drafting = PredictionDrafter(Lookup(drafts=1, length=2)).open(Opening(1, 99, SIZE, None))
    text = [1, 2, 3, 4, 1, 2, 3]
    drafting.begin(0, text, 99, None)
    assert paths(proposed(drafting, [text])) == [[(4, 1)]]
    drafting.set_next_tokens(0, [4, 5, 6])
    draft = proposed(drafting, [text])
    assert sorted(paths(draft)[0]) == [(4, 1), (4, 5, 6)]
    assert draft.tokens.tolist() == [[3, 4, 1, 5, 6]]


# The position of a row in its prediction.


def begun(predictions: list[list[int]], prompts: list[list[int]], **options: object) -> PredictionDrafting:
    drafting = opened(len(predictions), **options)
    for row, (prediction, prompt) in enumerate(zip(predictions, prompts, strict=True)):
        drafting.begin(row, prompt, 999, None)
        drafting.set_prediction(row, prediction, len(prompt))
    return drafting


def branch(drafting: PredictionDrafting, text: list[int]) -> tuple[int, ...]:
    """Return the tokens drafted for the only row."""
    found = paths(proposed(drafting, [text]))[0]
    return found[0] if found else ()


CODE = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49]


def test_a_new_text_begins_at_the_beginning_of_its_prediction() -> None:
    """The first branch of a new text is the beginning of the prediction, even if the prompt's end occurs elsewhere."""
    drafting = begun([CODE], [[36, 37, 38]])
    assert branch(drafting, [36, 37, 38]) == tuple(CODE[:8])


def test_the_branch_continues_where_the_text_is() -> None:
    """The branch continues at the position of the text in the prediction, and ends with the prediction."""
    drafting, text = begun([CODE], [[1]]), [1]
    assert branch(drafting, text) == tuple(CODE[:8])
    assert branch(drafting, [*text, *CODE[:2]]) == tuple(CODE[2:18])
    assert branch(drafting, [*text, *CODE[:19]]) == tuple(CODE[19:])
    assert branch(drafting, [*text, *CODE]) == ()


@pytest.mark.parametrize(
    ("came", "meant"),
    [
        ([30, 31, 9], 33),  # one token is replaced
        ([30, 31, 9, 8, 33], 34),  # one token is replaced by two
        ([30, 31, 34], 35),  # two tokens are left out
        ([30, 31, 9, 9, 32], 33),  # two tokens are inserted
        ([30, 31, 32, 31], 32),  # the text goes back
        ([9, 8, 7, 42, 43, 44, 45], 46),  # a long match far away
    ],
)
def test_an_edited_text_finds_its_place_again(came: list[int], meant: int) -> None:
    """After an edit, the position in the prediction is found again."""
    drafting = begun([CODE], [[1]])
    proposed(drafting, [[1]])
    draft = proposed(drafting, [[1, *came]])
    assert draft.predicted is not None
    assert draft.predicted[0, 0] == meant


def test_among_equal_matches_the_nearest_is_used() -> None:
    """If a line occurs three times with different continuations, the occurrence nearest to the position is used."""
    line = [20, 21, 22, 23, 24]
    prediction = [*CODE[:15], *line, 1, *CODE[:15], *line, 2, *CODE[:15], *line, 3]
    for lines, follows in ((0, 1), (1, 2), (2, 3)):
        before = 21 * lines + 15
        drafting, text = begun([prediction], [[9]]), [9, *prediction[: before - 1]]
        for cut in range(1, len(text)):
            proposed(drafting, [text[:cut]])
        draft = proposed(drafting, [[*text, 77, *line]])
        assert draft.predicted is not None
        assert draft.predicted[0, 0] == follows


def test_a_short_match_far_away_is_ignored() -> None:
    drafting = begun([CODE], [[1]])
    proposed(drafting, [[1]])
    draft = proposed(drafting, [[1, 9, 48]])
    assert draft.predicted is not None
    assert draft.predicted[0, :2].tolist() == [32, 33]


# The length of the branch.


def test_the_length_of_the_branch_follows_what_was_right() -> None:
    """The branch grows after right predictions, and is dropped after a step without one until a guess is right."""
    prediction, prompt = list(range(10, 90)), [1]
    drafting, text, lengths = begun([prediction], [prompt]), list(prompt), list[int]()

    def step(*tokens: int) -> None:
        text.extend(tokens)
        lengths.append(len(branch(drafting, text)))

    step()
    step(*range(10, 15))  # all tokens were right
    step(15, 16, 99)  # some tokens were right
    step(98)  # none was right, so the next guess is not drafted
    step(97)
    step(20)  # the guess was right, although it was not drafted
    step(21)
    step(*range(22, 39))
    assert lengths == [8, 16, 16, 0, 0, 8, 16, 16]


def test_branches_of_many_rows_are_shorter_under_the_race() -> None:
    for rows, length in ((1, 8), (16, 8), (32, 4), (64, 2), (256, 1)):
        texts = [[1]] * rows
        for races in (True, False):
            drafting = begun([CODE] * rows, texts, races=races)
            draft = proposed(drafting, texts)
            assert draft.alive.sum(-1).tolist() == [1 + (length if races else 8)] * rows


# Comparison with plain Python.


def compared(seed: int) -> tuple[bool, int]:
    """Return whether rows draft what their followers predict, and how many tokens were compared.

    Rows have different lengths, and vocabularies are small, so that there are many matches. Texts are edited copies of
    their predictions and grow by steps of all lengths; rows move, and some are inactive in some steps.
    """
    draws, drafted, agree = random.Random(seed), 0, True
    for _ in range(30):
        size, rows = draws.choice((2, 4, 12, 90)), draws.randrange(1, 6)
        prompts = [[draws.randrange(size) for _ in range(draws.randrange(1, 9))] for _ in range(rows)]
        predictions = [[draws.randrange(size) for _ in range(draws.choice((0, 1, 5, 40, 130)))] for _ in range(rows)]
        drafting, texts = begun(predictions, prompts), [list(prompt) for prompt in prompts]
        followers = [Follower(ref, len(prompt)) for ref, prompt in zip(predictions, prompts, strict=True)]
        for _ in range(12):
            active = [draws.random() < 0.8 for _ in range(rows)]
            given = {row: [5 % size] * draws.randrange(1, 20) for row in range(rows) if draws.random() < 0.1}
            for row, tokens in given.items():
                drafting.set_next_tokens(row, tokens)
            order = draws.sample(range(rows), rows)
            drafting.copy_rows(order, list(range(rows)), 99)
            texts, followers = [texts[row] for row in order], [followers[row] for row in order]
            draft = proposed(drafting, texts, active)
            assert draft.predicted is not None
            for row in (row for row in range(rows) if active[row]):
                predicted, count = followers[row].follow(texts[row])
                branch = tuple(given[order[row]][:LENGTH] if order[row] in given else predicted[:count])
                found = [token for token in draft.predicted[row].tolist() if token >= 0]
                agree &= found == predicted and paths(draft)[row] == ([branch] if branch else [])
                drafted += count
                texts[row] = [*texts[row], *grown(draws, predicted, size)]
            for row in given:
                drafting.set_next_tokens(order.index(row), [])  # discard the tokens of inactive rows
    return agree, drafted


@pytest.mark.parametrize("seed", range(4))
def test_drafts_equal_those_of_plain_python(seed: int) -> None:
    agree, drafted = compared(seed)
    assert agree
    assert drafted > 1000


@pytest.mark.parametrize("table", ["tokens", "size", "start", "since", "place", "reach", "next_tokens"])
def test_a_table_that_does_not_move_is_seen(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: one table of the predictions does not move with its rows."""
    copy_rows = Predictions.copy_rows

    def stays(predictions: Predictions, sources: list[int], targets: list[int]) -> None:
        before = getattr(predictions, table).clone()
        copy_rows(predictions, sources, targets)
        getattr(predictions, table).copy_(before)

    monkeypatch.setattr(Predictions, "copy_rows", stays)
    assert not compared(0)[0]


def grown(draws: random.Random, predicted: list[int], size: int) -> list[int]:
    """Return the tokens that a step adds: some of the predicted ones, and sometimes others."""
    kept = predicted[: draws.choice((0, 1, 2, 16, 17, 17, 17))]
    extra = [draws.randrange(size) for _ in range(draws.choice((0, 0, 1, 3, 20)))]
    return [*kept, *extra] or [draws.randrange(size)]


# Rows that come and go.


def test_predictions_go_with_their_rows() -> None:
    """A row that moves keeps its prediction; a row that begins has its own prediction or none."""
    texts = [[1], [1], [1]]
    drafting = begun([[10, 11], [20, 21], []], texts)
    assert paths(proposed(drafting, texts)) == [[(10, 11)], [(20, 21)], []]
    drafting.copy_rows([1, 0], [0, 2], 99)
    assert paths(proposed(drafting, texts)) == [[(20, 21)], [(20, 21)], [(10, 11)]]
    drafting.begin(0, [1], 99, None)
    drafting.set_prediction(2, [30], 1)
    assert paths(proposed(drafting, texts)) == [[], [(20, 21)], [(30,)]]
    drafting.make_room(5, 99)
    drafting.begin(4, [1], 99, None)
    drafting.set_prediction(4, list(range(40, 48)), 1)
    assert paths(proposed(drafting, [[1]] * 5)) == [[], [(20, 21)], [(30,)], [], [tuple(range(40, 48))]]


def test_tables_stay_where_they_are_until_the_version_changes() -> None:
    """Tables keep their addresses, to which captured steps refer, as long as the version is the same."""
    drafting = opened(2)

    def places() -> list[int]:
        return [table.data_ptr() for table in vars(drafting.predictions).values() if isinstance(table, torch.Tensor)]

    before, version = places(), drafting.version
    for row in range(2):
        drafting.begin(row, [1], 99, None)
        drafting.set_prediction(row, [5] * 60, 1)
        drafting.set_next_tokens(row, [5, 6])
    proposed(drafting, [[1], [1]])
    drafting.copy_rows([0], [1], 99)
    drafting.make_room(2, 9999)
    assert (places(), drafting.version) == (before, version)
    drafting.set_prediction(0, [5] * 100, 1)
    assert places() != before
    assert drafting.version > version
    version = drafting.version
    drafting.make_room(3, 99)
    assert drafting.version > version


def test_tokens_generated_before_are_searched_for() -> None:
    """A row that continues in the middle of a text begins at the position of its tokens in the prediction."""
    prediction = list(range(10, 90))
    text = [1, 2, *range(10, 30), 7, 7, *range(33, 50)]
    drafting = opened()
    drafting.begin(0, text, 99, None)
    drafting.set_prediction(0, prediction, 2)
    draft = proposed(drafting, [text])
    assert draft.predicted is not None
    assert draft.predicted[0].tolist() == list(range(50, 67))
