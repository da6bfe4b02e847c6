"""Small real models for the contracts: a target, and drafters that are close to it, far from it, or part of it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spectr.models.target import Target

SIZE = 12


def wide(net: PreTrainedModel, scale: float = 0.2) -> PreTrainedModel:
    """Weights wide enough for laws that are neither flat nor a point."""
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, scale)
    return net.eval()


def llama(seed: int, size: int = SIZE, layers: int = 2) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    return wide(LlamaForCausalLM(config))


@pytest.fixture(scope="session")
def net() -> PreTrainedModel:
    return llama(3, layers=3)


@pytest.fixture(scope="session")
def near(net: PreTrainedModel) -> Target:
    """The target's weights with a little noise: a drafter worth having."""
    copy = llama(3, layers=3)
    copy.load_state_dict(net.state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in copy.parameters():
            weights += 0.02 * torch.randn(weights.shape, generator=generator)
    return Target(copy)


@pytest.fixture(scope="session")
def far() -> Target:
    """Another model, with a vocabulary padded differently."""
    return Target(llama(8, SIZE + 4))
