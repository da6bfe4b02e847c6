"""spectr inside `model.generate` of transformers, by one argument.

    model.generate(**inputs, custom_generate=spectr.hf.generate, drafter=draft)

transformers prepares the config, processors, stopping criteria and padding; spectr runs the decoding loop.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.coins import derived_seed
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.internals import PROCESSOR_SETTINGS, prefix_function
from spectr.pairing import as_rule, pair
from spectr.policy import Policy
from spectr.verify import Rule

__all__ = ["generate"]

Criteria = Callable[[Tensor, Any], Tensor]


@dataclass(slots=True)
class _CriteriaReader:
    """Calls the stopping criteria of transformers after every token of one row, with its padding."""

    ids: Tensor  # (1, L): the tokens of the row so far
    criteria: Criteria

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Return no text, and how many of the tokens belong to the text if it ends among them."""
        for count, token in enumerate(tokens, start=1):
            self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], 1)
            if bool(torch.as_tensor(self.criteria(self.ids, None)).all()):
                return "", count
        return "", None

    def finish(self) -> str:
        """Return no text."""
        return ""


@dataclass(frozen=True, slots=True)
class _AllowedTokens:
    """The `prefix_allowed_tokens_fn` of a row, which is called with the row's number and its padded text."""

    function: Callable[[int, Tensor], Any]
    row: int
    ids: Tensor  # (L,): the prompt, including its padding
    length: int  # of the prompt without its padding

    def __call__(self, text: list[int]) -> Any:
        return self.function(self.row, torch.cat([self.ids, self.ids.new_tensor(text[self.length :])]))


def _flat(processors: Any) -> Iterator[Any]:
    """Yield processors in order, also those in nested lists."""
    for processor in processors or ():
        if isinstance(processor, list | tuple):
            yield from _flat(processor)
        else:
            yield processor


def _setting(processor: Any) -> tuple[int, float] | None:
    """Return the index of a processor in `PROCESSOR_SETTINGS`, and its value; None if a policy has no such setting."""
    kind = type(processor)
    is_stock = kind.__module__.startswith("transformers.")
    at = next((at for at, (name, *_) in enumerate(PROCESSOR_SETTINGS) if is_stock and kind.__name__ == name), None)
    if at is None or getattr(processor, "filter_value", -torch.inf) != -torch.inf:
        return None
    value = getattr(processor, PROCESSOR_SETTINGS[at][1], None)
    return (at, value) if value and getattr(processor, "min_tokens_to_keep", 1) == 1 else None


