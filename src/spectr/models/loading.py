"""Options for loading a model: dtype, device, storage of the weights, and their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from spectr.checks import whole
from spectr.errors import ArgumentError
from spectr.models.parallel.sharding import local_device
from spectr.registry import nearest

__all__ = ["Loading", "chosen_dtype"]

_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_WEIGHTS = ("file", "float32", "int8")


@dataclass(frozen=True, slots=True)
class Loading:
    """Options for loading a model."""

    dtype: str | torch.dtype = "auto"  # dtype of the arithmetic; "auto": see `chosen_dtype`
    device: str | torch.device = "auto"  # "auto": CUDA if there is a CUDA device
    device_map: Any = None  # for accelerate, instead of `device`
    quantization_config: Any = None
    trust_remote_code: bool = False
    attn_implementation: str | None = None
    weights: str = "file"  # storage on a CPU: "file" (as in the checkpoint), "float32" or "int8"
    tensor_parallel: int = 1  # processes, started by torchrun, over which the model is sharded

    def __post_init__(self) -> None:
        if whole("tensor_parallel", self.tensor_parallel, 1) > 1 and (self.is_placed or self.weights == "int8"):
            raise ArgumentError(
                "tensor_parallel shards unquantised weights evenly over processes; give either tensor_parallel, or "
                "device_map, quantization_config or weights='int8'"
            )
        if self.weights not in _WEIGHTS:
            raise ArgumentError(f"weights must be {', '.join(_WEIGHTS[:-1])} or {_WEIGHTS[-1]}, got {self.weights!r}")
        if self.weights == "int8" and (self.is_placed or self.place.type != "cpu"):
            raise ArgumentError("weights='int8' is for models on a CPU; on a GPU give a quantization_config")
        if self._dtype not in _DTYPES:
            raise ArgumentError(f"dtype must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, got {self.dtype!r}")
        try:
            device = self.place
        except (RuntimeError, TypeError):
            raise ArgumentError(f"device must be cpu, cuda, cuda:1, … or auto, got {self.device!r}") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(f"device is {self.device!r}, and there is no CUDA device; use device='cpu' or 'auto'")
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(
                f"device must be cpu or cuda, got {self.device!r}: the noise of the race needs float64, which is not "
                f"tested on {device.type}; use device='cpu'"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Loading":
        """Return the options of a mapping; an unknown name is an error that suggests the nearest one."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise ArgumentError(f"loading takes no option {name!r}; {nearest(name, known)}")
        return cls(**options)

    @property
    def _dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_auto(self) -> bool:
        """Whether the user left the dtype open."""
        return self._dtype == "auto"

    @property
    def place(self) -> torch.device:
        """The device to load to; with tensor parallelism, that of this process."""
        default = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(default if self.device == "auto" else self.device)
        return local_device(device) if self.tensor_parallel > 1 else device

    def kind(self, config: Any) -> torch.dtype:
        """Return the dtype in which to load a model with this config."""
        return chosen_dtype(config, self.place)[0] if self._dtype == "auto" else getattr(torch, self._dtype)

    def keywords(self, config: Any) -> dict[str, Any]:
        """Return the keyword arguments for `from_pretrained`."""
        given = {
            "device_map": self.device_map,
            "quantization_config": self.quantization_config,
            "attn_implementation": self.attn_implementation,
        }
        given = {name: value for name, value in given.items() if value is not None}
        stored = self.is_placed and self._dtype == "auto"  # accelerate and quantisers choose the dtype themselves
        return {"dtype": "auto" if stored else self.kind(config), "trust_remote_code": self.trust_remote_code, **given}

    @property
    def is_placed(self) -> bool:
        """Whether transformers decides where the weights go (device_map, quantization_config)."""
        return self.device_map is not None or self.quantization_config is not None


def chosen_dtype(config: Any, device: torch.device) -> tuple[torch.dtype, str]:
    """Return the default dtype of a model and the reason: float32 on a CPU; on CUDA the checkpoint's own, or bfloat16
    if its config names none."""
    if device.type == "cpu":
        return torch.float32, "float32 is the fastest exact arithmetic on a CPU"
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(decoder=True), "dtype", None)
    if isinstance(stored, torch.dtype):
        return stored, "the checkpoint's own dtype"
    return torch.bfloat16, "the checkpoint names no dtype"
