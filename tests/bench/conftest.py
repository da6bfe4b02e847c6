"""Small models with tokenizers of their own, in folders as a user has them: a target, a drafter close to it, and an
encoder-decoder model. Their weights are drawn from fixed seeds, so counts can be held to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from spectr.bench.grid import Grid
from spectr.bench.run import Bench, Progress, run

TEXTS = ["the harbour stays open through the winter", "one two three four five six seven eight nine ten"]
TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SIZE = 300


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    made = byte_tokenizer(SIZE, TEXTS, ["<pad>", "</s>", "<user>", "<assistant>", "<system>"])
    made.chat_template = template
    return made


def drawn(net: Any, seed: int, spread: float) -> Any:
    """Draw weights that give distributions that are neither flat nor point masses."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.copy_(spread * torch.randn(weights.shape, generator=generator))
    return net.eval()


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=768, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return drawn(LlamaForCausalLM(config), 7, 0.3)


def saved(net: Any, words: PreTrainedTokenizerFast, folder: Path) -> str:
    net.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(llama(), tokenizer(TEMPLATE), tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="session")
def near(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the target's weights with some noise, as a useful drafter."""
    net, generator = llama(), torch.Generator().manual_seed(8)
    with torch.no_grad():
        for weights in net.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=generator)
    return saved(net, tokenizer(TEMPLATE), tmp_path_factory.mktemp("models") / "near")


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = T5Config(
        vocab_size=SIZE, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    net = drawn(T5ForConditionalGeneration(config), 9, 0.3)
    return saved(net, tokenizer(None), tmp_path_factory.mktemp("models") / "translator")


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(target: str, near: str, tmp_path: Path) -> Measure:
    """Run a small benchmark; keywords are those of the grid and of the bench."""

    def measured(**given: Any) -> dict[str, Any]:
        grid = {"tasks": ("dialogue", "continuation"), "prompts": 1, "tokens": 8}
        names = Grid.__slots__
        grid |= {name: value for name, value in given.items() if name in names}
        rest = {name: value for name, value in given.items() if name not in names}
        made = {"target": target, "out": tmp_path / "bench.json", "drafter": near, "command": "spectr bench run"}
        progress = rest.pop("progress", Progress())
        return run(Bench(**{**made, **rest}, grid=Grid(**grid)), progress)  # type: ignore[arg-type]

    return measured
