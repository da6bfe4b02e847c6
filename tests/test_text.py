"""Streams of text against whole texts, with tokenizers of every kind and stop strings at any position."""

import random
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from spectr.errors import ArgumentError
from spectr.text.stream import TextStream, first_stop
from spectr.text.token_bytes import token_bytes

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "Ünïcödé – “quotes”, naïve café; 12345 6789.",
    "日本語のテキストと中文文本。東京は大きい。",
    "Emoji: 😀 😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽!",
    "def f(x):\n    return {'a': x,\t'b': [1, 2, 3]}\n",
    "  two  spaces   and more    spaces",
]
SAMPLES = [
    *CORPUS,
    "",
    " ",
    "   leading",
    "trailing   ",
    "\n\n\n",
    "😀😀😀",
    "a\ufffdb",
    "\ufffd",
    "\ufffd語ü",
    "😀 nötig 語",
]


@cache
def byte_level() -> Tokenizer:
    """A tokenizer like GPT-2's: bytes, so that a character may take several tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False),
    )
    return made


@cache
def metaspace() -> Tokenizer:
    """A tokenizer like Llama's and T5's with SentencePiece: spaces become ▁, the first one is dropped, and unknown
    characters become bytes."""
    pieces = ["▁", "▁the", "▁dog", "the", "dog", "▁▁", "s", "▁s", ",", ".", *sorted(set("".join(CORPUS[:2])) - {" "})]
    pieces = list(dict.fromkeys(pieces))
    scores = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)] + [
        (piece, -float(len(piece) == 1)) for piece in pieces
    ]
    made = Tokenizer(models.Unigram([("<unk>", -30.0), ("<s>", 0.0), *scores], unk_id=0, byte_fallback=True))
    made.add_special_tokens(["<s>"])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return made


@cache
def llama() -> Tokenizer:
    """A tokenizer like Llama 2's: the same pieces, joined and then stripped of one space."""
    made = Tokenizer.from_str(metaspace().to_str())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Sequence([])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


@cache
def word_piece() -> Tokenizer:
    """A tokenizer like BERT's: words are joined by spaces, and a clean-up removes some of them."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    )
    return made


@cache
def smollm() -> Any:
    """The tokenizer of the default model."""
    from spectr.models.catalog import pull
    from spectr.models.gguf.build import config_of
    from spectr.models.gguf.reader import open_gguf
    from spectr.models.gguf.tokenizer import tokenizer_of

    file = open_gguf(pull("smollm2-135m"))
    return tokenizer_of(file, config_of(file))


REAL = pytest.param(smollm, marks=pytest.mark.slow)  # of the kind of `byte_level`
EXACT = [byte_level, metaspace, llama, REAL]


def ids(tokenizer: Any, text: str) -> list[int]:
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return list(encoded if isinstance(encoded, list) else encoded.ids)


def streamed(tokenizer: Any, tokens: list[int], stops: tuple[str, ...] = ()) -> TextStream:
    """A stream at its end, whose pieces must be its text."""
    stream = TextStream(tokenizer, stops)
    pieces = [stream.feed(token) for token in tokens]
    assert stream.text == "".join(pieces)
    pieces.append(stream.finish())
    assert stream.text == "".join(pieces)
    assert stream.finish() == ""
    return stream


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_are_the_text(make: Any, text: str) -> None:
    tokenizer = make()
    tokens = ids(tokenizer, text)
    assert streamed(tokenizer, tokens).text == tokenizer.decode(tokens, skip_special_tokens=True)


@settings(max_examples=60)
@pytest.mark.parametrize("make", EXACT)
@given(text=st.text(max_size=30))
def test_any_text(make: Any, text: str) -> None:
    tokenizer = make()
    tokens = ids(tokenizer, text)
    assert streamed(tokenizer, tokens).text == tokenizer.decode(tokens, skip_special_tokens=True)


@settings(max_examples=60)
@pytest.mark.parametrize("make", [byte_level, REAL])
@given(data=st.data())
def test_any_tokens(make: Any, data: st.DataObject) -> None:
    """Also tokens that are no valid text: broken characters, and special tokens in between."""
    tokenizer = make()
    tokens = data.draw(st.lists(st.integers(0, 299), max_size=60))
    assert streamed(tokenizer, tokens).text == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("make", [metaspace, llama])
@given(words=st.lists(st.sampled_from(["▁", "▁▁", "▁the", "dog", "s", "<s>", "."]), max_size=12))
@example(words=["dog", "<s>", "▁the"])
def test_spaces_before_words_stay(make: Any, words: list[str]) -> None:
    tokenizer = make()
    tokens = [tokenizer.token_to_id(word) for word in words]
    assert streamed(tokenizer, tokens).text == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("text", SAMPLES)
def test_word_pieces_but_for_spaces(text: str) -> None:
    """A clean-up that looks ahead cannot change text that was shown."""
    tokenizer = word_piece()
    tokens = ids(tokenizer, text)
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assert streamed(tokenizer, tokens).text.split() == whole.split() or "'" in text
    assert "".join(streamed(tokenizer, tokens).text.split()) == "".join(whole.split())


@pytest.mark.parametrize("make", [byte_level, metaspace, llama])
def test_no_partial_character_is_shown(make: Any) -> None:
    tokenizer = make()
    tokens = ids(tokenizer, "😀語ü👍🏽")
    assert len(tokens) > 5
    stream = TextStream(tokenizer)
    for token in tokens:
        assert "\ufffd" not in stream.feed(token)
    assert stream.text.endswith("👍🏽")
    stream = TextStream(tokenizer)
    broken = ids(tokenizer, "ab😀")[:-1]
    assert [stream.feed(token) for token in broken][-1] == ""
    assert stream.finish().strip("\ufffd") == ""
    assert stream.text == tokenizer.decode(broken)


class Counting:
    """A tokenizer that counts the tokens it has decoded."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.decoded, self.most = tokenizer, 0, 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.decoded += len(token_ids)
        self.most = max(self.most, len(token_ids))
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("kind", ["text", "special", "broken", "broken starts"])
def test_cost_does_not_grow_with_the_text(kind: str) -> None:
    plain = byte_level()
    first, second = ids(plain, "😀")[:2]
    runs = {
        "text": ids(plain, CORPUS[0]) * 20,
        "special": [plain.token_to_id("<s>")] * 600,
        "broken": [second] * 600,
        "broken starts": [first, second] * 300,
    }
    tokens = [*ids(plain, "a 語"), *runs[kind], *ids(plain, " 😀 b")]
    counting = Counting(plain)
    assert streamed(counting, tokens).text == plain.decode(tokens)
    assert counting.most <= 40
    assert counting.decoded <= 50 * len(tokens)
    if kind == "text":
        assert counting.decoded <= 8 * len(tokens)


