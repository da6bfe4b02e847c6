"""Trained drafters as folders: weights, a description, and the fingerprint of the target they were trained for."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from spectr.errors import ArgumentError, MismatchError
from spectr.kernels.cpu.kinds import GROUP
from spectr.models.blockwise import BlockwiseHead, BlockwiseShape
from spectr.models.fast_kernels import speed_up_head
from spectr.models.few_bits import SCALE, decoded, decoded_int8, encoded
from spectr.models.head import FeatureHead, HeadShape
from spectr.models.int8 import Int8Linear
from spectr.models.packed import PackedLinear, block_matrix, embedded_rows
from spectr.models.saving import save_tensors, save_text

__all__ = [
    "Trained",
    "description",
    "fingerprint",
    "is_drafter",
    "load_drafter",
    "load_for_training",
    "save_drafter",
    "shipped",
    "shipped_targets",
]

_ABOUT, _WEIGHTS, _ORDER = "drafter.json", "drafter.safetensors", "tokens"
_KEYS = {"drafted_tokens": "rows", "feature_layers": "taps"}  # keys of the file that differ from the attributes
_ATTRIBUTES = {key: name for name, key in _KEYS.items()}


def fingerprint(model: PreTrainedModel) -> str:
    """Return a hash of a model's sizes and of some of its weights. They are rounded to bfloat16, so that the hash does
    not depend on the dtype in which the model was loaded."""
    config = model.config.get_text_config(decoder=True)
    digest = hashlib.sha256()
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        digest.update(f"{name}={getattr(config, name, None)};".encode())
    embedding: Any = model.get_input_embeddings()
    count = int(embedding.num_embeddings)
    rows = embedded_rows(embedding, torch.arange(0, count, max(1, count // 256)))
    some = rows.to("cpu", torch.bfloat16).contiguous()
    digest.update(some.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Trained:
    """The description of a trained drafter."""

    target: str  # the name under which it was loaded for training
    fingerprint: str
    shape: dict[str, Any]
    kind: str = "feature"  # or "blockwise", or "eagle3", whose folder has a config.json in place of this description
    drafted_tokens: int | None = None  # on a CPU it drafts this many of the most frequent tokens; None: all
    learnt_tokens: int | None = None  # it knows only this many of the most frequent tokens; None: all
    training: dict[str, Any] = field(default_factory=dict)


def is_drafter(folder: Path) -> bool:
    """Return whether a folder contains a trained drafter."""
    return (folder / _ABOUT).is_file()


def save_drafter(folder: Path, head: FeatureHead | BlockwiseHead, about: Trained, order: Tensor, bits: int = 6) -> None:
    """Write the weights in so many bits, the tokens in `order` of decreasing frequency, and the description."""
    if any(isinstance(module, Int8Linear) for module in head.modules()):
        raise ArgumentError(
            "a head that was loaded for drafting has rounded weights and cannot be saved; copy its folder instead"
        )
    tensors = encoded({name: weights.detach().cpu() for name, weights in head.named_parameters()}, bits)
    tensors[_ORDER] = order.to("cpu", torch.int32)
    save_tensors(folder / _WEIGHTS, tensors)
    data = _renamed({name: getattr(about, name) for name in about.__slots__}, _KEYS)
    data["shape"] = _renamed(about.shape, _KEYS)
    save_text(folder / _ABOUT, json.dumps(data, indent=1) + "\n")


def _renamed(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in data.items()}


def description(folder: Path) -> Trained:
    """Return the description of the drafter in a folder."""
    try:
        data = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        about = Trained(**_renamed(data, _ATTRIBUTES))
        return replace(about, shape=_renamed(about.shape, _ATTRIBUTES))
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise ArgumentError(f"{folder / _ABOUT} is not the description of a drafter: {error}; train it again") from None


def _empty(about: Trained) -> FeatureHead | BlockwiseHead:
    if about.kind == "blockwise":
        return BlockwiseHead(BlockwiseShape(**about.shape))
    return FeatureHead(HeadShape(**{**about.shape, "feature_layers": tuple(about.shape["feature_layers"])}))


def _all_shipped() -> list[Path]:
    return [path.parent for path in sorted((Path(__file__).parents[1] / "drafters").glob(f"*/{_ABOUT}"))]


def shipped(model: PreTrainedModel) -> Path | None:
    """Return the folder of the drafter that is shipped with spectr for this model, or None."""
    mark = fingerprint(model)
    return next((folder for folder in _all_shipped() if description(folder).fingerprint == mark), None)


def shipped_targets() -> set[str]:
    """Return the names of the models for which a drafter is shipped with spectr."""
    return {description(folder).target for folder in _all_shipped()}


def _stored(folder: Path, target: PreTrainedModel) -> tuple[Any, Trained, Tensor]:
    """Return a head in float32, its description, and the tokens by frequency; raise if it was trained for another
    target."""
    about = description(folder)
    if about.fingerprint != fingerprint(target):
        raise MismatchError(
            f"the drafter in {folder} was trained for {about.target!r}, and this target has other weights; train one "
            "with spectr train, or use lookup, ngram or early_exit"
        )
    tensors = load_file(folder / _WEIGHTS)
    order = tensors.pop(_ORDER).long()
    with torch.device("meta"):  # no random weights, which take time and change torch's generator
        head = _empty(about)
    head.load_state_dict(decoded(tensors), assign=True)
    if isinstance(head, FeatureHead):
        head.trunk.rotary_emb = type(head.trunk.rotary_emb)(head.shape.config())  # its buffers are in no file
    return head, about, order


def load_for_training(folder: Path, target: PreTrainedModel, light: bool = False) -> FeatureHead | BlockwiseHead:
    """Return the head in `folder` for further training: in float32, with the whole vocabulary. With `light`, a feature
    head gets a new layer that drafts below the root."""
    head: Any = _stored(folder, target)[0]
    if light and not isinstance(head, FeatureHead):
        raise ArgumentError(f"only a feature head can become a light one, and {folder} has a blockwise head")
    if light and not head.shape.light:
        head = head.with_light_layer()
    head.to(target.device).borrow(target)
    made: FeatureHead | BlockwiseHead = head
    return made


def _pack(head: Any, tensors: dict[str, Tensor]) -> None:
    """Replace the linear layers of a head, and its short joining layer, by packed ones with the stored values."""
    width = head.shape.width
    for name, codes in tensors.items():
        if (scale := tensors.get(name + SCALE)) is None or codes.shape[1] % GROUP:
            continue
        above, _, last = name.removesuffix(".weight").rpartition(".")
        setattr(head.get_submodule(above), last, PackedLinear(block_matrix(codes, scale)))
        if name == "join.weight" and width % GROUP == 0 and isinstance(head, FeatureHead):
            head.shorten(block_matrix(codes, scale, [slice(0, width), slice(-width, None)]))


def load_drafter(folder: Path, target: PreTrainedModel, vocabulary: int | None = None) -> FeatureHead | BlockwiseHead:
    """Load the head in `folder` for drafting; raise if it was trained for another target.

    It drafts the `vocabulary` most frequent tokens. The default is all that it learnt, except on a CPU, where most of
    the time of drafting goes to the output layer: there it is the number in the head's description."""
    head, about, order = _stored(folder, target)
    count = vocabulary or (about.drafted_tokens if target.device.type == "cpu" else None) or len(order)
    count = min(count, about.learnt_tokens or count)
    head.to(target.device, target.dtype).requires_grad_(False)
    head.borrow(target, None if count >= len(order) else order[:count].sort().values.to(target.device))
    if isinstance(head, FeatureHead):
        speed_up_head(head)
    if isinstance(head.get_output_embeddings(), PackedLinear) and not getattr(head.shape, "light", False):
        _pack(head, decoded_int8(load_file(folder / _WEIGHTS)))
    made: FeatureHead | BlockwiseHead = head.eval()
    return made
