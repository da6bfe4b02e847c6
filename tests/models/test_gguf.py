"""GGUF files give the logits that transformers computes from them; damaged files are refused with a reason."""

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.gguf_files import INNER, LAYERS, WIDTH, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

import spectr
from spectr.errors import ArgumentError, MismatchError, SpectrError
from spectr.models.catalog import FetchError, pull
from spectr.models.cpu import CpuTarget
from spectr.models.gguf.build import config_of, model_of
from spectr.models.gguf.reader import open_gguf
from spectr.models.gguf.tokenizer import tokenizer_of
from spectr.models.hf import open_model
from spectr.models.packed import packed_bytes

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def logits(opened: Any, text: list[int]) -> torch.Tensor:
    target = opened.target
    session = target.open(1, 64)
    target.read(session, [text[:-1]])
    one, zero = torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64)
    found: torch.Tensor = target.score(session, torch.tensor([text[-1:]]), one, zero)[0, 0]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_file_runs_as_transformers_reads_it(kind: str, architecture: str, tmp_path: Path) -> None:
    """The logits equal those of the file loaded by transformers, which unpacks it to float32."""
    path = write_gguf(tmp_path / "tiny.gguf", kind, architecture)
    opened = open_model(str(path), device="cpu")
    assert isinstance(opened.target, CpuTarget)
    config = config_of(open_gguf(path))  # transformers itself assumes that heads of Qwen3 are 128 wide
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32, config=config)
    text = [5, 9, 2, 11, 30, 7, 7, 4]
    with torch.no_grad():
        right = reference(torch.tensor([text])).logits[0, -1]
    assert (logits(opened, text) - right).abs().max() < 1e-5 * right.abs().max()
    assert opened.stops == {1}
    assert opened.target.context == 128


def test_the_file_gives_text_and_chat(tmp_path: Path) -> None:
    """Tokenizer and chat template are read from the file, and text is generated with every storage of its weights."""
    path = write_gguf(tmp_path / "tiny.gguf", "Q4_1")
    texts = {}
    for weights in ("file", "float32", "int8"):
        lm = spectr.load(path, "none", weights=weights, device="cpu")
        assert lm.tokenizer.decode(lm.encode("the thin", raw=True)) == "the thin"
        assert lm.encode([{"role": "user", "content": "hi"}]) != lm.encode("hi", raw=True)
        texts[weights] = lm.generate("the", 24, seed=1).tokens
    assert texts["file"] == spectr.load(path, "lookup", device="cpu").generate("the", 24, seed=1).tokens
    assert len(texts["int8"]) > 0


TEXTS = [
    "", " ", "the thin thinker", "  the  thin\n\n\tend ", "</s>the<s> <|im_start|>user\n<|im_end|>", "don't, it 's !",
    "naïve 東京 🦊 \u0301\u200b\x00", "1234567890 3.14", "def f(x):\n    return x  # 'the'\r\n", "Ġthe▁the",
]  # fmt: skip


def check_tokenizer(path: Path) -> None:
    """Check that a file's tokenizer is the one that transformers reads from it, with the ends of text that it names."""
    file = open_gguf(path)
    found = tokenizer_of(file, config_of(file))
    right = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for name in ("bos", "eos"):  # transformers 5.17 guesses them
        setattr(right, f"{name}_token", right.convert_ids_to_tokens(file.setting(f"tokenizer.ggml.{name}_token_id")))
    assert type(found) is type(right)
    assert found.backend_tokenizer.to_str() == right.backend_tokenizer.to_str()
    assert found.special_tokens_map == right.special_tokens_map
    for attribute in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "all_special_ids", "padding_side",
                      "added_tokens_decoder", "chat_template", "model_max_length", "model_input_names"):  # fmt: skip
        assert getattr(found, attribute) == getattr(right, attribute), attribute
    assert found.clean_up_tokenization_spaces is False
    for text in TEXTS:
        tokens = found(text)
        assert dict(tokens) == dict(right(text))
        assert found.encode(text, add_special_tokens=False) == right.encode(text, add_special_tokens=False)
        for options in ({}, {"skip_special_tokens": True}):
            clean = {"clean_up_tokenization_spaces": False, **options}
            assert found.decode(tokens["input_ids"], **options) == right.decode(tokens["input_ids"], **clean)
    turns = [{"role": "user", "content": "the"}]
    assert found.apply_chat_template(turns, tokenize=False) == right.apply_chat_template(turns, tokenize=False)


@pytest.mark.slow
def test_the_default_tokenizer_is_that_of_transformers() -> None:
    check_tokenizer(pull("smollm2-135m"))


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_tokenizer_is_that_of_transformers(architecture: str, pieces: bool, tmp_path: Path) -> None:
    check_tokenizer(write_gguf(tmp_path / "tiny.gguf", architecture=architecture, pieces=pieces))


OLDEST = transformers.__version__.startswith("5.17.")