def _split_settings(processors: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Splits off the last processors that are settings of a policy, in the order in which a policy applies them: they
    act after all others, and do not need the host."""
    rest, settings, last = list(processors), dict[str, Any](), len(PROCESSOR_SETTINGS)
    while rest and (found := _setting(rest[-1])) is not None and found[0] < last:
        last, value = found
        settings[PROCESSOR_SETTINGS[last][2]] = value
        rest.pop()
    return rest, settings


def _policies(processors: Any, ids: Tensor, prompts: Sequence[Sequence[int]], *, sampling: bool) -> list[Policy]:
    """Return a policy for each row, made from transformers' processors. A `prefix_allowed_tokens_fn` takes the number
    of the row, so each row gets its own hook; all other processors must depend on the text only."""
    every, settings = (
        _split_settings(list(_flat(processors))) if sampling else (list(_flat(processors)), {"temperature": 0.0})
    )
    functions = [function for p in every if (function := prefix_function(p)) is not None]
    if len(functions) > 1:
        raise ArgumentError(
            f"at most one prefix_allowed_tokens_fn can be used, got {len(functions)}; combine them into one function"
        )
    others = [p for p in every if prefix_function(p) is None]
    own = _own_processors(others, len(prompts))
    if not functions:
        return [Policy(**settings, processors=processors) for processors in own]
    hooks = [_AllowedTokens(functions[0], row, ids[row], len(prompt)) for row, prompt in enumerate(prompts)]
    return [
        Policy(**settings, processors=processors, allowed=hook) for processors, hook in zip(own, hooks, strict=True)
    ]


def _own_processors(processors: list[Any], rows: int) -> list[list[Any]]:
    """Return the processors of each row. From transformers 5.23 on the repetition penalty has a tensor with the padding
    of every row, which it ignores; the copy for one row has its own number. Rows with equal padding share a copy."""
    made: dict[tuple[int, int], Any] = {}

    def of_row(at: int, row: int) -> Any:
        ignored = getattr(processors[at], "prompt_ignore_length", None)
        if not isinstance(ignored, Tensor):
            return processors[at]
        key = at, int(ignored[row])
        if key not in made:
            made[key] = copy.copy(processors[at])
            made[key].prompt_ignore_length = key[1]
        return made[key]

    return [[of_row(at, row) for at in range(len(processors))] for row in range(rows)]


def _refuse(model: Any, ids: Tensor, embedded: Any, config: Any) -> None:
    if embedded is not None or ids.shape[1] == 0:
        raise ArgumentError("prompts must be given as input_ids, got inputs_embeds; drafters need tokens")
    if getattr(config, "num_beams", 1) not in (None, 1):
        raise ArgumentError(f"beam search is not supported, got num_beams={config.num_beams}; leave it at 1")
    if model.config.is_encoder_decoder:
        raise MismatchError(
            "hf.generate needs a decoder-only model, because transformers does not pass an encoder's input; use "
            "spectr.load(model, tokenizer=tokenizer) for encoder-decoder models"
        )
    if getattr(config, "return_dict_in_generate", False):
        raise ArgumentError("return_dict_in_generate is not supported; leave it off and use the tensor of ids")


def _unpadded(ids: Tensor, mask: Tensor | None) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the left padding and the prompt of each row."""
    seen = (torch.ones_like(ids) if mask is None else mask).bool()
    for row in range(len(ids)):
        yield ids[row][~seen[row]].tolist(), ids[row][seen[row]].tolist()


def _pad(config: Any, stops: frozenset[int]) -> int:
    pad = getattr(config, "pad_token_id", None)
    return int(pad if pad is not None else min(stops, default=0))


def generate(  # noqa: PLR0913  transformers passes arguments by these names, and refuses names that are missing here
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    drafter: Any = "auto",
    rule: str | Rule = "race",
    seed: int | None = None,
    drafts: int | None = None,
    length: int | None = None,
    nodes: int | None = None,
    **inputs: Any,
) -> Tensor:
    """Return token ids (B, L) like `model.generate`; to be passed as `custom_generate`.

    Without a `seed` one is drawn from torch's generator, so that `torch.manual_seed` determines the text.
    """
    from spectr.models.hf import open_loaded

    _refuse(model, input_ids, inputs.get("inputs_embeds"), generation_config)
    first = int(torch.randint(1 << 62, (1,))) if seed is None else whole("seed", seed)
    seeds = [derived_seed(first, row) for row in range(input_ids.shape[0])]
    limit = int(generation_config.max_length) - input_ids.shape[1]
    padding, prompts = zip(*_unpadded(input_ids, inputs.get("attention_mask")), strict=True)
    policies = _policies(logits_processor, input_ids, prompts, sampling=generation_config.do_sample)
    requests = [
        Request(
            prompts[row], seeds[row], limit, policies[row], padding=padding[row],
            reader=_CriteriaReader(input_ids[row : row + 1], stopping_criteria),
        )
        for row in range(len(prompts))
    ]  # fmt: skip
    opened, made = open_loaded(model), as_rule(rule)
    options = DraftOptions(drafts=drafts, length=length, nodes=nodes)
    engine = Engine(opened.target, pair(drafter, opened, made.card, options), made, rows=len(requests))
    results = engine.generate(requests)
    longest, pad = max(len(result.tokens) for result in results), _pad(generation_config, opened.stops)
    padded = [result.tokens + [pad] * (longest - len(result.tokens)) for result in results]
    return torch.cat([input_ids, input_ids.new_tensor(padded)], 1)
