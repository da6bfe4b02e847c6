"""Kernels run on the GPU where there is one, else through Triton's interpreter on the CPU."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported
