"""Small random models in GGUF files, which tests share."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

__all__ = ["INNER", "LAYERS", "WIDTH", "write_gguf"]

WIDTH, INNER, HEADS, KV, LAYERS = 64, 96, 4, 2, 2
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def _add_byte_level(writer: gguf.GGUFWriter) -> list[str]:
    """Add a tokenizer of bytes with merges, as GPT-2's. Its tokens are two control tokens, the letters, a few words and
    one that users added."""
    words = ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzĠ", "th", "the", "in", "think"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_types([3, 3, *[1] * (len(words) - 3), 4])
    writer.add_token_merges(["t h", "th e", "i n"])
    return words


def _add_pieces(writer: gguf.GGUFWriter) -> list[str]:
    """Add a tokenizer of sentencepiece, as Llama 2's and Gemma's, with scores in place of merges and a token for each
    byte."""
    words = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefghijklmnopqrstuvwxyz▁"]
    words += ["th", "the", "▁the", "in", "  ", "think"]
    writer.add_tokenizer_model("llama")
    writer.add_token_types([3, 3, 2, *[6] * 256, *[1] * (len(words) - 260), 4])
    writer.add_token_scores([-float(number) for number in range(len(words))])
    writer.add_unk_token_id(2)
    return words


def write_gguf(
    path: Path, kind: str = "Q8_0", architecture: str = "llama", pieces: bool = False, **settings: Any
) -> Path:
    """Write a small random model to a GGUF file and return its path; matrices have the kind, the embedding is Q8_0. Its
    tokenizer is one of bytes, or of pieces."""
    generator, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    for add, value in (
        (writer.add_block_count, LAYERS), (writer.add_context_length, 128), (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, INNER), (writer.add_head_count, HEADS), (writer.add_head_count_kv, KV),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4),
        (writer.add_key_length, WIDTH // HEADS),
    ):  # fmt: skip
        add(value)
    words = _add_pieces(writer) if pieces else _add_byte_level(writer)
    writer.add_token_list(words)
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
