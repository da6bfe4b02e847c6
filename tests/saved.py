"""Small models with tokenizers that tests save to folders, as a user would have them."""

from pathlib import Path

import torch
from tests.tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["TEMPLATE", "TEXTS", "TOOL_TEMPLATE", "save_model", "small_llama", "tokenizer"]

TEXTS = [
    "the quick brown fox jumps over the lazy dog", "tides rise and fall with the moon — twice a day",
    "naïve café ☕ 漢字 and emoji 🙂 are text too", "one two three four five six seven eight nine ten",
]  # fmt: skip
TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<system>{{ tools | map(attribute='function') | list | tojson }}</s>{% endif %}"
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% for call in turn.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' if loop.last else '}\n</tool_call>\n' }}{% endfor %}"
    "</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A chat template that shows functions to the model, and writes calls as many models do."""


def tokenizer(texts: list[str] = TEXTS, template: str | None = TOOL_TEMPLATE) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 320 tokens, with a chat template."""
    made = byte_tokenizer(320, texts, ["<pad>", "</s>", "<user>", "<assistant>", "<system>"])
    made.chat_template = template
    return made


def save_model(net: torch.nn.Module, folder: Path, words: PreTrainedTokenizerFast) -> Path:
    """Draw random weights, and save a model with its tokenizer."""
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.15)
    net.save_pretrained(folder)  # type: ignore[operator]
    words.save_pretrained(folder)
    return folder


def small_llama(seed: int, size: int) -> LlamaForCausalLM:
    """A Llama model of `size` tokens that ends texts with token 1."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)
