"""What some model families do to logits after their output layer."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["scale_and_cap"]


def scale_and_cap(logits: Tensor, config: Any) -> Tensor:
    """Scale and cap logits as some families do after their output layer."""
    if scale := getattr(config, "logits_scaling", None):
        logits = logits / scale
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits
