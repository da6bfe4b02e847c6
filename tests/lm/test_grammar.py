"""With `grammar`, every text that ends by itself matches its grammar, with a random model and any tokenizer."""

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tests.grammar.test_schema import SCHEMAS
from tests.saved import save_model, small_llama, tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import spectr
from spectr import Grammar
from spectr.errors import ArgumentError, MismatchError, MissingExtraError
from spectr.lm import LM

ASK = "tides rise and fall"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def lm(folder: Path) -> LM:
    return spectr.load(str(folder), "early_exit")


def fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama 2's, with a mark for spaces and a token for each byte."""
    special = ["<unk>", "<s>", "</s>"]
    signs = ["▁", *'{}[]":,.-+0123456789aeinrstulfé\n', "▁{", '":', '",', '▁"', "tr", "ue", "▁the", "nu", "ll"]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *signs]
    merges = [("▁", "{"), ('"', ":"), ('"', ","), ("▁", '"'), ("t", "r"), ("u", "e"), ("n", "u"), ("l", "l")]
    core = Tokenizer(
        models.BPE(
            {name: at for at, name in enumerate(names)}, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>", bos_token="<s>")


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> LM:
    """A model with byte-fallback tokens and padded logits."""
    words = fallback()
    net = small_llama(7, 320)
    net.generation_config.eos_token_id = net.config.eos_token_id = 2
    return spectr.load(str(save_model(net, tmp_path_factory.mktemp("fallback"), words)), "none")


@pytest.fixture(scope="module")
def padded(small: Path) -> LM:
    """A model with logits for more tokens than its tokenizer has."""
    return spectr.load(str(small), "lookup")


def check_texts(lm: LM, schemas: list[Any], seeds: int, temperature: float) -> int:
    """Return how many texts ended by themselves; check that these are valid and that no text has a forbidden token."""
    asked = [(schema, Grammar.json_schema(schema)) for schema in schemas for _ in range(seeds)]
    outs = lm.generate(
        [ASK] * len(asked), 90, seed=4, raw=True, temperature=temperature, grammar=[grammar for _, grammar in asked]
    )
    special = set(lm.tokenizer.all_special_ids) - lm.engine.stops
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for (schema, _), out in zip(asked, outs, strict=True):
        inside = out.tokens[:-1] if out.finish_reason == "stop" else out.tokens
        assert not special.intersection(out.tokens)
        assert not lm.engine.stops.intersection(inside)
        assert max(out.tokens) < len(lm.tokenizer)
        if out.finish_reason == "stop":
            assert "\ufffd" not in out.text
            value = json.loads(out.text)
            assert jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value), out.text
    return sum(out.finish_reason == "stop" for out in outs)


@pytest.mark.parametrize(
    "name", ["lm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("padded", "byte_fallback"))]
)
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_json_that_ends_by_itself_is_valid(name: str, temperature: float, request: pytest.FixtureRequest) -> None:
    """All JSON texts of a random model that end by themselves are valid under their schema."""
    schemas = [schema for schema, _, _ in SCHEMAS.values()]
    assert check_texts(request.getfixturevalue(name), schemas, 2, temperature) > len(schemas) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "padded", "byte_fallback"])
@pytest.mark.parametrize("temperature", [2.0, 1.0, 0.3])
def test_much_json_that_ends_by_itself_is_valid(name: str, temperature: float, request: pytest.FixtureRequest) -> None:
    schemas = [schema for schema, _, _ in SCHEMAS.values()]
    check_texts(request.getfixturevalue(name), schemas, 12, temperature)


@pytest.mark.parametrize("name", ["lm", "padded", "byte_fallback"])
def test_regexes_choices_and_grammars_are_matched(name: str, request: pytest.FixtureRequest) -> None:
    """Texts that end by themselves match their regex, choice or EBNF grammar."""
    lm = request.getfixturevalue(name)
    pattern, options = r"[a-e]{2,4}(-[é1-3]+)? t", ["one", "two, three", "é"]
    brackets = 'root ::= "[" (root root?)? "]"'
    outs = lm.generate(
        [ASK] * 30, 60, seed=2, raw=True,
        grammar=[Grammar.regex(pattern), Grammar.choice(options), Grammar.ebnf(brackets)] * 10,
    )  # fmt: skip
    done = [(at % 3, out.text) for at, out in enumerate(outs) if out.finish_reason == "stop"]
    assert len(done) > 20
    assert all(re.fullmatch(pattern, text) for kind, text in done if kind == 0)
    assert {text for kind, text in done if kind == 1} <= set(options)
    assert all(text.count("[") == text.count("]") > 0 for kind, text in done if kind == 2)


