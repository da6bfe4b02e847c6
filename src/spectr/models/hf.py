"""From a name to a model: catalog, hub or folder, through transformers' own loading; or a model already loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging
from transformers.utils.hub import has_file

from spectr.checks import whole
from spectr.errors import ArgumentError, MismatchError, MissingExtraError
from spectr.models.catalog import CATALOG, FetchError, Progress, pull
from spectr.models.cpu import is_known_family, target_of
from spectr.models.generation_config import default_settings
from spectr.models.gguf.build import config_of, model_of
from spectr.models.gguf.reader import GgufFile, open_gguf
from spectr.models.hub import why_not_on_hub
from spectr.models.internals import attention_name, has_auto_class
from spectr.models.memory import kv_bytes, require_memory, weights_on_disk
from spectr.models.packed import pack
from spectr.models.parallel.group import RankGroup, join
from spectr.models.parallel.sharding import check_shards, local_device, shard, sharded_target, sharding_keywords
from spectr.models.support import UNBOUNDED
from spectr.models.target import Target
from spectr.models.tuned import tune
from spectr.notices import notice
from spectr.registry import nearest

__all__ = ["Loading", "OpenedModel", "chosen_dtype", "is_gguf", "model_size", "open_loaded", "open_model"]

_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_WEIGHTS = ("file", "float32", "int8")


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A target with what belongs to it."""

    target: Target
    tokenizer: Any
    stops: frozenset[int]  # tokens that end a text
    start: tuple[int, ...] | None  # the tokens an encoder-decoder model's answers begin with
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the policy, from the model's generation_config


