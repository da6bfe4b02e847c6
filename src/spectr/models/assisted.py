"""transformers' own ways to generate, for those who compare with them: plain, greedy, and with an assistant model.

`ReplayNet` is a model of transformers whose rows come from a function of the text, so that its generation loop, too,
can be run over many seeds without paying for a forward pass each time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from spectr.errors import ArgumentError
from spectr.models.hf import OpenedModel
from spectr.models.theirs import quiet
from spectr.models.tuned import untuned
from spectr.policy import Policy

__all__ = ["ReplayNet", "TransformersSampler", "greedy_text", "plain_rows", "settings_of"]

Rows = Callable[[Sequence[tuple[int, ...]]], Tensor]


@contextmanager
def _as_it_came(net: PreTrainedModel) -> Iterator[None]:
    """The model as transformers runs it, and then as it was."""
    tuned = net.config._attn_implementation == "spectr_grouped" or any("forward" in vars(m) for m in net.modules())
    with untuned(net) if tuned else nullcontext():
        yield


@torch.no_grad()
def plain_rows(opened: OpenedModel, texts: Sequence[tuple[int, ...]]) -> Tensor:
    """Logits (n, V) after texts, each by a plain forward pass of the model as transformers runs it."""
    net: Any = opened.target.model
    with _as_it_came(net):
        found = [net(torch.tensor([text], device=net.device), use_cache=False).logits[0, -1] for text in texts]
    return torch.stack(found).float().cpu()


def greedy_text(opened: OpenedModel, prompt: Sequence[int], length: int) -> list[int]:
    """What transformers generates greedily, up to a stop token."""
    net: Any = opened.target.model
    ids = torch.tensor([list(prompt)], device=net.device)
    settings = {"do_sample": False, "max_new_tokens": length, "pad_token_id": 0, "eos_token_id": sorted(opened.stops)}
    with _as_it_came(net):
        out = net.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


class _ReplayConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    model_type = "spectr_replay"


class ReplayNet(PreTrainedModel, GenerationMixin):
    """A causal model whose rows are looked up. Its one layer attends to nothing: its keys are the token ids, so that a
    cache of transformers, cropped as it likes, remembers the text."""

    config_class = _ReplayConfig
    main_input_name = "input_ids"

    def __init__(self, rows: Rows, vocabulary: int, stops: frozenset[int] = frozenset()) -> None:
        shape: dict[str, Any] = {"vocab_size": vocabulary, "num_hidden_layers": 1, "num_attention_heads": 1}
        ends: dict[str, Any] = {"eos_token_id": sorted(stops) or None, "pad_token_id": 0, "bos_token_id": None}
        super().__init__(_ReplayConfig(hidden_size=1, **shape, **ends))  # type: ignore[call-arg]
        self.rows = rows
        self.place = torch.nn.Parameter(torch.zeros(1), requires_grad=False)  # where and in which dtype the model is
        self.eval()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Rows after each of the last `logits_to_keep` tokens, or after every new one."""
        words = input_ids.float()[:, None, :, None]
        if past_key_values is not None:
            words, _values = past_key_values.update(words, words, 0)
        text = words[0, 0, :, 0].long().tolist()
        count = logits_to_keep or input_ids.shape[1]
        ends = range(len(text) - count + 1, len(text) + 1)
        logits: Any = self.rows([tuple(text[:end]) for end in ends])[None]
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


class TransformersSampler:
    """Texts sampled by transformers after one prompt, with an assistant model or with none.

    `settings`: what `generate` takes besides: temperature, top_k, assistant_ensemble_weight, …"""

    def __init__(
        self, net: PreTrainedModel, prompt: Sequence[int], assistant: PreTrainedModel | None = None, **settings: Any
    ) -> None:
        self.net, self.prompt, self.assistant = net, list(prompt), assistant
        self.settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0, **settings}

    def __call__(self, seeds: Sequence[int], length: int) -> list[tuple[int, ...]]:
        """One call for each seed; the generator's state is given back as it was."""
        with torch.random.fork_rng(devices=[self.net.device] if self.net.device.type == "cuda" else []), quiet():
            return [self._text(seed, length) for seed in seeds]

    def _text(self, seed: int, length: int) -> tuple[int, ...]:
        torch.manual_seed(seed)
        net: Any = self.net
        ids = torch.tensor([self.prompt], device=net.device)
        more = {} if self.assistant is None else {"assistant_model": self.assistant}
        out = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **self.settings, **more)
        return tuple(out[0, len(self.prompt) :].tolist())


def settings_of(policy: Policy) -> dict[str, Any]:
    """A policy in the words of transformers' `generate`."""
    if policy.temperature == 0 or not policy.capturable or policy.logit_bias or policy.bad_words:
        raise ArgumentError("transformers is audited with temperature, top_k, top_p, min_p, typical_p alone, sampling")
    names = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty")
    found = {name: getattr(policy, name) for name in names}
    return {**found, "min_p": policy.min_p} if policy.min_p else found