def test_a_text_that_is_cut(lm: LM) -> None:
    """A text that is cut by its limit or by a stop string is a prefix of a text that the grammar admits."""
    whole = lm.generate(ASK, 90, seed=1, grammar=Grammar.json_schema(PERSON))
    assert whole.finish_reason == "stop"
    cut = lm.generate(ASK, 7, seed=1, grammar=Grammar.json_schema(PERSON))
    assert (cut.finish_reason, cut.tokens) == ("length", whole.tokens[:7])
    stopped = lm.generate(ASK, 90, seed=1, stop='"age', grammar=Grammar.json_schema(PERSON))
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index('"age')]
    resumed = lm.generate(ASK, 90, seed=1, generated=whole.tokens[:7], grammar=Grammar.json_schema(PERSON))
    assert resumed.tokens == whole.tokens[7:]


@pytest.mark.parametrize(
    "drafter", ["none", "lookup", *(pytest.param(name, marks=pytest.mark.slow) for name in ("early_exit", "random"))]
)
def test_the_text_does_not_depend_on_the_drafter(folder: Path, lm: LM, drafter: str) -> None:
    grammar = Grammar.json_schema(PERSON)
    other = spectr.load(str(folder), drafter)
    for temperature in (0, 0.8):
        want = lm.generate(ASK, 60, seed=3, temperature=temperature, grammar=grammar)
        assert other.generate(ASK, 60, seed=3, temperature=temperature, grammar=grammar).tokens == want.tokens


def test_all_ways_to_ask(lm: LM) -> None:
    """A grammar gives the same text with generate, stream, submit, await and chat, compiled or not."""
    grammar = Grammar.json_schema(PERSON)
    want = lm.generate(ASK, 60, seed=3, grammar=grammar)
    assert "".join(lm.stream(ASK, 60, seed=3, grammar=grammar)) == want.text
    handles = [lm.submit(ASK, 60, seed=3, grammar=grammar), lm.submit(ASK, 60, seed=3)]
    assert handles[0].result().tokens == want.tokens
    assert handles[1].result().tokens == lm.generate(ASK, 60, seed=3).tokens
    compiled = lm.compile_grammar(grammar)
    assert lm.generate(ASK, 60, seed=3, grammar=compiled).tokens == want.tokens

    async def awaited() -> str:
        return (await lm.submit(ASK, 60, seed=3, grammar=grammar)).text

    assert asyncio.run(awaited()) == want.text
    said = lm.chat().say(ASK, 60, seed=5, grammar=Grammar.choice(["one", "two"])).result()
    assert said.text in ("one", "two")
    free, bound = lm.generate([ASK, ASK], 60, seed=[3, 3], grammar=[None, grammar])
    assert (free.tokens, bound.tokens) == (lm.generate(ASK, 60, seed=3).tokens, want.tokens)


def test_logprobs_are_the_models_own(lm: LM) -> None:
    """Log-probabilities are those of the model before the grammar and the policy are applied."""
    out = lm.generate(ASK, 20, seed=3, logprobs=4, grammar=Grammar.choice(["two"]))
    assert out.logprobs is not None
    assert all(logprob < -0.1 for logprob in out.logprobs)


