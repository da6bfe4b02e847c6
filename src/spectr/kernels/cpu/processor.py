"""The processor that kernels are compiled for."""

import os
import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

__all__ = ["VARIABLE", "Processor", "host"]

VARIABLE = "SPECTR_CPU_NAME"
"""Environment variable: compile for this processor, as LLVM names it, instead of the one that is there."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What LLVM calls it, and what kernels want to know of it."""

    name: str
    features: str

    @property
    def machine(self) -> str:
        """The family of its instructions."""
        return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())

    def _has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def lanes(self) -> int:
        """Floats in a vector."""
        return 16 if self._has("avx512f") else 8

    @property
    def has_halves(self) -> bool:
        """Whether it converts half-precision numbers."""
        return self._has("f16c") or self._has("neon")

    @property
    def has_fma(self) -> bool:
        """Whether a product and a sum are one instruction."""
        return self._has("fma") or self._has("neon")


@cache
def host() -> Processor:
    """The one this process runs on, or the one that the environment names."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if name := os.environ.get(VARIABLE):
        return Processor(name, "")
    return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
