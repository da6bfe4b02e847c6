"""Reports the installed packages, the device, and the needs of a model, with advice where something is missing."""

import os
import platform
import shutil
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig

from spectr.models.catalog import CATALOG, FetchError, catalog_hint, home, locate
from spectr.models.gguf.build import config_of
from spectr.models.gguf.reader import open_gguf
from spectr.models.hf import is_gguf
from spectr.models.hub import why_not_on_hub
from spectr.models.loading import chosen_dtype
from spectr.models.memory import available, format_bytes, kv_bytes, weights_on_disk
from spectr.models.trained import shipped_targets
from spectr.version import __version__, installed

__all__ = ["examine"]

_NEEDED = {"torch": "2.11", "transformers": "5.17", "llvmlite": "0.46"}
_OPTIONAL = {
    "gguf": "tokenizers of GGUF files with older transformers: pip install 'spectr-lm[models]'",
    "accelerate": "device_map: pip install 'spectr-lm[models]'",
    "triton": "kernels on CUDA",
    "matplotlib": "figures: pip install 'spectr-lm[plot]'",
    "httpx2": "ask servers: pip install 'spectr-lm[endpoint]'",
}


def _older(found: str, least: str) -> bool:
    def parts(text: str) -> list[int]:
        return [int(word) for word in text.split("+", maxsplit=1)[0].split(".")[:2]]

    return parts(found) < parts(least)


def _in_words(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _place() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _device() -> dict[str, Any]:
    where = _place()
    cuda = where.type == "cuda"
    return {
        "kind": where.type,
        "name": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "free memory": _in_words(available(where)),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "default dtype": "that of the checkpoint, or bfloat16 if it names none" if cuda else _dtype(None),
    }


def _dtype(config: Any) -> str:
    """Return the default dtype of a model and the reason for it."""
    dtype, reason = chosen_dtype(config, _place())
    return f"{str(dtype).removeprefix('torch.')}: {reason}"


def _cache() -> dict[str, Any]:
    folder = home()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    return {
        "folder": str(folder),
        "free": format_bytes(shutil.disk_usage(existing).free),
        "models": ", ".join(name for name in CATALOG if locate(name)) or "none yet",
        "hub": "not used, because HF_HUB_OFFLINE is set"
        if offline
        else "models that are not here are downloaded from the Hugging Face hub",
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of a model's files."""

    source: str  # description for the user
    config: str  # folder or id from which transformers loads the config, or a GGUF file
    folder: Path | None  # folder with the weights, if they are on this machine


def _find(model: str) -> _Place | None:
    """Find the files of a catalog name, a folder, a GGUF file or a hub id; None for a catalog model not yet fetched."""
    if model in CATALOG:
        there = locate(model)
        return None if there is None else _Place("catalog", str(there), there)
    if is_gguf(model):
        return _Place("GGUF file", model, Path(model))
    if Path(model).exists():
        if not (Path(model) / "config.json").is_file():
            raise FetchError(f"{model!r} is not the folder of a model: it has no config.json")
        return _Place("folder", model, Path(model))
    if (why := why_not_on_hub(model)) is not None:
        raise FetchError(f"{model!r} is not known: {why}. {catalog_hint(model)}")
    cached = try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        return _Place("hub, in the cache", model, Path(cached).parent)
    return _Place("hub", model, None)


def _drafter(model: str) -> str:
    """Return what drafter="auto" means. Only names are compared here; loading compares the weights."""
    if model in shipped_targets():
        return "the one trained for this model, which comes with spectr"
    return (
        "none or lookup: no trained drafter for this model comes with spectr, so only text that repeats is drafted; "
        "train one with `spectr train`, or name another"
    )


def _needs_of_file(path: Path) -> dict[str, Any]:
    """Return the sizes of the weights and the cache of a GGUF file."""
    file = open_gguf(path)
    config = config_of(file)
    slots, numbers = min(config.max_position_embeddings, 4096), sum(prod(t.shape) for t in file.tensors.values())
    return {
        "dtype, auto": _dtype(config) if _place().type == "cpu" else "bfloat16: GGUF files are unpacked on a GPU",
        "weights, file": f"{format_bytes(file.bytes)} of {file.kinds}, not unpacked on a CPU",
        "weights, float32": format_bytes(4 * numbers),
        f"cache of {slots} tokens, float32": format_bytes(kv_bytes(config, 1, slots, torch.float32)),
    }


def _needs(model: str) -> dict[str, Any]:
    """Return the sizes of a model's weights and cache, from its config and files alone, and its defaults."""
    place = _find(model)
    if place is None:
        return {"weights": f"not fetched yet: run spectr pull {model}", "drafter, auto": _drafter(model)}
    if is_gguf(place.config):
        return {"source": place.source, **_needs_of_file(Path(place.config)), "drafter, auto": _drafter(model)}
    try:
        config = AutoConfig.from_pretrained(place.config)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["transformers gives no reason"])[0]
        raise FetchError(f"{model!r} has a config that cannot be read: {reason}") from None
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    slots = min(int(getattr(text, "max_position_embeddings", 0) or 4096), 4096)
    found = {"source": place.source, "dtype, auto": _dtype(config), "drafter, auto": _drafter(model)}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        size = 0 if place.folder is None else weights_on_disk(place.folder, dtype)
        found[f"weights, {name}"] = format_bytes(size) if size else "unknown until they are fetched"
        found[f"cache of {slots} tokens, {name}"] = format_bytes(kv_bytes(text, 1, slots, dtype))
    return found


def examine(model: str | None = None) -> dict[str, Any]:
    """Return the report as plain data; `advice` lists what must be done before models can run. Raise if the model is
    not known or cannot be fetched."""
    found: dict[str, Any] = {
        "spectr": __version__,
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in (*_NEEDED, *_OPTIONAL)},
        "device": _device(),
        "cache": _cache(),
        "trained drafters": ", ".join(sorted(shipped_targets())),
    }
    advice = []
    for name, least in _NEEDED.items():
        here = found["packages"][name]
        if here is None or _older(here, least):
            advice.append(f"{name} must be at least {least}, found {here}: pip install '{name}>={least}'")
    if model is not None:
        found["model"] = {"name": model, **_needs(model)}
    return {**found, "advice": advice}
