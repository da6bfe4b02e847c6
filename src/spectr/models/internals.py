"""Private names of transformers and torch, all in this one module.

A private name may change with any release, so the rest of spectr uses the functions and aliases below, and a test
refuses private names elsewhere. Each name was seen in transformers 5.17 to 5.23 and in torch 2.11 to 2.13, in the same
place and with the same meaning, unless the text beside it says otherwise. `tests/models/test_internals.py` has a test
for every name; it fails with the name and the installed version when a release lacks it.

Attributes of the modules of a model, such as `self_attn.q_proj`, are not listed here: `drivers`, `cpu` and `joint` read
them, and `tests/models/test_target.py` compares the result with a plain forward pass of every architecture.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx.experimental._config import patch as _patch_shapes  # type: ignore[attr-defined]
from transformers import DynamicCache, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism as _apply_tensor_parallelism
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
    eager_attention_forward,
    rotate_half,
)
from transformers.utils.hub import cached_file

__all__ = [
    "PROCESSOR_SETTINGS",
    "DistributedConfig",
    "LlamaAttention",
    "LlamaDecoderLayer",
    "LlamaRMSNorm",
    "LlamaRotaryEmbedding",
    "Qwen3Attention",
    "Qwen3DecoderLayer",
    "Qwen3MLP",
    "apply_tensor_parallelism",
    "attention_function",
    "attention_name",
    "bloom_alibi",
    "copy_with_children",
    "copy_with_parameters",
    "distinct_sizes",
    "falcon_alibi",
    "find_file",
    "free_workspaces",
    "has_auto_class",
    "is_recurrent",
    "is_sharded",
    "prefix_function",
    "rotate_half",
    "sdpa_attention_forward",
    "sdpa_mask",
    "supports_sdpa",
    "without_base",
]

_Class = TypeVar("_Class", bound=type)

# Aliases of transformers, and why they are needed:
#
# sdpa_attention_forward, sdpa_mask   the attention and the mask that spectr's grouped attention falls back to
# bloom_alibi, falcon_alibi           `build_alibi_tensor` of both families: the slopes of their position biases
# Llama…, Qwen3…, rotate_half         the layers that published EAGLE-3, DFlash and DSpark heads are made of
# DistributedConfig                   makes `from_pretrained` read only the shards of this rank


def attention_name(config: Any) -> str:
    """Return the name of the attention function that a (text) config selects, such as "sdpa" or "eager".

    `config._attn_implementation` is private; transformers has a public setter (`set_attn_implementation`) and no public
    getter."""
    return str(config._attn_implementation)


def attention_function(config: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the attention function that a config selects, for attention layers of spectr's own.

    `ALL_ATTENTION_FUNCTIONS` is the registry behind the public `AttentionInterface`. It has no entry for "eager", for
    which every model file has a function of its own; that of Qwen3 serves here."""
    found: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
        config._attn_implementation, eager_attention_forward
    )
    return found


def supports_sdpa(model_class: _Class) -> _Class:
    """Declare that a model class works with scaled dot-product attention (class decorator).

    Without `_supports_sdpa` transformers selects eager attention for classes that it does not know."""
    flagged: Any = model_class
    flagged._supports_sdpa = True
    return model_class


def has_auto_class(auto: Any, config: Any) -> bool:
    """Return whether an auto class, such as AutoModelForCausalLM, has a model class for a config.

    `_model_mapping` is the only table of it; calling the auto class instead would load the weights first."""
    return type(config) in auto._model_mapping


def is_recurrent(model: PreTrainedModel) -> bool:
    """Return whether a model keeps a recurrent state, which cannot be rolled back to one path of a tree.

    Most recurrent families set `_is_stateful`. Hybrid ones may not, but their cache has layers of a class whose name
    contains "Linear" (`LinearAttentionLayer`)."""
    layers = DynamicCache(config=model.config).layers
    return bool(getattr(model, "_is_stateful", False)) or any("Linear" in type(layer).__name__ for layer in layers)