@dataclass(frozen=True, slots=True)
class Loading:
    """How weights are loaded."""

    dtype: str | torch.dtype = "auto"  # of the arithmetic; "auto": see `chosen_dtype`
    device: str | torch.device = "auto"  # cuda where there is one
    device_map: Any = None  # for accelerate, instead of `device`
    quantization_config: Any = None
    trust_remote_code: bool = False
    attn_implementation: str | None = None
    weights: str = "file"  # how weights are stored on a CPU: as they come, or as float32, or rounded to int8
    tensor_parallel: int = 1  # processes, started by torchrun, over which the layers are spread

    def __post_init__(self) -> None:
        if whole("tensor_parallel", self.tensor_parallel, 1) > 1 and (self.is_placed or self.weights == "int8"):
            raise ArgumentError(
                "tensor_parallel spreads plain weights evenly over processes; leave device_map, quantization_config "
                "and weights='int8' out, or tensor_parallel"
            )
        if self.weights not in _WEIGHTS:
            raise ArgumentError(f"weights must be {', '.join(_WEIGHTS[:-1])} or {_WEIGHTS[-1]}, got {self.weights!r}")
        if self.weights == "int8" and (self.is_placed or self.place.type != "cpu"):
            raise ArgumentError("weights='int8' is for models on a CPU; on a GPU give a quantization_config")
        if self._dtype not in _DTYPES:
            raise ArgumentError(f"dtype must be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, got {self.dtype!r}")
        try:
            found = self.place
        except (RuntimeError, TypeError):
            raise ArgumentError(f"device must be cpu, cuda, cuda:1, … or auto, got {self.device!r}") from None
        if found.type == "cuda" and not torch.cuda.is_available():
            raise ArgumentError(f"device is {self.device!r} and no CUDA device is found; use device='cpu' or 'auto'")
        if found.type not in ("cpu", "cuda"):
            raise ArgumentError(
                f"device must be cpu or cuda, got {self.device!r}: the noise of the race needs float64, which is not "
                f"tested on {found.type}; use device='cpu'"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Loading":
        """From keywords; one that is not known is refused with the nearest."""
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
        """Whether the dtype is left open."""
        return self._dtype == "auto"

    @property
    def place(self) -> torch.device:
        """The device meant; with several processes, that of this one."""
        found = "cuda" if torch.cuda.is_available() else "cpu"
        meant = torch.device(found if self.device == "auto" else self.device)
        return local_device(meant) if self.tensor_parallel > 1 else meant

    def kind(self, config: Any) -> torch.dtype:
        """The dtype to load a model of this config in."""
        return chosen_dtype(config, self.place)[0] if self._dtype == "auto" else getattr(torch, self._dtype)

    def keywords(self, config: Any) -> dict[str, Any]:
        """For `from_pretrained`."""
        given = {
            "device_map": self.device_map,
            "quantization_config": self.quantization_config,
            "attn_implementation": self.attn_implementation,
        }
        given = {name: value for name, value in given.items() if value is not None}
        stored = self.is_placed and self._dtype == "auto"  # whoever places the weights also knows their dtype
        return {"dtype": "auto" if stored else self.kind(config), "trust_remote_code": self.trust_remote_code, **given}

    @property
    def is_placed(self) -> bool:
        """Whether transformers puts the weights where they belong."""
        return self.device_map is not None or self.quantization_config is not None


def chosen_dtype(config: Any, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype that a model runs in unless the user says another, and why: float32 on a CPU, the checkpoint's own on
    CUDA, and bfloat16 where its config names none."""
    if device.type == "cpu":
        return torch.float32, "float32 is the fastest exact arithmetic on a CPU"
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(decoder=True), "dtype", None)
    if isinstance(stored, torch.dtype):
        return stored, "the checkpoint's own dtype"
    return torch.bfloat16, "the checkpoint names no dtype"


def open_model(model: str, progress: Progress = lambda _: None, tokenizer: Any = None, **options: Any) -> OpenedModel:
    """A catalog name, a hub id, a local folder or a GGUF file, with its tokenizer or another; `options` are those of
    `Loading`."""
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
        name = "as it is stored" if dtype is None else f"in {str(dtype).removeprefix('torch.')}"
        size = weights_on_disk(Path(place), dtype)
        size //= loading.tensor_parallel
        require_memory(size, loading.place, f"{model!r} {name}", "use a smaller dtype or another device")
    try:
        keywords = loading.keywords(config)
        if group is not None:
            keywords |= sharding_keywords(loading.place, group.size)
        stored = packs and loading.weights != "float32"
        net: PreTrainedModel = auto.from_pretrained(place, **{**keywords, **({"dtype": "auto"} if stored else {})})
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
            tune(net)
    return open_loaded(net, tokenizer, group)


def _silent(_: str) -> None:
    """Progress of ranks that follow: rank 0 reports for all."""


def _packs(config: Any, loading: Loading) -> bool:
    """Whether weights are packed and run by the compiled decoder, or at least by compiled products: on a CPU, in
    float32, for the Llama family, or where int8 is asked for."""
    is_whole = not loading.is_placed and loading.tensor_parallel == 1
    is_plain = is_whole and loading.attn_implementation is None and loading.place.type == "cpu"
    if not is_plain or loading.kind(config) != torch.float32:
        if loading.weights == "int8":
            raise ArgumentError("weights='int8' needs float32 arithmetic and spectr's own attention; leave dtype out")
        return False
    return loading.weights == "int8" or is_known_family(config)


def is_gguf(place: str) -> bool:
    """Whether a name means a GGUF file."""
    return place.lower().endswith(".gguf")


def _open_gguf(
    path: Path, loading: Loading, progress: Progress, tokenizer: Any, group: RankGroup | None
) -> OpenedModel:
    """A model from a GGUF file: packed as it is on a CPU; unpacked elsewhere, in other arithmetic than float32, and
    where it is spread over processes, each of which then reads the whole file."""
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
        tune(net)
    return open_loaded(net, tokenizer or _gguf_tokenizer(file), group)


def _gguf_tokenizer(file: GgufFile) -> Any:
    """The tokenizer that a GGUF file describes, with its chat template. What else is in its folder may belong to other
    models, so it is read in a folder of its own."""
    path = file.path
    try:
        with TemporaryDirectory(prefix="spectr-") as alone:
            (Path(alone) / path.name).symlink_to(path.resolve())
            made: Any = AutoTokenizer.from_pretrained(alone, gguf_file=path.name)
    except ImportError:
        raise MissingExtraError("gguf", "models", f"reading the tokenizer of {path.name}") from None
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FetchError(f"{str(path)!r} has no tokenizer that can be read ({said}); give one: tokenizer=…") from error
    made.chat_template = file.setting("tokenizer.chat_template")
    made.name_or_path = str(path)
    return made


def open_loaded(net: PreTrainedModel, tokenizer: Any = None, group: RankGroup | None = None) -> OpenedModel:
    """A model that is there already; its weights are used where they are, or this rank's shards of them."""
    if not isinstance(net, torch.nn.Module) or not hasattr(net, "config"):
        raise ArgumentError(f"a model must be a name, a folder, or a loaded model of transformers, got {net!r}")
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise ArgumentError(f"tokenizer must be a loaded tokenizer of transformers, got {tokenizer!r}")
    if net.device.type == "cuda" and attention_name(net.config.get_text_config(decoder=True)) == "sdpa":
        notice(
            "this model keeps its own attention, so trees are scored without spectr's kernel, slower; let spectr.load "
            "open its folder to have it"
        )
    if group is not None:
        shard(net, group)
    target = target_of(net) if group is None else sharded_target(net, group)
    settings = default_settings(net, target.vocabulary)
    return OpenedModel(target, tokenizer, _stops(net, tokenizer), _start(net), settings)


def model_size(folder: str) -> tuple[int, int, int]:
    """Of a local model, from its config and files alone: how many weights, how many numbers its cache holds for one
    token, and its positions."""
    config = _config(folder, folder, trust_remote_code=False)
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    numbers = kv_bytes(text, 1, 1, torch.int8)  # one byte each
    context = int(getattr(text, "max_position_embeddings", None) or UNBOUNDED)
    return weights_on_disk(Path(folder), torch.float32) // torch.float32.itemsize, numbers, context


def _config(model: str, folder: str, trust_remote_code: bool) -> Any:
    if not Path(folder).exists() and (why := why_not_on_hub(model)) is not None:
        raise FetchError(f"{model!r} could not be loaded: {why}. Catalog models: {', '.join(CATALOG)}")
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise _unloadable(model, error) from error


def _unloadable(model: str, error: Exception) -> FetchError:
    """The first line of what transformers says."""
    reason = (str(error).strip().splitlines() or ["transformers gives no reason"])[0].rstrip(".")
    return FetchError(f"{model!r} could not be loaded: {reason}. Catalog models: {', '.join(CATALOG)}")


def _tokenizer(model: str, folder: str, trust_remote_code: bool) -> Any:
    """The tokenizer that lies beside the weights."""
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
    """Whether a folder or repository has its tokenizer in this form alone. Without the package, transformers may say
    that it does not know the architecture."""
    names = ("source.spm", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "sentencepiece.model")
    return not has_file(folder, "tokenizer.json") and any(has_file(folder, name) for name in names)


def _auto_of(model: str, config: Any) -> Any:
    """What loads a model of this config, if it writes text from text."""
    auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if not has_auto_class(auto, config) and auto.__name__ not in (getattr(config, "auto_map", None) or {}):
        raise MismatchError(
            f"{model!r} is a {config.model_type} model, which does not write text from text; use a causal or a "
            "sequence-to-sequence language model"
        )
    return auto


def _ids(found: Any) -> set[int]:
    return set(found) if isinstance(found, list | tuple) else set() if found is None else {int(found)}


def _stops(net: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """The ends of text that the model's generation config and its tokenizer name."""
    owners = (net.generation_config, tokenizer)
    return frozenset[int]().union(*(_ids(getattr(owner, "eos_token_id", None)) for owner in owners))


def _start(net: PreTrainedModel) -> tuple[int, ...] | None:
    """The tokens a decoder begins with, for models that have an encoder: its own, and one that a config forces on it,
    such as a language."""
    if not net.config.is_encoder_decoder:
        return None
    owners = [(o, n) for n in ("decoder_start_token_id", "bos_token_id") for o in (net.generation_config, net.config)]
    first = next((int(v) for v in (getattr(o, n, None) for o, n in owners) if v is not None), None)
    forced = getattr(net.generation_config, "forced_bos_token_id", None)
    return None if first is None else (first,) if forced is None else (first, int(forced))
