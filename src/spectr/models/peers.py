"""transformers' own ways to generate, asked for the same text as spectr: what benchmarks compare with.

Each runs as it comes: the model without what spectr did to it, and transformers' own defaults for drafts.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from spectr.models.theirs import Clock, quiet
from spectr.models.tuned import untuned

__all__ = ["Peer", "PeerText"]

_NEUTRAL = {
    "top_k": 0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1, "use_cache": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PeerText:
    """One text of transformers."""

    tokens: list[int]
    calls: int  # of the target
    seconds: float
    target: float  # seconds inside the target, the reading of the prompt included
    draft: float  # seconds inside the assistant


@contextmanager
def _configured(net: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """The model with this generation config, so that nothing of its own says what the law is."""
    own = net.generation_config
    net.generation_config = config
    try:
        yield
    finally:
        net.generation_config = own


@dataclass(frozen=True, slots=True)
class Peer:
    """`model.generate` of one model, plain, with an assistant, or with prompt lookup of so many tokens."""

    net: PreTrainedModel
    stops: frozenset[int]
    assistant: PreTrainedModel | None = None
    lookup: int | None = None

    def write(self, prompt: list[int], source: list[int] | None, settings: dict[str, Any], seed: int) -> PeerText:
        """A text after `prompt`, or of an encoder-decoder model in answer to `source`; `settings`: temperature and
        max_new_tokens."""
        ids = torch.tensor([prompt if source is None else source], device=self.net.device)
        clocks = target, draft = Clock(), Clock()
        torch.manual_seed(seed)  # transformers knows no other randomness
        with ExitStack() as stack:
            for net, clock in zip((self.net, self.assistant), clocks, strict=True):
                if net is not None:
                    stack.enter_context(untuned(net))
                    stack.enter_context(clock.watching(net))
            stack.enter_context(quiet())
            stack.enter_context(_configured(self.net, self._config(prompt, source, settings)))
            start = time.perf_counter()
            out = self._generate(ids, prompt, source)
            tokens = out[0, len(prompt) :].tolist()
            seconds = time.perf_counter() - start
        return PeerText(tokens, target.calls, seconds, target.seconds, draft.seconds)

    def _config(self, prompt: list[int], source: list[int] | None, settings: dict[str, Any]) -> GenerationConfig:
        heat = settings["temperature"]
        law = {"do_sample": True, "temperature": heat, **_NEUTRAL} if heat > 0 else {"do_sample": False, "num_beams": 1}
        start = {} if source is None else {"decoder_start_token_id": prompt[0]}
        stops = sorted(self.stops) or None
        most = settings["max_new_tokens"]
        made: Any = GenerationConfig
        config: GenerationConfig = made(**law, **start, max_new_tokens=most, eos_token_id=stops, pad_token_id=0)
        return config

    def _generate(self, ids: Tensor, prompt: list[int], source: list[int] | None) -> Tensor:
        net: Any = self.net
        more: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}
        if source is not None:
            more["decoder_input_ids"] = torch.tensor([prompt], device=ids.device)
        if self.assistant is not None:
            more["assistant_model"] = self.assistant
        if self.lookup is not None:
            more["prompt_lookup_num_tokens"] = self.lookup
        out: Tensor = net.generate(ids, **more)
        return out
