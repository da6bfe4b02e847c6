"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

from spectr.draft import drafter as named_drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError
from spectr.metrics import Stats
from spectr.policy import Policy
from spectr.registry import nearest
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["LM", "Output", "load"]


@dataclass(frozen=True, slots=True)
class Output:
    """One generated text."""

    text: str
    tokens: list[int]
    finish_reason: str  # "stop" or "length"
    stats: Stats


def _policy(settings: Mapping[str, Any]) -> Policy:
    """A policy from keywords; an unknown one is refused with the nearest."""
    known = [field.name for field in fields(Policy)]
    for name in settings:
        if name not in known:
            raise ArgumentError(f"the policy has no setting {name!r}; {nearest(name, known)}")
    return Policy(**settings)


class LM:
    """A target with its tokenizer, a drafter and a rule."""

    def __init__(self, engine: Engine, tokenizer: Any) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Token ids, with the chat template applied where the model has one; `raw` for plain text."""
        if raw or not self.tokenizer.chat_template:
            return list(self.tokenizer(prompt)["input_ids"])
        turns = [{"role": "user", "content": prompt}]
        return list(
            self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        )

    @overload
    def generate(
        self, prompts: str, max_new_tokens: int = 128, seed: int = 0, *, raw: bool = False, **policy: Any
    ) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[str], max_new_tokens: int = 128, seed: int = 0, *, raw: bool = False, **policy: Any
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        max_new_tokens: int = 128,
        seed: int = 0,
        *,
        raw: bool = False,
        **policy: Any,
    ) -> Output | list[Output]:
        """An `Output` for one prompt, a list of them for several; row i uses seed + i. `policy` takes temperature,
        top_k, top_p and min_p."""
        several = [prompts] if isinstance(prompts, str) else list(prompts)
        if not several or any(not prompt for prompt in several):
            raise ArgumentError("a prompt must not be empty")
        requests = [Request(self.encode(p, raw=raw), seed + i, max_new_tokens) for i, p in enumerate(several)]
        results = self.engine.generate(requests, _policy(policy))
        outputs = [Output(self._text(r.tokens), r.tokens, r.finish_reason, r.stats) for r in results]
        return outputs[0] if isinstance(prompts, str) else outputs

    def stream(
        self, prompt: str, max_new_tokens: int = 128, seed: int = 0, *, raw: bool = False, **policy: Any
    ) -> Iterator[str]:
        """The text in pieces; never half a character. Closing the iterator cancels."""
        tokens: list[int] = []
        shown = ""
        request = Request(self.encode(prompt, raw=raw), seed, max_new_tokens)
        for step in self.engine.stream([request], _policy(policy), [Stats()]):
            tokens += step.tokens
            text = self._text(tokens)
            if text.startswith(shown) and (step.finish_reason or not text.endswith("\ufffd")):
                yield text[len(shown) :]
                shown = text

    def _text(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def load(model: str, drafter: str | Drafter = "lookup", rule: str = "race", **options: Any) -> LM:
    """A model by catalog name, hub id or local folder. `options`: dtype, and progress, a function of one sentence."""
    from spectr.models.hf import open_model

    opened = open_model(model, **options)
    made = named_drafter(drafter) if isinstance(drafter, str) else drafter
    return LM(Engine(opened.target, made, named_rule(rule), opened.stops), opened.tokenizer)
