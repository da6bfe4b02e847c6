"""spectr inside `model.generate`: one argument in code that uses transformers already.

    model.generate(**inputs, custom_generate=spectr.hf.generate, drafter=draft)

transformers prepares everything (config, processors, stopping criteria, padding) and hands it over; the loop is ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.engine import Engine, Job, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.pairing import DraftOptions, pair
from spectr.policy import Policy
from spectr.verify import rule as named_rule

__all__ = ["generate"]

Criteria = Callable[[Tensor, Any], Tensor]


@dataclass(slots=True)
class _Ends:
    """Asks transformers' stopping criteria after every token of one row, padding included as they expect."""

    ids: Tensor  # (1, L): what the row has so far
    criteria: Criteria

    def __call__(self, tokens: list[int]) -> int | None:
        for count, token in enumerate(tokens, start=1):
            self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], 1)
            if bool(torch.as_tensor(self.criteria(self.ids, None)).all()):
                return count
        return None


def _refuse(model: Any, config: Any) -> None:
    if getattr(config, "num_beams", 1) not in (None, 1):
        raise ArgumentError(f"beam search is not offered, got num_beams={config.num_beams}; leave it at 1")
    if model.config.is_encoder_decoder:
        raise MismatchError(
            "transformers hands over an encoder's output and not the text it read; give encoder-decoder models to "
            "spectr.load(model, tokenizer=tokenizer)"
        )
    if getattr(config, "return_dict_in_generate", False):
        raise ArgumentError("return_dict_in_generate is not offered; leave it off and take the tensor of ids")


def _requests(ids: Tensor, mask: Tensor | None, seeds: Sequence[int], limit: int, criteria: Criteria) -> list[Request]:
    """A request for each row, without its left padding."""
    seen = torch.ones_like(ids) if mask is None else mask
    found = []
    for row, seed in enumerate(seeds):
        real = seen[row].bool()
        padding, prompt = ids[row][~real].tolist(), ids[row][real].tolist()
        found.append(Request(prompt, seed, limit, padding=padding, ends=_Ends(ids[row : row + 1], criteria)))
    return found


def _pad(config: Any, stops: frozenset[int]) -> int:
    pad = getattr(config, "pad_token_id", None)
    return int(pad if pad is not None else min(stops, default=0))


def generate(  # noqa: PLR0913  transformers passes by these names, and refuses what is not spelled out
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    drafter: Any = "lookup",
    rule: str = "race",
    seed: int | None = None,
    drafts: int | None = None,
    length: int | None = None,
    nodes: int | None = None,
    **inputs: Any,
) -> Tensor:
    """Token ids (B, L) as `model.generate` returns them; for `custom_generate`.

    Without a `seed` one is drawn from torch's generator, so `torch.manual_seed` fixes the text.
    """
    from spectr.models.hf import open_loaded

    _refuse(model, generation_config)
    opened, made = open_loaded(model), named_rule(rule)
    options = DraftOptions(drafts=drafts, length=length, nodes=nodes)
    engine = Engine(opened.target, pair(drafter, opened, made.card, options), made)
    if seed is None:
        seed = int(torch.randint(1 << 62, (1,)))
    seeds = range(seed, seed + input_ids.shape[0])
    limit = int(generation_config.max_length) - input_ids.shape[1]
    policy = Policy(
        1.0 if generation_config.do_sample else 0.0, processors=[logits_processor] if logits_processor else []
    )
    results = engine.generate(
        Job(_requests(input_ids, inputs.get("attention_mask"), seeds, limit, stopping_criteria), policy)
    )
    longest, pad = max(len(result.tokens) for result in results), _pad(generation_config, opened.stops)
    fresh = [result.tokens + [pad] * (longest - len(result.tokens)) for result in results]
    return torch.cat([input_ids, input_ids.new_tensor(fresh)], 1)
