"""From a name to a model: catalog, hub or folder, through transformers' own loading; or a model already loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging
from transformers.utils.hub import has_file

from spectr.errors import ArgumentError, MismatchError
from spectr.models.attention import group_heads
from spectr.models.catalog import CATALOG, FetchError, Progress, catalog_hint, pull
from spectr.models.cpu import target_of
from spectr.models.cpu_program import is_known_family
from spectr.models.generation_config import default_settings
from spectr.models.gguf.build import config_of, model_of
from spectr.models.gguf.reader import open_gguf
from spectr.models.gguf.tokenizer import tokenizer_of
from spectr.models.hub import why_not_on_hub
from spectr.models.internals import attention_name, has_auto_class
from spectr.models.loading import Loading
from spectr.models.memory import kv_bytes, require_memory, weights_on_disk
from spectr.models.packed import pack
from spectr.models.parallel.group import RankGroup, join
from spectr.models.parallel.sharding import check_shards, shard, sharded_target, sharding_keywords
from spectr.models.support import UNBOUNDED
from spectr.models.target import Target
from spectr.notices import notice

__all__ = ["OpenedModel", "is_gguf", "model_size", "open_loaded", "open_model"]


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A target with its tokenizer, stop tokens and default settings."""

    target: Target
    tokenizer: Any
    stops: frozenset[int]  # tokens that end a text
    start: tuple[int, ...] | None  # tokens with which an encoder-decoder model's answers begin
    settings: Mapping[str, Any] = field(default_factory=dict)  # defaults of the policy, from the generation_config


def open_model(model: str, progress: Progress = lambda _: None, tokenizer: Any = None, **options: Any) -> OpenedModel:
    """Open a model by catalog name, hub id, local folder or GGUF file, with its own tokenizer or the given one.
    `options` are those of `Loading`."""
    loading = Loading.of(options)
    group = join(loading.tensor_parallel, loading.place) if loading.tensor_parallel > 1 else None
    if group is not None and not group.leads:
        progress = _silent
    place = str(pull(model, progress)) if model in CATALOG else model
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if is_gguf(place):
        return _open_gguf(Path(place), loading, progress, tokenizer, group)
    config = _config(model, place, loading.trust_remote_code)
    if group is not None:
        check_shards(model, config, group.size)
    auto, packs = _auto_of(model, config), _packs(config, loading)
    if Path(place).is_dir() and not loading.is_placed:
        dtype = None if packs and loading.weights == "file" else loading.kind(config)
        _check_memory(model, Path(place), dtype, loading)
    keywords = loading.keywords(config)
    if group is not None:
        keywords |= sharding_keywords(loading.place, group.size)
    if packs and loading.weights != "float32":
        keywords["dtype"] = "auto"  # packed as they are stored
    try:
        net: PreTrainedModel = auto.from_pretrained(place, **keywords)
    except (OSError, ValueError) as error:
        raise _unloadable(model, error) from error
    if tokenizer is None:
        tokenizer = _tokenizer(model, place, loading.trust_remote_code)
    if packs:
        progress("packing weights for this processor")
        pack(net, "INT8" if loading.weights == "int8" else None)
        net.float()  # type: ignore[no-untyped-call]
    if not loading.is_placed:
        net.to(loading.place)  # type: ignore[arg-type]
        if loading.attn_implementation is None:
            group_heads(net)
    return open_loaded(net, tokenizer, group)


def _check_memory(model: str, folder: Path, dtype: torch.dtype | None, loading: Loading) -> None:
    """Raise if the weights in a folder, or this rank's part of them, do not fit into memory (dtype None: as stored)."""
    name = "as it is stored" if dtype is None else f"in {str(dtype).removeprefix('torch.')}"
    size = weights_on_disk(folder, dtype) // loading.tensor_parallel
    require_memory(size, loading.place, f"{model!r} {name}", "use a smaller dtype or another device")


def _silent(_: str) -> None:
    """Report no progress; used on all ranks but rank 0, which reports for all."""


def _packs(config: Any, loading: Loading) -> bool:
    """Return whether weights are packed and run by the compiled decoder, or at least by compiled products. That is so
    on a CPU with float32 arithmetic, for the Llama family and for weights="int8"."""
    is_whole = not loading.is_placed and loading.tensor_parallel == 1
    is_plain = is_whole and loading.attn_implementation is None and loading.place.type == "cpu"
    if not is_plain or loading.kind(config) != torch.float32:
        if loading.weights == "int8":
            raise ArgumentError("weights='int8' needs float32 arithmetic and spectr's own attention; leave dtype out")
        return False
    return loading.weights == "int8" or is_known_family(config)


def is_gguf(place: str) -> bool:
    """Return whether a path names a GGUF file."""
    return place.lower().endswith(".gguf")


