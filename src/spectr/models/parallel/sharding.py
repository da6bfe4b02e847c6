"""From a model to its shards: the part of every weight that a rank holds, by the plan that transformers has for it."""

import os
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from spectr.errors import MismatchError
from spectr.models.internals import DistributedConfig, apply_tensor_parallelism, is_sharded
from spectr.models.parallel.group import RankGroup
from spectr.models.parallel.target import LeadingTarget, ShardedTarget

__all__ = ["check_shards", "local_device", "shard", "sharded_target", "sharding_keywords"]


def local_device(device: torch.device) -> torch.device:
    """The device of this rank: each has a GPU of its own on its machine."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device.type == "cuda" else device


def check_shards(name: str, config: Any, size: int) -> None:
    """Refuse a model whose heads cannot be dealt out evenly, or that transformers has no plan for."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder or not getattr(text, "base_model_tp_plan", None):
        raise MismatchError(
            f"{name!r} is a {config.model_type} model, for which transformers has no tensor-parallel plan; load it "
            "without tensor_parallel"
        )
    heads = int(text.num_attention_heads)
    shared = int(getattr(text, "num_key_value_heads", None) or heads)
    if heads % size or shared % size:
        fitting = [number for number in range(2, shared + 1) if heads % number == 0 and shared % number == 0]
        choices = f"one of {', '.join(map(str, fitting))}" if fitting else "1"
        raise MismatchError(
            f"tensor_parallel must divide the {heads} heads and the {shared} key-value heads of {name!r}, got {size}; "
            f"choose {choices}"
        )


def sharding_keywords(device: torch.device, size: int) -> dict[str, Any]:
    """For `from_pretrained`, so that each rank reads its shards alone; nothing where transformers would take other
    devices than the one that is meant, so that the model is loaded whole and sharded after."""
    is_native = (device.type == "cuda") == torch.cuda.is_available()
    return {"distributed_config": DistributedConfig(tp_size=size)} if is_native else {}


def shard(net: Any, group: RankGroup) -> None:
    """Keep this rank's shards of a model that is loaded whole."""
    if is_sharded(net):
        return
    mesh = init_device_mesh(group.device.type, (group.size,), mesh_dim_names=("tp",))
    is_tied = net.get_output_embeddings().weight is net.get_input_embeddings().weight
    apply_tensor_parallelism(net, mesh)  # type: ignore[no-untyped-call]
    for module in net.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if isinstance(weight, DTensor):
                setattr(module, name, nn.Parameter(_alone(weight), requires_grad=False))
    embedding, output = net.get_input_embeddings(), net.get_output_embeddings()
    if is_tied and getattr(embedding.weight, "placements", None) == getattr(output.weight, "placements", None):
        output.weight = embedding.weight


def _alone(weight: DTensor) -> DTensor:
    """The same shard in memory of its own: as it comes it may be a view of the whole."""
    local = weight.to_local().clone()
    return DTensor.from_local(
        local, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


def sharded_target(net: PreTrainedModel, group: RankGroup) -> ShardedTarget:
    """The target of this rank, once all ranks have their shards."""
    made = LeadingTarget(net, group) if group.leads else ShardedTarget(net, group)
    group.wait_for_all()
    return made
