"""With packed weights on a CPU, samples have the distribution of the model in the file.

The distribution is computed by transformers in float64 with the unpacked weights, an independent implementation of
every layer. With the race the text equals plain decoding, since the logits of a tree are bitwise those of plain
decoding.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.chance import chi_square
from tests.gguf_files import write_gguf
from torch import Tensor
from transformers import AutoModelForCausalLM

import spectr
from spectr.models.cpu import CpuTarget

PROMPT = [0, 3, 9, 4]
SAMPLES, TEMPERATURE = 2500, 0.8
FALSE_ALARMS = 1e-5
END = 1  # ends a text
QUICK = ["race", "kseq"]
MORE = [
    "path_block", "optimal", "hybrid", "kseq_plus", "recursive", "recursive_wor", "speculative", "block", "traversal",
    "match",
]  # fmt: skip
RULES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]


@pytest.fixture(scope="module", params=["Q4_1", pytest.param("Q8_0", marks=pytest.mark.slow)])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("file") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def law(file: Path) -> Tensor:
    """Return the probability (V, V) of every first and second token; a text that ends at once repeats its first
    token."""
    net = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float64).eval()

    def after(texts: list[list[int]]) -> Tensor:
        with torch.no_grad():
            return (net(torch.tensor(texts)).logits[:, -1] / TEMPERATURE).softmax(-1)

    first = after([PROMPT])[0]
    second = after([[*PROMPT, token] for token in range(len(first))])
    second[END] = torch.eye(len(first))[END]
    return first[:, None] * second


def _counts(lm: Any, size: int) -> Tensor:
    """Count how often each pair of tokens was generated."""
    found = torch.zeros(size, size)
    for text in lm.generate([PROMPT] * SAMPLES, 2, seeds=range(SAMPLES), temperature=TEMPERATURE):
        first, *rest = text.tokens
        found[first, rest[0] if rest else END] += 1
    return found


@pytest.mark.parametrize("name", RULES)
def test_every_rule_samples_the_model_of_the_file(name: str, file: Path, law: Tensor) -> None:
    lm = spectr.load(str(file), "early_exit", rule=name, nodes=4)
    assert isinstance(lm.engine.target, CpuTarget)
    assert chi_square(_counts(lm, len(law)).flatten(), SAMPLES * law.flatten(), FALSE_ALARMS) < 1


@pytest.mark.parametrize("drafter", ["early_exit", "lookup", "random"])
def test_the_race_gives_the_text_of_plain_decoding(drafter: str, file: Path) -> None:
    plain, drafted = (spectr.load(str(file), name) for name in ("none", drafter))
    prompts = [[0, *range(2, 2 + count)] for count in (1, 3, 8, 12)]
    for temperature in (0.0, 0.7, 1.3):
        asked = {"max_new_tokens": 24, "seeds": range(len(prompts)), "temperature": temperature}
        texts = [[out.tokens for out in lm.generate(prompts, **asked)] for lm in (plain, drafted)]
        assert texts[0] == texts[1]