def _open_gguf(
    path: Path, loading: Loading, progress: Progress, tokenizer: Any, group: RankGroup | None
) -> OpenedModel:
    """Open a GGUF file. On a CPU in float32 its weights stay packed. They are unpacked on a GPU, for other dtypes, and
    for tensor parallelism, where each process reads the whole file."""
    file = open_gguf(path)
    config = config_of(file)
    if group is not None:
        check_shards(str(path), config, group.size)
    dtype = torch.bfloat16 if loading.place.type == "cuda" and loading.is_auto else loading.kind(config)
    packs = loading.place.type == "cpu" and dtype == torch.float32 and group is None
    name = str(dtype).removeprefix("torch.")
    numbers = sum(prod(tensor.shape) for tensor in file.tensors.values())
    size = file.bytes if packs and loading.weights == "file" else numbers * dtype.itemsize
    require_memory(size, loading.place, f"{str(path)!r}", "use a smaller file, or another device")
    net: Any = model_of(file, loading.weights if packs else None, progress)
    if not packs:
        progress(f"{path.name}: its {file.kinds} weights are unpacked to {name} on {loading.place}")
        net.to(loading.place, dtype)
        group_heads(net)
    return open_loaded(net, tokenizer or tokenizer_of(file, config), group)


def open_loaded(net: PreTrainedModel, tokenizer: Any = None, group: RankGroup | None = None) -> OpenedModel:
    """Wrap a loaded model. Its weights are used in place; with a group, only this rank's shards of them are kept."""
    if not isinstance(net, torch.nn.Module) or not hasattr(net, "config"):
        raise ArgumentError(f"a model must be a name, a folder, or a loaded model of transformers, got {net!r}")
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise ArgumentError(f"tokenizer must be a loaded tokenizer of transformers, got {tokenizer!r}")
    if net.device.type == "cuda" and attention_name(net.config.get_text_config(decoder=True)) == "sdpa":
        notice(
            "this model keeps its own attention, so trees are scored without spectr's kernel, which is slower; give "
            "spectr.load the folder of the model to use the kernel"
        )
    if group is not None:
        shard(net, group)
    target = target_of(net) if group is None else sharded_target(net, group)
    settings = default_settings(net, target.vocabulary)
    return OpenedModel(target, tokenizer, _stops(net, tokenizer), _start(net), settings)


def model_size(folder: str) -> tuple[int, int, int]:
    """Return the number of weights of a local model, the values its cache holds per token, and its context length. Only
    its config and file headers are read."""
    config = _config(folder, folder, trust_remote_code=False)
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    numbers = kv_bytes(text, 1, 1, torch.int8)  # one byte each
    context = int(getattr(text, "max_position_embeddings", None) or UNBOUNDED)
    return weights_on_disk(Path(folder), torch.float32) // torch.float32.itemsize, numbers, context


def _config(model: str, folder: str, trust_remote_code: bool) -> Any:
    if not Path(folder).exists() and (why := why_not_on_hub(model)) is not None:
        raise FetchError(f"{model!r} could not be loaded: {why}. {catalog_hint(model)}")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise _unloadable(model, error) from error


def _unloadable(model: str, error: Exception) -> FetchError:
    """Return an error with the first line of transformers' message."""
    reason = (str(error).strip().splitlines() or ["transformers gives no reason"])[0].rstrip(".")
    return FetchError(f"{model!r} could not be loaded: {reason}. {catalog_hint(model)}")


def _tokenizer(model: str, folder: str, trust_remote_code: bool) -> Any:
    """Load the tokenizer from the model's folder or repository."""
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ImportError, OSError, ValueError) as error:
        if find_spec("sentencepiece") is None and _has_sentencepiece_model(folder):
            raise FetchError(
                f"the tokenizer of {model!r} needs the package sentencepiece, which is not installed; install it with "
                "pip install sentencepiece, or give a tokenizer: tokenizer=…"
            ) from error
        said = str(error).strip().partition("\n")[0]
        why = f" ({said})" if isinstance(error, ImportError) or "pip install" in said else ""
        raise FetchError(f"{model!r} has no tokenizer that can be loaded; give one: tokenizer=…{why}") from error


def _has_sentencepiece_model(folder: str) -> bool:
    """Return whether a folder or repository has a tokenizer in sentencepiece's format only. Without that package,
    transformers' error may name another reason."""
    names = ("source.spm", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "sentencepiece.model")
    return not has_file(folder, "tokenizer.json") and any(has_file(folder, name) for name in names)


def _auto_of(model: str, config: Any) -> Any:
    """Return the auto class for a config; raise if the model does not generate text from text."""
    auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if not has_auto_class(auto, config) and auto.__name__ not in (getattr(config, "auto_map", None) or {}):
        raise MismatchError(
            f"{model!r} is a {config.model_type} model, which does not generate text from text; use a causal or a "
            "sequence-to-sequence language model"
        )
    return auto


def _ids(value: Any) -> set[int]:
    return set(value) if isinstance(value, list | tuple) else set() if value is None else {int(value)}


def _stops(net: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """Return the end-of-text tokens of the generation config and the tokenizer."""
    owners = (net.generation_config, tokenizer)
    return frozenset[int]().union(*(_ids(getattr(owner, "eos_token_id", None)) for owner in owners))


def _start(net: PreTrainedModel) -> tuple[int, ...] | None:
    """Return the tokens with which an encoder-decoder model's answers begin: its start token, and one that its config
    forces, such as a language. None for decoder-only models."""
    if not net.config.is_encoder_decoder:
        return None
    owners = [(o, n) for n in ("decoder_start_token_id", "bos_token_id") for o in (net.generation_config, net.config)]
    first = next((int(v) for v in (getattr(o, n, None) for o, n in owners) if v is not None), None)
    forced = getattr(net.generation_config, "forced_bos_token_id", None)
    return None if first is None else (first,) if forced is None else (first, int(forced))
