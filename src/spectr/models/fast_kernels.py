"""Faster kernels for loaded models that compute the same, and a way to switch them off for fair comparisons."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from spectr.models.attention import group_heads, has_grouped_heads
from spectr.models.head import FeatureHead
from spectr.models.int8 import int8_products

__all__ = ["speed_up_head", "stock_kernels"]


def speed_up_head(head: FeatureHead) -> None:
    """Speed up a trained head. A drafter may round, so on a GPU its weights become int8."""
    head.shorten()
    group_heads(head)
    int8_products(head)
    head.round_output()


@contextmanager
def stock_kernels(model: PreTrainedModel) -> Iterator[None]:
    """Run the model with transformers' own kernels while the context is open."""
    if has_grouped_heads(model):
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        group_heads(model)
