"""Describes the machine of a measurement: hardware, versions, load and memory."""

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
    """Return the value of the first line `name: value`."""
    try:
        match = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None


def hardware(device: torch.device) -> dict[str, Any]:
    """Return the processor, its cores and used threads, memory, and the GPU if it is used."""
    described: dict[str, Any] = {
        "cpu": _line(_CPUINFO, "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "memory": memory_of_the_machine("MemTotal"),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        described["gpu"] = {"name": about.name, "memory": about.total_memory, "cuda": torch.version.cuda}
    return described


def versions() -> dict[str, str | None]:
    """Return the versions of Python, the system, and every package that computes."""
    packages = {
        name: installed(name)
        for name in ("spectr", "torch", "transformers", "numpy", "triton", "llvmlite", "xllamacpp")
    }
    return {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}", **packages}


def load() -> float | None:
    """Return the load average of the last minute, which shows in the results whether the machine was busy."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@contextmanager
def watching_memory(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns the peak memory in bytes since the context was opened.

    On a GPU it is that of tensors, on a CPU that of the process, including all weights; None if it is unknown."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
        return
    try:
        _FORGET.write_text("5")  # resets the kernel's peak
    except OSError:
        yield lambda: None
        return

    def peak() -> int | None:
        found = _line(_STATUS, "VmHWM")
        return None if found is None else 1024 * int(found.split()[0])

    yield peak