class Letters:
    """A tokenizer of given pieces: a token is the index of its piece."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.pieces[token] for token in token_ids)


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(marks)]


small = st.text("abc", min_size=1, max_size=5)


@settings(max_examples=400)
@given(text=st.text("abc", max_size=40), stops=st.lists(small, max_size=3), places=st.lists(st.integers(0, 40)))
@example(text="xabcdx", stops=["abcd", "bc"], places=[2])
@example(text="aab", stops=["ab"], places=[1, 2])
def test_stops_are_found_however_the_text_is_cut(text: str, stops: list[str], places: list[int]) -> None:
    pieces = cut(text, places)
    stream = streamed(Letters(pieces), list(range(len(pieces))), tuple(stops))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (stream.text, stream.ended) == (text, False)
        return
    start = min(text.find(stop) for stop in stops if stop in text and text.find(stop) + len(stop) == min(ends))
    assert stream.ended
    assert stream.text == text[:start]
    assert stream.stop == text[start : min(ends)]


@settings(max_examples=60)
@pytest.mark.parametrize("make", EXACT)
@given(before=st.text(max_size=12), stop=st.text(min_size=1, max_size=6), after=st.text(max_size=6))
def test_stops_across_real_tokens(make: Any, before: str, stop: str, after: str) -> None:
    tokenizer = make()
    tokens = ids(tokenizer, before + stop + after)
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    stream = streamed(tokenizer, tokens, (stop,))
    assert stream.ended == (stop in whole)
    assert stream.text == whole.partition(stop)[0]


@settings(max_examples=200)
@given(text=st.text("abc", max_size=30), stop=small)
def test_what_is_shown_is_never_taken_back(text: str, stop: str) -> None:
    """After each letter exactly the text that cannot be part of a stop string is shown."""
    stream = TextStream(Letters(list(text)), [stop])
    for place in range(len(text)):
        stream.feed(place)
        so_far = text[: place + 1]
        if stop in so_far:
            assert stream.ended
            return
        hidden = so_far[len(stream.text) :]
        longest = max(n for n in range(len(stop)) if so_far.endswith(stop[:n]))
        assert hidden == stop[:longest]


def test_after_the_end_nothing_is_shown() -> None:
    stream = TextStream(Letters(["ab", "c", "d"]), ["bc"])
    assert [stream.feed(0), stream.feed(1), stream.feed(2), stream.finish()] == ["a", "", "", ""]
    assert (stream.text, stream.ended, stream.stop) == ("a", True, "bc")


def test_a_stop_string_that_never_comes_is_shown_at_the_end() -> None:
    stream = TextStream(Letters(["ab", "c"]), ["bcd"])
    assert [stream.feed(0), stream.feed(1), stream.finish()] == ["a", "", "bc"]


def test_first_stop() -> None:
    assert first_stop("abcd", ["d", "x"]) == (3, "d")
    assert first_stop("abcd", ["cd", "bcd"]) == (1, "bcd")
    assert first_stop("abcd", ["abcd", "bc"]) == (1, "bc")
    assert first_stop("abcd", ["x"]) is None
    assert first_stop("abcd", []) is None


@pytest.mark.parametrize("stops", ["stop", ["a", ""], [3]])
def test_bad_stops(stops: Any) -> None:
    with pytest.raises(ArgumentError, match="stops must be a sequence of strings that are not empty"):
        TextStream(Letters([]), stops)


def test_bytes_of_tokens_are_used_where_they_are_the_text() -> None:
    """With a tokenizer of transformers whose tokens are bytes: the text equals that of decoding all tokens, and the
    pieces together equal those of windows."""
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>")
    table = token_bytes(made)
    assert table is not None
    assert table[made.bos_token_id] == b""
    rng = random.Random(1)
    for _ in range(200):
        tokens = [rng.randrange(len(made)) for _ in range(rng.randrange(30))]
        stream = TextStream(made)
        pieces = [stream.feed(token) for token in tokens]
        assert "".join(pieces) + stream.finish() == made.decode(tokens, skip_special_tokens=True)
    assert token_bytes(PreTrainedTokenizerFast(tokenizer_object=metaspace())) is None
    assert token_bytes(Letters(["a"])) is None
