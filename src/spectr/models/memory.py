"""Free memory, and the bytes that a cache or a folder of weights needs, so that requests are refused before they
fail."""

import json
import re
from pathlib import Path
from typing import Any

import torch

from spectr.errors import NoRoomError

__all__ = ["available", "format_bytes", "kv_bytes", "memory_of_the_machine", "require_memory", "weights_on_disk"]

_MEMINFO = Path("/proc/meminfo")
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}


def available(device: torch.device) -> int | None:
    """Return the free bytes of a device, or None if they are not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + _cached(device)
    return memory_of_the_machine("MemAvailable") if device.type == "cpu" else None


def memory_of_the_machine(name: str) -> int | None:
    """Return the bytes that /proc/meminfo gives for a name such as MemTotal, or None without such an entry."""
    if not _MEMINFO.exists():
        return None
    found = re.search(rf"^{name}:\s*(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else None


def _cached(device: torch.device) -> int:
    """Return the bytes of freed tensors that torch's allocator keeps; the driver counts them as used."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def format_bytes(size: int) -> str:
    """Return a size in GiB or MiB.

    >>> format_bytes(3 << 30), format_bytes(5 << 20)
    ('3.0 GiB', '5.0 MiB')
    """
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def require_memory(size: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise if `what`, of `size` bytes, does not fit into the free memory of a device."""
    free = available(device)
    if free is not None and size > free:
        raise NoRoomError(f"{what} takes {format_bytes(size)} and {device} has {format_bytes(free)} free; {remedy}")


def _first(config: Any, *names: str) -> int | None:
    """Return the first of these attributes that a config sets; families name the same width differently."""
    return next((int(v) for v in (getattr(config, name, None) for name in names) if v), None)


def _width(config: Any) -> int:
    """Return how many values one layer caches per token: keys and values, or the latent of both (MLA)."""
    if latent := _first(config, "kv_lora_rank"):
        return latent + int(config.qk_rope_head_dim)
    heads = _first(config, "decoder_attention_heads", "num_attention_heads", "num_heads", "n_head") or 1
    head = _first(config, "head_dim", "d_kv") or (_first(config, "hidden_size", "d_model", "n_embd") or 0) // heads
    return 2 * head * (_first(config, "num_key_value_heads") or heads)


def kv_bytes(config: Any, rows: int, slots: int, dtype: torch.dtype) -> int:
    """Return the bytes of a cache for `rows` rows of `slots` tokens, from the widths in a decoder's config."""
    layers = _first(config, "num_decoder_layers", "decoder_layers", "num_hidden_layers", "n_layer") or 1
    return rows * slots * layers * _width(config) * dtype.itemsize


def _header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: 8 bytes of length, then JSON of that length."""
    with path.open("rb") as file:
        found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found.pop("__metadata__", None)
    return found


def weights_on_disk(folder: Path, dtype: torch.dtype | None) -> int:
    """Return the bytes of a folder's safetensors once loaded as `dtype` (None: as stored); 0 if there are none."""
    total = 0
    for path in folder.glob("*.safetensors"):
        for tensor in _header(path).values():
            size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
            bits = _BITS.get(tensor["dtype"])
            floating = "F" in tensor["dtype"] and bits is not None
            total += size if dtype is None or not floating else size * 8 * dtype.itemsize // int(bits or 8)
    return total
