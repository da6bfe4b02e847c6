"""Small tensors everywhere: one thread per worker, and the same draws of hypothesis on every machine.

Kernels run on the GPU where there is one, else through Triton's interpreter, which must be chosen before anything
imports Triton.
"""

import os
import shutil

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` run where there is one."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
