"""transformers' own generation, which benchmarks and audits compare spectr with.

`TransformersBaseline` writes and times one text, `TransformersSampler` samples short texts for many seeds. Both run the
model without spectr's kernels and with transformers' defaults for drafts. `ReplayNet` is a transformers model whose
logits come from a function of the text, so that its generation loop can be audited without a forward pass per token.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

from spectr.errors import ArgumentError
from spectr.models.fast_kernels import stock_kernels
from spectr.models.hf import OpenedModel
from spectr.models.internals import attention_name
from spectr.models.packed import unpacked
from spectr.policy import Policy

__all__ = [
    "BaselineText",
    "ForwardTimer",
    "ReplayNet",
    "TransformersBaseline",
    "TransformersSampler",
    "greedy_text",
    "plain_rows",
    "settings_of",
]

Rows = Callable[[Sequence[tuple[int, ...]]], Tensor]
_UNFILTERED = {"top_k": 0, "top_p": 1.0}


@dataclass(slots=True)
class ForwardTimer:
    """Counts the calls of a model and the seconds inside them."""

    calls: int = 0
    seconds: float = 0.0
    _since: float = field(default=0.0, repr=False)

    @contextmanager
    def watching(self, net: torch.nn.Module) -> Iterator[None]:
        """Time every forward call while the context is open."""
        before = net.register_forward_pre_hook(lambda *_: setattr(self, "_since", time.perf_counter()))
        after = net.register_forward_hook(lambda *_: self._stop())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _stop(self) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - self._since


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings that transformers logs on every call."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _stock(net: PreTrainedModel) -> Iterator[None]:
    """Run a model with transformers' own kernels and restore spectr's afterwards."""
    tuned = attention_name(net.config) == "spectr_grouped" or any("forward" in vars(m) for m in net.modules())
    with stock_kernels(net) if tuned else nullcontext():
        yield


@contextmanager
def _configured(net: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the model's generation config, so that none of its own settings changes the distribution."""
    own = net.generation_config
    net.generation_config = config
    try:
        yield
    finally:
        net.generation_config = own


_unpacked: "WeakKeyDictionary[PreTrainedModel, Any]" = WeakKeyDictionary()


def _runnable(net: PreTrainedModel) -> PreTrainedModel:
    """Return the model that transformers runs: a copy in float32 of a model with packed weights, made once."""
    if net not in _unpacked:
        made = unpacked(net)
        _unpacked[net] = None if made is net else made
    runnable: PreTrainedModel = _unpacked[net] or net
    return runnable


@dataclass(frozen=True, slots=True)
class BaselineText:
    """One text that transformers generated."""

    tokens: list[int]
    calls: int  # of the target
    seconds: float
    target: float  # seconds inside the target, the prefill included
    draft: float  # seconds inside the assistant


@dataclass(frozen=True, slots=True)
class TransformersBaseline:
    """`model.generate` of one model: plain, with an assistant, or with prompt lookup of `lookup` tokens."""

    net: PreTrainedModel
    stops: frozenset[int] = frozenset()
    assistant: PreTrainedModel | None = None
    lookup: int | None = None

    def write(
        self, prompt: Sequence[int], seed: int, settings: Mapping[str, Any], source: Sequence[int] | None = None
    ) -> BaselineText:
        """Generate a text after `prompt`; `source` is the input of the encoder, if the model has one. `settings` are
        the temperature and other fields of a generation config, such as max_new_tokens."""
        if _runnable(self.net) is not self.net:
            return replace(self, net=_runnable(self.net)).write(prompt, seed, settings, source)
        target, draft = ForwardTimer(), ForwardTimer()
        torch.manual_seed(seed)  # transformers has no other source of randomness
        with ExitStack() as stack:
            for net, timer in ((self.net, target), (self.assistant, draft)):
                if net is not None:
                    stack.enter_context(_stock(net))
                    stack.enter_context(timer.watching(net))
            stack.enter_context(_quiet())
            stack.enter_context(_configured(self.net, self._config(prompt, settings, source)))
            start = time.perf_counter()
            tokens = self._generate(prompt, source)[0, len(prompt) :].tolist()
            seconds = time.perf_counter() - start
        return BaselineText(tokens, target.calls, seconds, target.seconds, draft.seconds)

    def _config(
        self, prompt: Sequence[int], settings: Mapping[str, Any], source: Sequence[int] | None
    ) -> GenerationConfig:
        given: dict[str, Any] = {"use_cache": True, "num_beams": 1, "pad_token_id": 0, **settings}
        if given["temperature"] > 0:
            given |= {"do_sample": True, "typical_p": 1.0, "repetition_penalty": 1.0, **_UNFILTERED}
        else:
            del given["temperature"]  # greedy is the default
        if source is not None:
            given["decoder_start_token_id"] = prompt[0]
        made: Any = GenerationConfig
        config: GenerationConfig = made(**given, eos_token_id=sorted(self.stops) or None)
        return config

    def _generate(self, prompt: Sequence[int], source: Sequence[int] | None) -> Tensor:
        net: Any = self.net
        ids = torch.tensor([list(prompt if source is None else source)], device=net.device)
        more: dict[str, Any] = {"assistant_model": self.assistant, "prompt_lookup_num_tokens": self.lookup}
        if source is not None:
            more["decoder_input_ids"] = torch.tensor([list(prompt)], device=net.device)
        given = {name: value for name, value in more.items() if value is not None}
        out: Tensor = net.generate(ids, attention_mask=torch.ones_like(ids), **given)
        return out


