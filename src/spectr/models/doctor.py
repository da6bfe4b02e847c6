"""What is installed, what there is to run on, and what a model needs: facts, and advice where something is amiss."""

import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from spectr.errors import ArgumentError, SpectrError
from spectr.models.catalog import CATALOG, home, locate
from spectr.models.memory import available, in_words, need, weights_on_disk
from spectr.version import __version__, installed

__all__ = ["examine"]

_NEEDED = {"torch": "2.11", "transformers": "5.17"}
_OPTIONAL = {
    "gguf": "convert catalog models: pip install 'spectr-lm[models]'",
    "accelerate": "convert catalog models, device_map: pip install 'spectr-lm[models]'",
    "triton": "kernels on CUDA",
    "matplotlib": "figures: pip install 'spectr-lm[plot]'",
    "httpx2": "ask servers: pip install 'spectr-lm[endpoint]'",
}


def _older(found: str, least: str) -> bool:
    def parts(text: str) -> list[int]:
        return [int(word) for word in text.split("+", maxsplit=1)[0].split(".")[:2]]

    return parts(found) < parts(least)


def _in_words(size: int | None) -> str:
    return "unknown" if size is None else in_words(size)


def _device() -> dict[str, Any]:
    if torch.cuda.is_available():
        name, where = torch.cuda.get_device_name(), torch.device("cuda")
    else:
        name, where = platform.processor() or platform.machine(), torch.device("cpu")
    return {
        "kind": where.type,
        "name": name,
        "free memory": _in_words(available(where)),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cache() -> dict[str, Any]:
    folder = home()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "folder": str(folder),
        "free": in_words(shutil.disk_usage(existing).free),
        "models": ", ".join(name for name in CATALOG if locate(name)) or "none yet",
        "hub": "offline by HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else "as reached",
    }


def _needs(model: str) -> dict[str, Any]:
    """Weights and cache of a model, from its config and files alone."""
    folder = locate(model) if model in CATALOG else Path(model)
    if folder is None:
        return {"weights": f"not here yet: spectr pull {model}"}
    if not (folder / "config.json").exists():
        raise ArgumentError(
            f"{model!r} must be a catalog name or a folder with a config.json; models: {', '.join(CATALOG)}"
        )
    config = AutoConfig.from_pretrained(folder)
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    slots = min(int(getattr(text, "max_position_embeddings", 0) or 4096), 4096)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        found[f"weights, {name}"] = in_words(weights_on_disk(folder, dtype))
        found[f"cache of {slots} tokens, {name}"] = in_words(need(text, 1, slots, dtype))
    return found


def examine(model: str | None = None) -> dict[str, Any]:
    """Everything, as plain data; `advice` lists what must be done before models can run."""
    found: dict[str, Any] = {
        "spectr": __version__,
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in (*_NEEDED, *_OPTIONAL)},
        "device": _device(),
        "cache": _cache(),
    }
    advice = []
    for name, least in _NEEDED.items():
        here = found["packages"][name]
        if here is None or _older(here, least):
            advice.append(f"{name} must be at least {least}, found {here}: pip install '{name}>={least}'")
    missing = [name for name in ("gguf", "accelerate") if found["packages"][name] is None]
    if missing and not any(locate(name) for name in CATALOG):
        advice.append(f"{', '.join(missing)} missing, needed to {_OPTIONAL['gguf']}")
    if model is not None:
        try:
            found["model"] = {"name": model, **_needs(model)}
        except SpectrError as error:
            advice.append(str(error))
    return {**found, "advice": advice}
