"""Rows of one session can be used through windows, copied, enlarged, and given their own sources.

After each operation, one more token on every row gives the logits of a plain forward pass of its whole text."""

from typing import Any

import pytest
import torch

NAMES = ["llama", "gemma3_text", "deepseek_v3", "gpt2", "bloom", "falcon alibi", "t5", "umt5", "bart"]
ENCODERS = ["t5", "umt5", "bart"]


def opened(play: Any, kinds: list[int], slots: int = 48, feature_layers: tuple[int, ...] | None = None) -> Any:
    """Open a session whose rows have the sources of these kinds and have read nothing."""
    session = play.target.open(len(kinds), slots, feature_layers=feature_layers)
    for row, kind in enumerate(kinds):
        if play.sources is not None:
            play.target.encode_row(session, row, play.sources[kind])
    return session


half = pytest.mark.parametrize(
    ("name", "joint"),
    [
        pytest.param(name, joint, marks=() if (at + joint) % 2 == 0 else pytest.mark.slow)
        for at, name in enumerate(NAMES)
        for joint in (False, True)
    ],
)
"""Every model, of which the quick tier has one half with separate caches and the other half with a joint one."""


def read(play: Any, session: Any, first: int, texts: list[list[int]]) -> None:
    """Read texts into the rows from `first` on, through a window."""
    filled = session.filled[first : first + len(texts)].tolist()
    window = play.target.window(session, first, first + len(texts), max(filled))
    play.target.read(window, texts, filled)


def all_right(play: Any, session: Any, texts: list[list[int]], kinds: list[int]) -> None:
    """Check every row, through windows on one, some and all rows."""
    lengths = [len(text) for text in texts]
    assert session.filled.tolist() == lengths
    for first, stop in ((0, len(texts)), (1, len(texts)), (0, 1), (len(texts) - 1, len(texts))):
        window = play.target.window(session, first, stop, max(lengths[first:stop]))
        play.next_is_right(window, texts[first:stop], kinds[first:stop])


@half
def test_windows_read_and_keep_only_their_rows(name: str, joint: bool, make: Any) -> None:
    """Reading, keeping and rewinding through a window do not change the rows outside of it."""
    play, kinds = make(name), [0, 1, 1, 0]
    play.target.joint = joint
    session = opened(play, kinds)
    long, short = play.prompts
    read(play, session, 1, [short, short[:3]])  # the very first call allocates the buffers of all rows
    read(play, session, 0, [long])
    read(play, session, 3, [long[:5]])
    read(play, session, 2, [short[3:], [8, 9]])
    texts = [long, short, short, [*long[:5], 8, 9]]
    all_right(play, session, texts, kinds)
    window = play.target.window(session, 0, 2, 11)
    logits = play.target.score(window, play.tokens, play.seen, play.depth)
    assert play.worst(logits) < 5e-5
    play.target.keep(window, torch.tensor([[0, 1, 3, 6], [-1, 0, 2, -1]]))
    texts[:2] = [long + play.path(0, 6), short + play.path(1, 2)]
    all_right(play, session, texts, kinds)
    play.target.rewind(play.target.window(session, 1, 3, 9), [4, 99])
    texts[1] = texts[1][:4]
    all_right(play, session, texts, kinds)


@half
def test_the_beginnings_of_rows_can_be_copied(name: str, joint: bool, make: Any) -> None:
    """Any number of tokens can be copied to another row and continued there, and rows can be permuted in one call."""
    play, kinds = make(name), [0, 1, 0, 1]
    play.target.joint = joint
    session = opened(play, kinds)
    long, short = play.prompts
    read(play, session, 0, [long, short, long[:2], [7, 7, 7]])
    play.target.copy_rows(session, [0], [3], 6)
    kinds[3] = 0
    all_right(play, session, [long, short, long[:2], long[:6]], kinds)
    read(play, session, 3, [[5, 6, 7]])
    all_right(play, session, [long, short, long[:2], [*long[:6], 5, 6, 7]], kinds)
    play.target.copy_rows(session, [1, 2, 0], [0, 1, 2], 48)
    kinds[:3] = [1, 0, 0]
    all_right(play, session, [short, long[:2], long, [*long[:6], 5, 6, 7]], kinds)


@half
def test_make_room_keeps_the_contents(name: str, joint: bool, make: Any) -> None:
    """Contents stay when room is made for more rows, more tokens or both, also before anything was read."""
    play, kinds = make(name), [0, 1]
    play.target.joint = joint
    long, short = play.prompts
    session = opened(play, kinds, 16)
    read(play, session, 0, [long, short])
    for rows, slots in ((3, 16), (3, 48), (5, 80), (1, 1)):
        before = (session.rows, session.cache.size)
        play.target.make_room(session, rows, slots)
        assert (session.rows, session.cache.size) == (max(rows, before[0]), max(slots, before[1]))
        for row in range(before[0], session.rows):
            if play.sources is not None:
                play.target.encode_row(session, row, play.sources[0])
            kinds.append(0)
            read(play, session, row, [[*long, row]])
        all_right(play, session, [long, short, [*long, 2], [*long, 3], [*long, 4]][: session.rows], kinds)
    fresh = opened(play, [0], 16)
    play.target.make_room(fresh, 2, 48)
    if play.sources is not None:
        play.target.encode_row(fresh, 1, play.sources[1])
    read(play, fresh, 0, [long, short])
    all_right(play, fresh, [long, short], [0, 1])


@pytest.mark.parametrize("name", ENCODERS)
def test_one_row_can_get_another_source(name: str, make: Any) -> None:
    """A row can get a new source, longer or shorter than all others, and existing windows use it."""
    play = make(name)
    session, (long, short) = opened(play, [1, 1]), play.prompts
    read(play, session, 0, [long, short])
    all_right(play, session, [long, short], [1, 1])
    for row, kind in ((1, 0), (0, 0), (1, 1)):
        play.target.encode_row(session, row, play.sources[kind])
        play.target.rewind(session, [0, 0])
        read(play, session, 0, [long, short])
        kinds = {(1, 0): [1, 0], (0, 0): [0, 0], (1, 1): [0, 1]}[row, kind]
        all_right(play, session, [long, short], kinds)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_features_go_with_their_rows(name: str, make: Any) -> None:
    """Features are moved with their rows when room is made and when rows are copied."""
    play = make(name)
    session, (long, short) = opened(play, [0, 1], feature_layers=(0,) if name == "llama" else ()), play.prompts
    read(play, session, 0, [long, short])
    places = torch.arange(7).expand(2, -1)
    before = play.target.features_at(session, places).clone()
    assert before.std() > 0
    play.target.make_room(session, 3, 80)
    play.target.copy_rows(session, [0, 1], [1, 2], 5)
    after = play.target.features_at(session, torch.arange(5).expand(3, -1))
    assert torch.equal(after, before[[0, 0, 1], :5])
    window = play.target.window(session, 1, 3, 5)
    assert torch.equal(play.target.features_at(window, places[:, :5]), after[1:])
    assert not play.target.features_at(window, places[:, :1] - 1).any()  # before the first token
