"""Split a model into shards, the part of each weight that a rank holds, by the tensor-parallel plan of transformers."""

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
    """Return the device of this rank. On CUDA every rank of a host has a GPU of its own."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device.type == "cuda" else device


def check_shards(name: str, config: Any, size: int) -> None:
    """Raise if the heads of a model cannot be divided evenly among `size` ranks, or if transformers has no
    tensor-parallel plan for it."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder or not getattr(text, "base_model_tp_plan", None):
        raise MismatchError(
            f"{name!r} is a {config.model_type} model, for which transformers has no tensor-parallel plan; load it "
            "without tensor_parallel"
        )
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    if heads % size or kv_heads % size:
        divisors = [number for number in range(2, kv_heads + 1) if heads % number == 0 and kv_heads % number == 0]
        choices = f"one of {', '.join(map(str, divisors))}" if divisors else "1"
        raise MismatchError(
            f"tensor_parallel must divide the {heads} heads and the {kv_heads} key-value heads of {name!r}, got {size}"
            f"; choose {choices}"
        )


def sharding_keywords(device: torch.device, size: int) -> dict[str, Any]:
    """Return keywords for `from_pretrained` with which each rank reads only its own shards.

    They are empty if transformers would not use the kind of `device`: it shards onto GPUs wherever there are any. The
    model is then loaded in full, and `shard` splits it afterwards."""
    is_native = (device.type == "cuda") == torch.cuda.is_available()
    return {"distributed_config": DistributedConfig(tp_size=size)} if is_native else {}


def shard(net: Any, group: RankGroup) -> None:
    """Reduce a model that was loaded in full to this rank's shards. Do nothing if it is sharded already."""
    if is_sharded(net):
        return
    mesh = init_device_mesh(group.device.type, (group.size,), mesh_dim_names=("tp",))
    is_tied = net.get_output_embeddings().weight is net.get_input_embeddings().weight
    if is_tied:  # transformers shards parameters by name, and a tied one has the name of the embedding alone
        net.get_output_embeddings().weight = nn.Parameter(
            net.get_input_embeddings().weight.detach(), requires_grad=False
        )
    apply_tensor_parallelism(net, mesh)
    for module in net.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if isinstance(weight, DTensor):
                setattr(module, name, nn.Parameter(_own_copy(weight), requires_grad=False))
    embedding, output = net.get_input_embeddings(), net.get_output_embeddings()
    if is_tied and getattr(embedding.weight, "placements", None) == getattr(output.weight, "placements", None):
        output.weight = embedding.weight


def _own_copy(weight: DTensor) -> DTensor:
    """Copy a shard into its own memory. It may be a view of the full weight, which would otherwise stay allocated."""
    local = weight.to_local().clone()
    return DTensor.from_local(
        local, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


def sharded_target(net: PreTrainedModel, group: RankGroup) -> ShardedTarget:
    """Return the target of this rank, once all ranks have their shards."""
    target = LeadingTarget(net, group) if group.leads else ShardedTarget(net, group)
    group.wait_for_all()
    return target