def apply_tensor_parallelism(model: Any, mesh: Any) -> None:
    """Shard a model that is loaded already over the ranks of a mesh.

    Until transformers 5.22 the function of the same name reads the model's plan; from 5.23 on it takes the plan, with a
    name for each module, as `_resolve_parallel_plans` returns it."""
    if hasattr(model, "_resolve_parallel_plans"):
        plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
        _apply_tensor_parallelism(model, mesh, plan)
    else:
        _apply_tensor_parallelism(model, mesh)  # type: ignore[call-arg]


def is_sharded(model: Any) -> bool:
    """Return whether `from_pretrained` has spread a model over ranks, in which case it has set `_device_mesh`."""
    return getattr(model, "_device_mesh", None) is not None


PROCESSOR_SETTINGS = (
    ("TemperatureLogitsWarper", "temperature", "temperature"),
    ("TopKLogitsWarper", "top_k", "top_k"),
    ("TopPLogitsWarper", "top_p", "top_p"),
    ("MinPLogitsWarper", "min_p", "min_p"),
    ("TypicalLogitsWarper", "mass", "typical_p"),
)
"""Logits processors of transformers that are equivalent to a setting of `Policy`: the name of the class, its
undocumented attribute with the value, and the setting; in the order in which a policy applies them."""


def prefix_function(processor: Any) -> Callable[[int, Tensor], Any] | None:
    """Return the user's function in a `PrefixConstrainedLogitsProcessor`, None for any other processor.

    The processor keeps it as `_prefix_allowed_tokens_fn` and gives no other access to it."""
    function: Callable[[int, Tensor], Any] | None = getattr(processor, "_prefix_allowed_tokens_fn", None)
    return function


def find_file(repository: str, file: str) -> str | None:
    """Return the path of a file in a folder or in a repository on the hub, fetched if it is not cached; None if it is
    not there.

    `cached_file` raises for a missing file unless it is given `_raise_exceptions_for_missing_entries=False`."""
    path: str | None = cached_file(repository, file, _raise_exceptions_for_missing_entries=False)
    return path


def copy_with_children(module: Any, change: Callable[[Any], Any] = lambda child: child) -> Any:
    """Return a shallow copy of a module whose children are `change(child)` of the original's, by default the same.

    Parameters, buffers and hooks are shared. `nn.Module` keeps its children in `_modules`, which `copy.copy` shares
    between both, so that replacing a child of the copy would replace it in the original."""
    made = copy.copy(module)
    made._modules = {name: None if child is None else change(child) for name, child in module._modules.items()}
    return made


def copy_with_parameters(module: nn.Module, parameters: Mapping[str, nn.Parameter | None]) -> nn.Module:
    """Return a shallow copy of a module with these parameters, without hooks and with the forward of its class.

    Names that the module has no parameter for are left out. The private parts are `_parameters`, `_forward_hooks` and
    `_forward_pre_hooks`; transformers' tensor parallelism sets the last two and a `forward` on the instance."""
    made: Any = copy.copy(module)
    vars(made).pop("forward", None)
    made._parameters = {name: value for name, value in parameters.items() if name in module._parameters}
    made._forward_hooks, made._forward_pre_hooks = OrderedDict(), OrderedDict()
    found: nn.Module = made
    return found


def distinct_sizes() -> AbstractContextManager[None]:
    """Compile functions so that sizes which are equal in the first call may differ in later ones. By default torch
    takes them for one size, and compiles again where they differ. The setting holds for the current thread."""
    found: AbstractContextManager[None] = _patch_shapes(use_duck_shape=False)
    return found


def free_workspaces() -> None:
    """Free the workspaces of cuBLAS, which allocates new ones when it needs them.

    torch keeps one for each thread and stream, and only the private `torch._C._cuda_clearCublasWorkspaces` frees them;
    torch's own graphs of compiled functions call it in the same place as `spectr.models.graphs`. A build without CUDA
    does not have it."""
    torch._C._cuda_clearCublasWorkspaces()


def without_base(view: Tensor) -> Tensor:
    """Return a tensor over the same memory as a view, which does not know that it is a view.

    `torch.compile` inspects the base tensor of an input that is a view. The buffers of all layers are parts of one
    tensor, and a function that is compiled once for all layers must not see which part it is given. `Tensor.set_` is
    undocumented; no documented function makes a tensor over a part of a storage."""
    return view.new_empty(0).set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())
