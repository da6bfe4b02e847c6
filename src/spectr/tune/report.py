"""What a run of the planner found, as data: the profile that `spectr.load` takes, and everything it follows from."""

import platform
from collections.abc import Sequence
from typing import Any

import torch

from spectr.lm import LM
from spectr.models.trained import fingerprint
from spectr.tune.planner import Found, chosen, profile_of
from spectr.tune.study import Study
from spectr.tune.ways import Bench

__all__ = ["about", "as_data"]


def about(lm: LM, study: Study) -> dict[str, Any]:
    """Where and on what it was measured."""
    net = lm.opened.target.model
    return {
        "dtype": str(net.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "temperature": study.temperature,
        "texts": len(study.prompts),
        "tokens": study.tokens,
    }


def as_data(bench: Bench, study: Study, found: Sequence[Found], target: str) -> dict[str, Any]:
    """A profile, and what it follows from."""
    net = bench.lm.opened.target.model
    profile = profile_of(found, fingerprint(net), net.device.type)
    plain = [one.measured[0].speed.tokens_per_second for one in found]
    return {
        "what": "a way to decode, found by spectr tune; spectr.load takes this file as plan",
        "target": target,
        "drafters": list(bench.drafters),
        "rules": list(bench.rules),
        **profile.as_data(),
        **about(bench.lm, study),
        "chosen": [
            {**one.as_data(), "times_plain": one.speed.tokens_per_second / speed}
            for one, speed in zip(chosen(found), plain, strict=True)
        ],
        "considered": [len(one.expected) for one in found],
        "left_out": bench.left_out,
        "measured": [one.as_data() for each in found for one in each.measured],
        "costs": [one.costs.as_data() for one in found],
    }
