"""What makes a loaded model faster without changing what it computes, and the way back for fair comparison."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from spectr.models.attention import group_heads
from spectr.models.head import FeatureHead
from spectr.models.int8 import int8_products
from spectr.models.internals import attention_name

__all__ = ["stock_kernels", "tune", "tune_head"]


def tune(model: PreTrainedModel) -> None:
    """Attention without copies of grouped heads."""
    group_heads(model)


def tune_head(head: FeatureHead) -> None:
    """The same for a head that was trained, which may round: on a GPU its weights become int8."""
    head.shorten()
    tune(head)
    int8_products(head)
    head.round_output()


@contextmanager
def stock_kernels(model: PreTrainedModel) -> Iterator[None]:
    """The model as transformers runs it."""
    if attention_name(model.config) == "spectr_grouped":
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        tune(model)
