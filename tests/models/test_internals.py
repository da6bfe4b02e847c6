"""Every private name of transformers and torch that `spectr.models.internals` uses exists and works as expected.

The first tests name what an installed version lacks, without importing that module. The others check the behaviour.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from tests.architectures import tiny_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BloomConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedModel,
    T5Config,
)
from transformers.generation import logits_process

import spectr.models

MODULES = {
    "torch.fx.experimental._config": ["patch"],
    "transformers.distributed.configuration_utils": ["DistributedConfig"],
    "transformers.distributed.tensor_parallel": ["apply_tensor_parallelism"],
    "transformers.integrations.sdpa_attention": ["sdpa_attention_forward"],
    "transformers.masking_utils": ["sdpa_mask"],
    "transformers.utils.hub": ["cached_file"],
    "transformers.modeling_utils": ["ALL_ATTENTION_FUNCTIONS"],
    "transformers.models.bloom.modeling_bloom": ["build_alibi_tensor"],
    "transformers.models.falcon.modeling_falcon": ["build_alibi_tensor"],
    "transformers.models.llama.modeling_llama": [
        "LlamaAttention", "LlamaDecoderLayer", "LlamaRMSNorm", "LlamaRotaryEmbedding",
    ],
    "transformers.models.qwen3.modeling_qwen3": [
        "Qwen3Attention", "Qwen3DecoderLayer", "Qwen3MLP", "eager_attention_forward", "rotate_half",
    ],
}  # fmt: skip
ATTRIBUTES = {
    "_attn_implementation": lambda: tiny_model("llama").config,
    "_device_mesh": lambda: PreTrainedModel,
    "_forward_hooks": lambda: nn.Linear(1, 1),
    "_forward_pre_hooks": lambda: nn.Linear(1, 1),
    "_is_stateful": lambda: PreTrainedModel,
    "_model_mapping": lambda: AutoModelForCausalLM,
    "_modules": lambda: nn.Linear(1, 1),
    "_parameters": lambda: nn.Linear(1, 1),
    "_prefix_allowed_tokens_fn": lambda: logits_process.PrefixConstrainedLogitsProcessor(lambda _, __: [1], 1),
    "_supports_sdpa": lambda: PreTrainedModel,
    "set_": lambda: torch.zeros(1),
}
CUDA_ONLY = {"_C": lambda: torch, "_cuda_clearCublasWorkspaces": lambda: torch._C}
"""Attributes that a build of torch without CUDA need not have."""
SINCE = {"_resolve_parallel_plans": (5, 23)}
"""Attributes of models that newer versions of transformers have, and from which version on they are used."""
NAMES = [(module, name) for module, names in MODULES.items() for name in names]
VERSIONS = f"transformers {transformers.__version__}, torch {torch.__version__}"


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{m.rpartition('.')[2]}.{n}" for m, n in NAMES])
def test_this_name_still_exists(module: str, name: str) -> None:
    try:
        found = import_module(module)
    except ImportError as error:
        pytest.fail(f"{VERSIONS}: no module {module}, of which spectr.models.internals uses {name} ({error})")
    assert hasattr(found, name), f"{VERSIONS}: {module} has no {name}, which spectr.models.internals uses"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_objects_still_have_this_attribute(name: str) -> None:
    owner = ATTRIBUTES[name]()
    assert hasattr(owner, name), f"{VERSIONS}: {owner!r} has no {name}, which spectr.models.internals uses"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CUDA_ONLY)
def test_builds_with_cuda_have_this_attribute(name: str) -> None:
    assert hasattr(CUDA_ONLY[name](), name), f"{VERSIONS}: no {name}, which spectr.models.internals uses"


@pytest.mark.parametrize("name", SINCE)
def test_models_have_this_attribute_since_its_version(name: str) -> None:
    here = tuple(map(int, transformers.__version__.split(".")[:2]))
    assert hasattr(PreTrainedModel, name) == (here >= SINCE[name]), (
        f"{VERSIONS}: {name}, used by spectr.models.internals"
    )


def test_every_name_that_is_used_is_tested() -> None:
    tree = ast.parse((Path(spectr.models.__file__).parent / "internals.py").read_text(encoding="utf-8"))
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("transformers.", "torch."))
        for alias in node.names
    }
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    asked = [
        node.args[1] for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
    ]
    read |= {part.value for part in asked if isinstance(part, ast.Constant)}
    private = {name for name in read if name.startswith("_") and not name.startswith("__")} | ({"set_"} & read)
    assert imported == set(NAMES)
    assert private == {*ATTRIBUTES, *CUDA_ONLY, *SINCE}


def test_the_selected_attention_can_be_named_and_called() -> None:
    from spectr.models.internals import attention_function, attention_name

    model = tiny_model("qwen3")
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    attended = []
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        assert attention_name(model.config) == name
        layer = model.model.layers[0].self_attn
        attend = attention_function(model.config)
        attended.append(attend(layer, query, key, key, torch.zeros(1, 1, 3, 3), dropout=0.0, scaling=0.5)[0])
    assert torch.allclose(*attended, atol=1e-6)


def test_a_class_that_supports_sdpa_gets_it() -> None:
    from spectr.models.internals import attention_name, supports_sdpa

    class Plain(PreTrainedModel):
        config_class = LlamaConfig

    @supports_sdpa
    class Flagged(PreTrainedModel):
        config_class = LlamaConfig

    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 4}
    assert attention_name(Plain(LlamaConfig(**shape)).config) == "eager"
    assert attention_name(Flagged(LlamaConfig(**shape)).config) == "sdpa"


def test_the_sdpa_mask_can_be_kept_where_it_may_be_left_out() -> None:
    """`sdpa_mask` returns an explicit causal mask if skipping it is disabled."""
    from spectr.models.internals import sdpa_mask

    shape = {"batch_size": 1, "q_length": 3, "kv_length": 3, "device": torch.device("cpu")}
    mask = sdpa_mask(**shape, allow_is_causal_skip=False)
    assert mask is not None
    assert torch.equal(mask[0, 0], torch.ones(3, 3).tril().bool())


def test_auto_classes_know_which_configs_they_load() -> None:
    from spectr.models.internals import has_auto_class

    assert has_auto_class(AutoModelForCausalLM, LlamaConfig())
    assert has_auto_class(AutoModelForSeq2SeqLM, T5Config())
    assert not has_auto_class(AutoModelForCausalLM, T5Config())
    assert not has_auto_class(AutoModelForSeq2SeqLM, LlamaConfig())


HYBRID = {
    "vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
}  # fmt: skip


def test_recurrent_models_are_told_from_attention_models() -> None:
    from spectr.models.internals import is_recurrent

    mamba = MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=4)
    hybrid = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_next", **HYBRID))
    assert is_recurrent(AutoModelForCausalLM.from_config(mamba))
    assert is_recurrent(hybrid)
    hybrid._is_stateful = False  # then only the layers of its cache show it
    assert is_recurrent(hybrid)
    assert not is_recurrent(tiny_model("llama"))


def test_a_model_of_one_process_is_not_sharded() -> None:
    from spectr.models.internals import DistributedConfig, is_sharded

    assert not is_sharded(tiny_model("llama"))
    assert DistributedConfig(tp_size=2).tp_size == 2


def test_the_function_of_a_prefix_constraint_is_found() -> None:
    from spectr.models.internals import prefix_function

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        return [row, int(ids[-1])]

    assert prefix_function(logits_process.PrefixConstrainedLogitsProcessor(allowed, num_beams=1)) is allowed
    assert prefix_function(logits_process.TopKLogitsWarper(3)) is None


@pytest.mark.parametrize("family", ["bloom", "falcon"])
def test_alibi_slopes_are_the_bias_of_position_one(family: str) -> None:
    from spectr.models.internals import bloom_alibi, falcon_alibi

    build = bloom_alibi if family == "bloom" else falcon_alibi
    bias = build(torch.ones(1, 3, dtype=torch.int64), 4, torch.float32).view(4, 3)
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)])  # Press et al. 2022 for 4 heads
    assert torch.allclose(bias, slopes[:, None] * torch.arange(3), rtol=1e-2)  # Falcon rounds to bfloat16


def test_files_that_are_not_there_are_no_error(tmp_path: Path) -> None:
    """`find_file` returns None for a file that does not exist."""
    from spectr.models.internals import find_file

    (tmp_path / "config.json").write_text("{}")
    assert find_file(str(tmp_path), "config.json") == str(tmp_path / "config.json")
    assert find_file(str(tmp_path), "model.safetensors") is None


def test_copies_have_children_of_their_own_and_share_weights() -> None:
    from spectr.models.internals import copy_with_children

    original = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    first, same = original[0], copy_with_children(original)
    same[0] = nn.Identity()
    assert original[0] is first
    changed = copy_with_children(original, lambda child: nn.Identity() if isinstance(child, nn.ReLU) else child)
    assert changed[0].weight is first.weight
    assert isinstance(changed[1], nn.Identity)
    assert isinstance(original[1], nn.ReLU)


def test_copies_with_other_parameters_have_no_hooks_and_the_forward_of_the_class() -> None:
    from spectr.models.internals import copy_with_parameters

    original = nn.Linear(2, 2)
    original.register_forward_hook(lambda *_: torch.zeros(2))
    original.register_forward_pre_hook(lambda *_: (torch.zeros(2),))
    original.forward = lambda rows: rows * torch.nan  # type: ignore[method-assign]
    weights = {"weight": nn.Parameter(torch.eye(2)), "bias": nn.Parameter(torch.ones(2))}
    made = copy_with_parameters(original, weights)
    assert made(torch.tensor([3.0, 4.0])).tolist() == [4.0, 5.0]
    assert torch.isnan(original.forward(torch.ones(2))).all()
    assert not torch.equal(original.weight, torch.eye(2))
    table = copy_with_parameters(nn.Embedding(2, 2), weights)
    assert [name for name, _ in table.named_parameters()] == ["weight"]  # an embedding has no bias


def test_a_tensor_without_base_shares_the_memory_of_the_view() -> None:
    from spectr.models.internals import without_base

    whole = torch.arange(12.0).view(3, 4)
    part = without_base(whole[1:, ::2])
    assert part._base is None
    assert whole[1:]._base is not None
    part[0, 1] = -1.0
    assert whole[1, 2].item() == -1.0
    assert part.tolist() == [[4.0, -1.0], [8.0, 10.0]]


def test_sizes_are_distinct_in_this_thread_and_only_there() -> None:
    from torch.fx.experimental import _config

    from spectr.models.internals import distinct_sizes

    with distinct_sizes():
        assert not _config.use_duck_shape
    assert _config.use_duck_shape


def test_processors_keep_their_values_where_spectr_reads_them() -> None:
    from spectr.models.internals import PROCESSOR_SETTINGS

    given = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5}
    for kind, attribute, setting in PROCESSOR_SETTINGS:
        made = getattr(logits_process, kind)(given[setting])
        assert getattr(made, attribute) == given[setting], f"{VERSIONS}: {kind} has no {attribute}"


def test_bloom_blocks_are_where_the_driver_hooks_them() -> None:
    model = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=8, hidden_size=8, n_layer=2, n_head=2))
    assert len(model.base_model.h) == 2