@pytest.mark.skipif(OLDEST, reason="transformers 5.17 reads no tokenizer from a Gemma file")
def test_files_of_gemma_have_its_tokenizer(tmp_path: Path) -> None:
    """transformers reads no config from Gemma's files, but does from Gemma 2's, whose tokenizer is the same."""
    path = write_gguf(tmp_path / "one.gguf", architecture="gemma", pieces=True)
    right = write_gguf(tmp_path / "two.gguf", architecture="gemma2", pieces=True)
    file = open_gguf(path)
    found, expected = tokenizer_of(file, config_of(file)), AutoTokenizer.from_pretrained(tmp_path, gguf_file=right.name)
    assert type(found) is type(expected)
    assert found.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()


def test_a_tokenizer_is_read_without_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AutoTokenizer` would read the config from the file, which takes seconds. Files beside it are not read."""
    path = write_gguf(tmp_path / "tiny.gguf")
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", None)
    words = open_model(str(path), device="cpu").tokenizer
    assert words.decode(words.encode("the thin")) == "the thin"


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    file = open_gguf(write_gguf(tmp_path / "tiny.gguf"))
    bare = replace(file, path=tmp_path / "none.gguf")
    with pytest.raises(FetchError, match=r"has no tokenizer that can be read .*; give one: tokenizer=…"):
        tokenizer_of(bare, config_of(file))


def test_packed_weights_take_the_bytes_of_the_file(tmp_path: Path) -> None:
    """Packed weights take at most 15 % more memory than the file."""
    file = open_gguf(write_gguf(tmp_path / "tiny.gguf", "Q4_1"))
    taken = packed_bytes(model_of(file))
    assert set(taken) == {"Q4_1", "Q8_0"}
    assert sum(taken.values()) <= 1.15 * file.bytes


def test_other_arithmetic_unpacks_the_file(tmp_path: Path) -> None:
    """With another dtype the weights are unpacked, which is announced, and logits are close to the packed ones."""
    path = write_gguf(tmp_path / "tiny.gguf", "Q5_1")
    said: list[str] = []
    half = open_model(str(path), said.append, dtype="bfloat16", device="cpu")
    assert half.target.model.dtype == torch.bfloat16
    assert said == ["tiny.gguf: its Q5_1, Q8_0 weights are unpacked to bfloat16 on cpu"]
    text = [5, 9, 2, 11]
    exact = logits(open_model(str(path), device="cpu"), text)
    assert (logits(half, text).float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_unsupported_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="is a 'bert' model; GGUF files are supported for llama, qwen2, qwen3"):
        config_of(open_gguf(write_gguf(tmp_path / "a.gguf", architecture="bert")))
    with pytest.raises(MismatchError, match="mixture of experts"):
        config_of(open_gguf(write_gguf(tmp_path / "b.gguf", **{"llama.expert_count": 8})))
    with pytest.raises(MismatchError, match="rotary positions to 8 of the 16 values of a head"):
        config_of(open_gguf(write_gguf(tmp_path / "c.gguf", **{"llama.rope.dimension_count": 8})))
    with pytest.raises(FetchError, match=r"valid model: The hidden size \(64\) is not a multiple of the number of"):
        config_of(open_gguf(write_gguf(tmp_path / "e.gguf", **{"llama.attention.head_count": 5})))
    with pytest.raises(ArgumentError, match="weights must be file, float32 or int8, got 'int4'"):
        open_model(str(tmp_path / "a.gguf"), weights="int4")
    with pytest.raises(FetchError, match="cannot be opened as a GGUF file"):
        open_model(str(tmp_path / "none.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "d.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 110), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q3_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        FetchError, match=r"'token_embd\.weight' as Q3_K, which is not supported; take a file with F32,"
    ):
        open_gguf(tmp_path / "d.gguf")


def test_files_that_are_not_gguf_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"PK\x03\x04 not a model at all", b"GGUF\x01\0\0\0" + 40 * b"\xff"):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(FetchError, match="GGUF file"):
            open_gguf(path)


def test_damaged_files_raise_an_error_and_never_crash(tmp_path: Path) -> None:
    """A file that is truncated, or whose header is changed, gives a model or one of spectr's errors, but never a crash
    or excessive memory."""
    whole = bytearray(write_gguf(tmp_path / "tiny.gguf").read_bytes())
    head = bytes(whole).index(b"blk.1.ffn_norm.weight") + 60
    generator, path, outcomes = np.random.default_rng(1), tmp_path / "broken.gguf", {"refused": 0, "opened": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(1000):
        broken = whole.copy()
        if turn % 4 == 0:
            del broken[int(generator.integers(0, len(whole))) :]
        else:
            for at in generator.integers(0, head, generator.integers(1, 6)):
                broken[at] = generator.integers(0, 256)
        path.write_bytes(broken)
        try:
            file = open_gguf(path)
            config = config_of(file)
            if config.num_hidden_layers <= LAYERS and config.hidden_size <= WIDTH and config.intermediate_size <= INNER:
                model_of(file)
            outcomes["opened"] += 1
        except SpectrError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["opened"] > 10  # some changes affect only names
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    assert sorted(found.name for found in tmp_path.iterdir()) == ["broken.gguf", "tiny.gguf"]