def test_compiled_from_other_threads(lm: LM) -> None:
    """Threads that compile the same grammar while a text is generated share one compiled grammar."""
    found: list[Any] = []
    grammar = Grammar.json_schema({"enum": ["from", "many", "threads"]})
    threads = [threading.Thread(target=lambda: found.append(lm.compile_grammar(grammar))) for _ in range(4)]
    running = lm.submit(ASK, 200, seed=1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    running.cancel()


def test_bad_grammars_are_refused(lm: LM, padded: LM) -> None:
    """Values that are no grammar, invalid grammars and grammars of another model are refused with a reason."""
    for bad in ({"type": "object"}, "root", 3, True):
        with pytest.raises(ArgumentError, match=r"must be a Grammar, such as Grammar.json_schema\(…\)"):
            lm.generate(ASK, grammar=bad)
    with pytest.raises(ArgumentError, match='Rule "nothing" is not defined'):
        lm.generate(ASK, grammar=Grammar.ebnf("root ::= nothing"))
    with pytest.raises(MismatchError, match="must be of this model"):
        lm.generate(ASK, grammar=padded.compile_grammar(Grammar.json()))
    with pytest.raises(ArgumentError, match="must have one value for each of 2 prompts"):
        lm.generate([ASK, ASK], grammar=[Grammar.json()])
    bare = spectr.load(lm.opened.target.model, "none")
    with pytest.raises(ArgumentError, match="needs a tokenizer"):
        bare.generate([5, 6], grammar=Grammar.json())


def test_tokens_that_do_not_spell_texts() -> None:
    """A tokenizer whose tokens do not spell the text is refused, such as WordPiece with its marks inside of words."""
    names = ["[UNK]", "</s>", "qz", "##xv", "##b", "true", "null", "b", "c", *'{}[]":,.0123456789']
    core = Tokenizer(models.WordPiece({name: at for at, name in enumerate(names)}, unk_token="[UNK]"))
    core.pre_tokenizer, core.normalizer = pre_tokenizers.BertPreTokenizer(), normalizers.Lowercase()
    words = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="[UNK]")
    odd = spectr.load(small_llama(3, 64).eval(), "none", tokenizer=words)
    with pytest.raises(ArgumentError, match="whose tokens spell the text"):
        odd.generate([5, 6], 4, grammar=Grammar.json())


def test_tokens_that_are_added() -> None:
    """Special added tokens are not text; other added tokens are spelled literally."""
    words = tokenizer()
    words.add_tokens(["<tool call>"])
    words.add_special_tokens({"additional_special_tokens": ["<secret>"]})
    net = small_llama(3, 330).eval()
    net.generation_config.eos_token_id = 1
    lm = spectr.load(net, "none", tokenizer=words)
    pieces = lm.grammars.vocabulary.pieces
    added, secret = words.convert_tokens_to_ids(["<tool call>", "<secret>"])
    assert (pieces[added], pieces[secret]) == (b"<tool call>", b"")
    assert set(pieces[322:]) == {b""}
    outs = lm.generate([ASK] * 20, 12, raw=True, seed=1, grammar=Grammar.ebnf('root ::= "<" [a-z ]+ ">"'))
    assert not any(secret in out.tokens for out in outs)
    favoured = lm.generate(ASK, 3, raw=True, seed=1, logit_bias={added: 50.0}, grammar=Grammar.choice(["<tool call>"]))
    assert favoured.tokens == [added, 1]


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without xgrammar a grammar is refused with advice how to install it; other requests work."""
    lm = spectr.load(str(folder), "none")
    monkeypatch.setitem(__import__("sys").modules, "xgrammar", None)
    with pytest.raises(
        MissingExtraError, match=r"structured output needs xgrammar.*pip install 'spectr-lm\[grammar\]'"
    ):
        lm.generate(ASK, grammar=Grammar.json())
    assert lm.generate(ASK, 3).tokens


def test_a_grammar_beside_other_settings(lm: LM) -> None:
    """Penalties, biases and minimum lengths act on the tokens that the grammar allows."""
    grammar = Grammar.regex("[ab]{1,30}")
    long = lm.generate(ASK, 40, seed=1, grammar=grammar, min_new_tokens=12)
    assert len(long.tokens) >= 12
    only = lm.generate(ASK, 40, seed=1, grammar=grammar, bad_words=["a"])
    assert set(only.text) == {"b"}
    with torch.no_grad(), pytest.raises(ArgumentError, match="grammar must leave at least one token"):
        lm.generate(ASK, 40, seed=1, grammar=Grammar.choice(["a"]), min_new_tokens=9)