@torch.no_grad()
def plain_rows(opened: OpenedModel, texts: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the logits (n, V) after each text, from plain forward passes with transformers' own kernels."""
    net: Any = _runnable(opened.target.model)
    with _stock(net):
        found = [net(torch.tensor([text], device=net.device), use_cache=False).logits[0, -1] for text in texts]
    return torch.stack(found).float().cpu()


def greedy_text(opened: OpenedModel, prompt: Sequence[int], length: int) -> list[int]:
    """Return the tokens that transformers generates greedily, up to a stop token."""
    net: Any = _runnable(opened.target.model)
    ids = torch.tensor([list(prompt)], device=net.device)
    settings = {"do_sample": False, "max_new_tokens": length, "pad_token_id": 0, "eos_token_id": sorted(opened.stops)}
    with _stock(net):
        out = net.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


class _ReplayConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    model_type = "spectr_replay"


class ReplayNet(PreTrainedModel, GenerationMixin):
    """A causal model whose logits come from a function of the text. The keys of its one layer are the token ids, so
    that a cache of transformers holds the text even after it is cropped."""

    config_class = _ReplayConfig
    main_input_name = "input_ids"

    def __init__(self, rows: Rows, vocabulary: int, stops: frozenset[int] = frozenset()) -> None:
        shape: dict[str, Any] = {"vocab_size": vocabulary, "num_hidden_layers": 1, "num_attention_heads": 1}
        ends: dict[str, Any] = {"eos_token_id": sorted(stops) or None, "pad_token_id": 0, "bos_token_id": None}
        super().__init__(_ReplayConfig(hidden_size=1, **shape, **ends))  # type: ignore[call-arg]
        self.rows = rows
        self.place = torch.nn.Parameter(torch.zeros(1), requires_grad=False)  # gives the model a device and a dtype
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
        """Return the logits after each of the last `logits_to_keep` tokens, or after every new one."""
        words = input_ids.float()[:, None, :, None]
        if past_key_values is not None:
            words, _values = past_key_values.update(words, words, 0)
        text = words[0, 0, :, 0].long().tolist()
        count = logits_to_keep or input_ids.shape[1]
        ends = range(len(text) - count + 1, len(text) + 1)
        logits: Any = self.rows([tuple(text[:end]) for end in ends])[None]
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


class TransformersSampler:
    """Samples texts with transformers after one prompt, with or without an assistant model. `settings` are other
    arguments of `generate`: temperature, top_k, assistant_ensemble_weight, …"""

    def __init__(
        self, net: PreTrainedModel, prompt: Sequence[int], assistant: PreTrainedModel | None = None, **settings: Any
    ) -> None:
        self.net, self.prompt = net, list(prompt)
        helper = {} if assistant is None else {"assistant_model": assistant}
        self.settings = {"do_sample": True, **_UNFILTERED, "temperature": 1.0, "pad_token_id": 0, **settings, **helper}

    def __call__(self, seeds: Sequence[int], length: int) -> list[tuple[int, ...]]:
        """Sample one text for each seed; the state of torch's global generator is restored."""
        with torch.random.fork_rng(devices=[self.net.device] if self.net.device.type == "cuda" else []), _quiet():
            return [self._text(seed, length) for seed in seeds]

    def _text(self, seed: int, length: int) -> tuple[int, ...]:
        torch.manual_seed(seed)
        net: Any = self.net
        ids = torch.tensor([self.prompt], device=net.device)
        out = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **self.settings)
        return tuple(out[0, len(self.prompt) :].tolist())


def settings_of(policy: Policy) -> dict[str, Any]:
    """Return a policy as keyword arguments of transformers' `generate`."""
    if policy.temperature == 0 or not policy.capturable or policy.logit_bias or policy.bad_words:
        raise ArgumentError(
            "the policy must sample and use only temperature, top_k, top_p, min_p, typical_p and repetition_penalty, "
            "with which transformers is audited"
        )
    names = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty")
    found = {name: getattr(policy, name) for name in names}
    return {**found, "min_p": policy.min_p} if policy.min_p else found
