"""The processor that kernels are compiled for."""

import os
import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

__all__ = ["VARIABLE", "Processor", "host"]

VARIABLE = "SPECTR_CPU_NAME"
"""Environment variable with the LLVM name of a processor to compile for instead of the machine's own."""


@dataclass(frozen=True, slots=True)
class Processor:
    """LLVM's name of a processor, and the features that kernels depend on."""

    name: str
    features: str

    @property
    def machine(self) -> str:
        """The instruction set."""
        return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())

    def _has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def lanes(self) -> int:
        """The number of floats in a vector."""
        return 16 if self._has("avx512f") else 8

    @property
    def has_halves(self) -> bool:
        """Whether it converts half-precision numbers in hardware."""
        return self._has("f16c") or self._has("neon")

    @property
    def has_fma(self) -> bool:
        """Whether it has fused multiply-add."""
        return self._has("fma") or self._has("neon")


@cache
def host() -> Processor:
    """Return the processor of this machine, or the one that the environment names."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if name := os.environ.get(VARIABLE):
        return Processor(name, "")
    return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
