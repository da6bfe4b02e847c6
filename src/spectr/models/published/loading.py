"""Loads a published head and fits it to a target."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spectr.errors import MismatchError
from spectr.models.attention import group_heads
from spectr.models.int8 import int8_products
from spectr.models.packed import PackedLinear, pack
from spectr.models.published.block import BlockHead
from spectr.models.published.checkpoint import Checkpoint
from spectr.models.published.eagle3 import Eagle3Head
from spectr.models.published.formats import Eagle3Form, Form, Source, form_of
from spectr.models.published.sharing import only_bias_of

__all__ = ["head_from", "load_head"]

_UNUSED = ("t2d", "confidence_head.", "verifier_lm_head.", "verifier_norm.", "rotary_emb.", "mask_embedding")
"""Tensors that only training needs, or that are computed again."""
_ELSEWHERE = (("midlayer.", "layers.0."), ("norm.", "readout.norm."), ("lm_head.", "readout.lm_head."))


def _placed(name: str) -> str:
    """Return the name of a checkpoint's tensor in spectr's module."""
    for theirs, ours in _ELSEWHERE:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _target_tokens(offsets: Tensor, form: Form, name: str) -> Tensor:
    """Return the target's tokens (U,) for the rows of an output layer: row number plus offset."""
    found = torch.arange(len(offsets)) + offsets.long()
    size = form.source.vocabulary
    if bool((found < 0).any()) or bool((found >= size).any()) or len(found.unique()) < len(found):
        raise MismatchError(
            f"d2t of {name!r} must map to different tokens in 0 … {size - 1}, and maps to {int(found.min())} … "
            f"{int(found.max())}, {len(found.unique())} of {len(found)} different; it belongs to another target"
        )
    return found


def head_from(form: Form, tensors: dict[str, Tensor], name: str) -> Eagle3Head | BlockHead:
    """Return a head with these tensors, in float32 on the CPU."""
    head: Any = Eagle3Head(form) if isinstance(form, Eagle3Form) else BlockHead(form)
    found = {_placed(key): value for key, value in tensors.items() if not key.startswith(_UNUSED)}
    offsets = found.pop("d2t", None)
    only_bias_of(head, set(found))
    missing, strange = set(head.state_dict()) - set(found), set(found) - set(head.state_dict())
    wrong = [
        f"{key} has shape {tuple(found[key].shape)} and must have {tuple(own.shape)}"
        for key, own in head.state_dict().items()
        if key in found and found[key].shape != own.shape
    ]
    if missing or strange or wrong:
        raise MismatchError(
            f"the head {name!r} looks like {form.family}, but its tensors differ: missing {sorted(missing)}, unknown "
            f"{sorted(strange)}, {'; '.join(wrong) or 'all others fit'}; it is another kind of head, or a part of one"
        )
    head.load_state_dict(found)
    if form.vocabulary.is_mapped and offsets is not None:
        head.rows.copy_(_target_tokens(offsets, form, name))
    made: Eagle3Head | BlockHead = head
    return made


def load_head(
    checkpoint: Checkpoint, target: PreTrainedModel, vocabulary: int, hidden_states: tuple[int, ...] | None = None
) -> Eagle3Head | BlockHead:
    """Load a head for a target with `vocabulary` tokens, in the target's dtype and on its device.

    The head uses the target's embedding and output layer if it has none of its own. Its matrices become int8 on a GPU,
    and on a CPU if the target's are packed."""
    form = form_of(checkpoint, Source.of(target, vocabulary), hidden_states)
    head: Any = head_from(form, checkpoint.tensors(), checkpoint.name)
    head.to(target.device, target.dtype).requires_grad_(False)
    head.borrow(target)
    group_heads(head)
    int8_products(head)
    head.readout.round()
    if isinstance(target.get_output_embeddings(), PackedLinear):  # type: ignore[no-untyped-call]
        pack(head, "INT8")
    made: Eagle3Head | BlockHead = head.eval()
    return made
