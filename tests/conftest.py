"""Settings of all tests: one thread, the same random numbers on every machine, and no changes of global state.

Kernels run on the GPU where there is one, else through Triton's interpreter, which must be chosen before anything
imports Triton.
"""

import os
import shutil
from collections.abc import Iterator
from typing import Any

# Inherited by the commands that tests start: with more threads than cores, processes wait for each other.
# SPECTR_TEST_THREADS=2 runs everything on two threads.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ.get("SPECTR_TEST_THREADS", "1")
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from hypothesis import settings
from tests.gpu import set_sync_debug_mode

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


_LONG_PAGES = {
    "audit.md", "benchmarks.md", "drafters.md", "generation.md", "new_drafter.md", "performance.md", "planner.md",
    "playground.md", "structured.md", "tutorial.md",
}  # fmt: skip
"""Their examples load the default model, or train, and take ten seconds and more each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a GPU, and mark the examples of some pages as slow."""
    for item in items:
        if item.path.name in _LONG_PAGES or item.name == "spectr.audit.runs.audit_exact":
            item.add_marker(pytest.mark.slow)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _modes() -> dict[str, Any]:
    """Return the modes of torch that apply to the whole process."""
    return {
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "sync debug mode": torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0,
    }


def _set_modes(modes: dict[str, Any]) -> None:
    torch.set_num_threads(modes["threads"])
    torch.set_default_dtype(modes["default dtype"])
    torch.set_grad_enabled(modes["gradients"])
    torch.set_deterministic_debug_mode(modes["deterministic algorithms"])
    torch.set_float32_matmul_precision(modes["matmul precision"])
    if torch.cuda.is_initialized():
        set_sync_debug_mode(modes["sync debug mode"])


@pytest.fixture(autouse=True)
def _a_process_as_found() -> Iterator[None]:
    """Seed torch's global generator, so that no test depends on the one before it; restore modes and environment, so
    that a failing test does not affect the next ones; and fail a test that changed a mode."""
    modes, environment = _modes(), _environment()
    torch.manual_seed(0)
    yield
    left = {name: value for name, value in _modes().items() if value != modes[name]}
    if left:
        _set_modes(modes)
    if _environment() != environment:
        for name in _environment().keys() - environment:
            del os.environ[name]
        os.environ.update(environment)
    assert not left, f"this test changed {left} for the whole process; it must put back what it changes"
