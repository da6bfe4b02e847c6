"""What figures were measured on, and with: hardware, versions, memory. Facts only."""

import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from spectr.models.memory import memory_of_the_machine
from spectr.version import installed

__all__ = ["hardware", "load", "versions", "watching_memory"]

_CPUINFO = Path("/proc/cpuinfo")
_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _line(path: Path, name: str) -> str | None:
    """The value of the first line `name: value`."""
    try:
        found = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None


def hardware(device: torch.device) -> dict[str, Any]:
    """The processor, its cores and threads in use, memory, and the GPU where it is used."""
    found: dict[str, Any] = {
        "cpu": _line(_CPUINFO, "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "memory": memory_of_the_machine("MemTotal"),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found["gpu"] = {"name": about.name, "memory": about.total_memory, "cuda": torch.version.cuda}
    return found


def versions() -> dict[str, str | None]:
    """The versions of Python, the system, and every package that computes."""
    packages = {
        name: installed(name)
        for name in ("spectr", "torch", "transformers", "numpy", "triton", "llvmlite", "xllamacpp")
    }
    return {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}", **packages}


def load() -> float | None:
    """How many processes wanted a core in the last minute, so that a busy machine shows in the results."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@contextmanager
def watching_memory(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """What tells the most bytes held since the context was opened: on a GPU by tensors, on a CPU by the process, all
    weights included; None where the system does not say."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
        return
    try:
        _FORGET.write_text("5")  # the kernel forgets the highest mark so far
    except OSError:
        yield lambda: None
        return

    def peak() -> int | None:
        found = _line(_STATUS, "VmHWM")
        return None if found is None else 1024 * int(found.split()[0])

    yield peak
