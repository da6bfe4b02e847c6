"""GGUF files: what is in them runs as it is, and what is wrong with them is said."""

import resource
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import spectr
from spectr.errors import ArgumentError, MismatchError, SpectrError
from spectr.models.catalog import FetchError
from spectr.models.cpu import CpuTarget
from spectr.models.gguf.build import config_of, model_of
from spectr.models.gguf.reader import open_gguf
from spectr.models.hf import open_model
from spectr.models.packed import packed_bytes

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
WIDTH, INNER, HEADS, KV, LAYERS = 64, 96, 4, 2, 2
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def vocabulary() -> list[str]:
    """Letters as bytes, a few words, and two control tokens."""
    return ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzĠ", "th", "the", "in"]


def write(path: Path, kind: str = "Q8_0", architecture: str = "llama", **settings: Any) -> Path:
    """A small random model in a file; matrices are of the kind, the embedding is Q8_0."""
    generator, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    words = vocabulary()
    for add, value in (
        (writer.add_block_count, LAYERS), (writer.add_context_length, 128), (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, INNER), (writer.add_head_count, HEADS), (writer.add_head_count_kv, KV),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4),
        (writer.add_key_length, WIDTH // HEADS),
    ):  # fmt: skip
        add(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, *[1] * (len(words) - 2)])
    writer.add_token_merges(["t h", "th e", "i n"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    for name, value in settings.items():
        writer.kv_data[0].pop(name, None)
        writer.add_uint32(name, value)

    def matrix(name: str, rows: int, columns: int, kind: str = kind) -> None:
        number, weights = gguf.GGMLQuantizationType[kind], 0.2 * generator.standard_normal((rows, columns), np.float32)
        writer.add_tensor(name, gguf.quants.quantize(weights, number), raw_dtype=number)

    def vector(name: str, size: int, middle: float = 1.0) -> None:
        writer.add_tensor(name, (middle + 0.1 * generator.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", len(words), WIDTH, "Q8_0")
    vector("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        part = f"blk.{layer}"
        sizes = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH),
                 "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
                 "ffn_down": (WIDTH, INNER)}  # fmt: skip
        for name, (rows, columns) in sizes.items():
            matrix(f"{part}.{name}.weight", rows, columns)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"{part}.{name}.bias", rows, 0.0)
        vector(f"{part}.attn_norm.weight", WIDTH)
        vector(f"{part}.ffn_norm.weight", WIDTH)
        for name in ("attn_q_norm", "attn_k_norm") if architecture == "qwen3" else ():
            vector(f"{part}.{name}.weight", WIDTH // HEADS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    """The same logits as transformers' own reading of the file, unpacked to float32."""
    path = write(tmp_path / "tiny.gguf", kind, architecture)
    opened = open_model(str(path), device="cpu")
    assert isinstance(opened.target, CpuTarget)
    config = config_of(open_gguf(path))  # transformers itself takes heads of Qwen3 to be 128 wide
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32, config=config)
    text = [5, 9, 2, 11, 30, 7, 7, 4]
    with torch.no_grad():
        right = reference(torch.tensor([text])).logits[0, -1]
    assert (logits(opened, text) - right).abs().max() < 1e-5 * right.abs().max()
    assert opened.stops == {1}
    assert opened.target.context == 128


def test_the_file_gives_text_and_chat(tmp_path: Path) -> None:
    """Tokenizer, chat template and generation come from the file, under every way to store its weights."""
    path = write(tmp_path / "tiny.gguf", "Q4_1")
    texts = {}
    for weights in ("file", "float32", "int8"):
        lm = spectr.load(path, "none", weights=weights, device="cpu")
        assert lm.tokenizer.decode(lm.encode("the thin", raw=True)) == "the thin"
        assert lm.encode([{"role": "user", "content": "hi"}]) != lm.encode("hi", raw=True)
        texts[weights] = lm.generate("the", 24, seed=1).tokens
    assert texts["file"] == spectr.load(path, "lookup", device="cpu").generate("the", 24, seed=1).tokens
    assert len(texts["int8"]) > 0


def test_weights_take_the_room_of_the_file(tmp_path: Path) -> None:
    file = open_gguf(write(tmp_path / "tiny.gguf", "Q4_1"))
    taken = packed_bytes(model_of(file))
    assert set(taken) == {"Q4_1", "Q8_0"}
    assert sum(taken.values()) <= 1.15 * file.bytes


def test_other_arithmetic_unpacks_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", "Q5_1")
    said: list[str] = []
    half = open_model(str(path), said.append, dtype="bfloat16", device="cpu")
    assert half.target.model.dtype == torch.bfloat16
    assert said == ["tiny.gguf: its Q5_1, Q8_0 weights are unpacked to bfloat16 on cpu"]
    text = [5, 9, 2, 11]
    exact = logits(open_model(str(path), device="cpu"), text)
    assert (logits(half, text).float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="is a 'bert' model; GGUF files are supported for llama, qwen2, qwen3"):
        config_of(open_gguf(write(tmp_path / "a.gguf", architecture="bert")))
    with pytest.raises(MismatchError, match="mixture of experts"):
        config_of(open_gguf(write(tmp_path / "b.gguf", **{"llama.expert_count": 8})))
    with pytest.raises(MismatchError, match="rotary positions to 8 of the 16 values of a head"):
        config_of(open_gguf(write(tmp_path / "c.gguf", **{"llama.rope.dimension_count": 8})))
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


def test_foreign_and_empty_files(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"PK\x03\x04 not a model at all", b"GGUF\x01\0\0\0" + 40 * b"\xff"):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(FetchError, match="GGUF file"):
            open_gguf(path)


def test_a_thousand_broken_files(tmp_path: Path) -> None:
    """Cut anywhere, or with bytes changed where the file describes itself: an error of ours or a model, no crash, no
    memory, and nothing left behind."""
    whole = bytearray(write(tmp_path / "tiny.gguf").read_bytes())
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
    assert outcomes["opened"] > 10  # some bytes are only words
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    assert sorted(found.name for found in tmp_path.iterdir()) == ["broken.gguf", "tiny.gguf"]
