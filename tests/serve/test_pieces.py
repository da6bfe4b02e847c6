"""Any way to cut a text into steps gives the same text: the sum of the pieces that a client gets does not depend on how
many tokens came at once."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.saved import TEXTS, tokenizer

from spectr.lm.output import TextReader
from spectr.text.stream import TextStream

WORDS = tokenizer()
LAST = len(WORDS)
TOKENS = st.one_of(
    st.lists(st.integers(0, LAST - 1), max_size=60),
    st.sampled_from(TEXTS).map(lambda text: list(WORDS(text)["input_ids"])),
    st.text(max_size=30).map(lambda text: list(WORDS(text)["input_ids"])),
)
STOPS = st.lists(
    st.one_of(st.sampled_from(["the", "o", "🙂", "é ", "\ufffd"]), st.text(min_size=1, max_size=3)), max_size=3
)


def read(tokens: list[int], cuts: list[int], stops: list[str]) -> tuple[str, int]:
    """The sum of the pieces, and how many tokens belong to the text."""
    reader = TextReader(TextStream(WORDS, stops))
    shown, count, start = "", 0, 0
    for stop in [*cuts, len(tokens)]:
        piece, end = reader.feed(tokens[start:stop])
        shown += piece
        if end is not None:
            return shown + reader.finish(), count + end
        count, start = stop, stop
    return shown + reader.finish(), count


@settings(max_examples=300, deadline=None)
@given(TOKENS, STOPS, st.integers(0, 1 << 30))
def test_pieces_add_up(tokens: list[int], stops: list[str], seed: int) -> None:
    rng = random.Random(seed)
    whole = read(tokens, [], stops)
    single = read(tokens, list(range(len(tokens))), stops)
    cuts = sorted(rng.sample(range(len(tokens) + 1), rng.randint(0, len(tokens))))
    assert read(tokens, cuts, stops) == single
    assert whole == single


def test_a_stop_string_across_steps() -> None:
    tokens: Any = list(WORDS("one two three four")["input_ids"])
    for cut in range(len(tokens)):
        assert read(tokens, [cut], ["o thr"])[0] == "one tw"
