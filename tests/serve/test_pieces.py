"""The pieces of a streamed text add up to the same text however its tokens are divided into steps, and JSON that is
written in pieces equals JSON that is written at once."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.saved import TEXTS, tokenizer

from spectr.lm.output import TextReader
from spectr.serve import json_text
from spectr.serve.json_text import json_bytes
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
    """Return the sum of the pieces, and the number of tokens that belong to the text."""
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
    """Text and token count are the same for one step, for single tokens, and for random steps, with stop strings."""
    rng = random.Random(seed)
    whole = read(tokens, [], stops)
    single = read(tokens, list(range(len(tokens))), stops)
    cuts = sorted(rng.sample(range(len(tokens) + 1), rng.randint(0, len(tokens))))
    assert read(tokens, cuts, stops) == single
    assert whole == single


def test_a_stop_string_across_steps() -> None:
    """A stop string is found and cut wherever it is divided between steps."""
    tokens: Any = list(WORDS("one two three four")["input_ids"])
    for cut in range(len(tokens)):
        assert read(tokens, [cut], ["o thr"])[0] == "one tw"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(JSON, st.integers(1, 300))
def test_json_in_pieces_is_json(data: Any, repeats: int) -> None:
    for whole in (data, {"a": [data] * repeats, "b": {"c": [[data], {}, []]}}):
        assert json.loads(json_bytes(whole)) == whole
        assert json_bytes(whole) == json.dumps(whole, ensure_ascii=False).encode()


def test_json_in_pieces_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of `json.dumps`, which holds the interpreter lock until it returns, writes more than 100 kB of 5 MB."""
    sizes, write = list[int](), json_text._text

    def noted(value: Any) -> str:
        text = write(value)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(json_text, "_text", noted)
    entry = {f"token {number}": -number / 7 for number in range(15)}
    data = {"logprobs": {"top_logprobs": [dict(entry) for _ in range(20_000)], "tokens": ["token"] * 20_000}}
    assert len(json_bytes(data)) > 5_000_000
    assert max(sizes) < 100_000
    texts = {"choices": [{"text": "x" * 50_000} for _ in range(60)]}  # few entries, and long
    sizes.clear()
    assert json.loads(json_bytes(texts)) == texts
    assert max(sizes) < 100_000
