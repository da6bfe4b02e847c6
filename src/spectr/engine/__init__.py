"""The engine turns requests into texts. Read the modules in this order to follow one request.

`request`   requests, and the steps and results that come out
`parts`     what an engine is made of: target, drafter, rule
`scheduler` queues requests and has the one thread that runs everything
`lane`      admits requests to rows that share steps, and makes room for them
`placement` decides which request is in which row, and copies shared prefixes
`prefix`    finds the row that shares the longest prefix with a prompt
`prefill`   reads prompts, a chunk at a time
`runner`    launches steps, reads them and delivers what they did
`step`      one step of all active rows: draft, score, settle
`readout`   copies what a step did to the host
`handle`    hands steps to the thread or coroutine that waits for them
`mailbox`   wakes coroutines from the thread that runs everything

`state` is a request inside a lane, `memory` and `rows` are what the device holds for its rows, `grammars` are the masks
of rows with a grammar, `record` is what a witness is given of a step, and `metrics` counts.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, product
from typing import Any

from spectr.checks import whole
from spectr.coins import seed_word
from spectr.draft.prediction import fits
from spectr.draft.traits import DrafterTraits
from spectr.engine.handle import Handle
from spectr.engine.parts import EngineParts
from spectr.engine.request import Reader, Request, Result, Step, StepTree, TokenLogprobs, TreeNode
from spectr.engine.scheduler import LOCK, Load, Scheduler
from spectr.errors import ArgumentError, MismatchError
from spectr.grammar import CompiledGrammar
from spectr.models.traits import ModelTraits
from spectr.types import Drafter, TreeModel
from spectr.verify import Rule

__all__ = [
    "LOCK",
    "Engine",
    "Handle",
    "Load",
    "Reader",
    "Request",
    "Result",
    "Step",
    "StepTree",
    "TokenLogprobs",
    "TreeNode",
]

_WARM_TOKENS = 32  # enough for several steps


class Engine:
    """A target, a drafter and a rule that fit together, and the requests that run on them, at most `rows` at once.
    `captures` says whether steps are captured and replayed as CUDA graphs; by default they are if the target is on one
    GPU."""

    def __init__(  # noqa: PLR0913 - the last two are seldom set
        self,
        target: TreeModel,
        drafter: Drafter,
        rule: Rule,
        stops: frozenset[int] = frozenset(),
        *,
        rows: int = 64,
        captures: bool | None = None,
    ) -> None:
        _check_pair(drafter, rule)
        captures = _can_capture(target, drafter) if captures is None else captures
        self.parts = EngineParts(target, drafter, rule, stops, whole("rows", rows, 1), captures)
        self.scheduler = Scheduler(self.parts)

    @property
    def target(self) -> TreeModel:
        """The model whose distribution is sampled."""
        return self.parts.target

    @property
    def drafter(self) -> Drafter:
        """The drafter, which proposes tokens."""
        return self.parts.drafter

    @property
    def rule(self) -> Rule:
        """The rule, which decides between drafts."""
        return self.parts.rule

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end every text."""
        return self.parts.stops

    def with_parts(self, **parts: Any) -> "Engine":
        """Return an engine with some parts replaced, by their names in `EngineParts`; it shares no rows with this
        one."""
        engine = copy.copy(self)
        engine.parts = replace(self.parts, **parts)
        _check_pair(engine.drafter, engine.rule)
        engine.scheduler = Scheduler(engine.parts)
        return engine

    def compile(self) -> None:
        """Compile the layers of target and drafter, and generate a few tokens so that compilation happens now."""
        traits = DrafterTraits(self.drafter)
        for model in (self.target, traits.head, traits.model):
            ModelTraits(model).compile()
        self.scheduler.close()  # its graphs hold the layers from before
        self.generate([Request([0], 0, min(4 * self.drafter.nodes, self.target.context - 1))])
        self.warm_up()

    def warm_up(self, rows: int = 1) -> None:
        """Run what the first requests need, so that they do not wait for graphs to be captured: prompts of every size,
        and steps of up to `rows` rows. Everything is run twice, because a graph is captured the second time. Does
        nothing where steps are not captured."""
        if not self.parts.captures:
            return
        from spectr.models.prefill import pass_sizes

        starts = cycle(product(range(self.target.vocabulary), repeat=2))  # so at most one token is cached already

        def run(count: int, length: int, new_tokens: int) -> None:
            length = min(length, self.target.context - new_tokens)
            prompts = [[*reversed(next(starts)), *[0] * length][:length] for _ in range(count)]
            self.generate([Request(prompt, 0, new_tokens) for prompt in prompts])

        rows = min(rows, self.parts.rows)
        run(rows, 1, 1)  # makes room, which drops graphs
        for _ in range(2):
            for count, width in pass_sizes():
                if count <= rows:
                    run(count, width, 1)
            for power in range(rows.bit_length()):
                run(1 << power, 1, _WARM_TOKENS)

    @property
    def load(self) -> Load:
        """How much the engine has to do, for monitoring."""
        return self.scheduler.load

    def submit(self, request: Request) -> Handle:
        """Queue a request, which begins as soon as there is room for it. May be called from any thread."""
        self.check(request)
        return self.submit_checked([request])[0]

    def submit_checked(self, requests: Sequence[Request]) -> list[Handle]:
        """Queue requests in this order. `check` must have accepted each of them: it is not called again, because it
        reads whole prompts."""
        return self.scheduler.submit(requests)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Run requests to their ends; if one fails, the others are cancelled."""
        for request in requests:
            self.check(request)
        handles = self.submit_checked(requests)
        try:
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def check(self, request: Request) -> None:
        """Raise if a request cannot be run, before it is queued."""
        tokens = request.tokens
        if not tokens:
            raise ArgumentError("a prompt must have at least one token; start it with the model's first token")
        whole("max_new_tokens", request.max_new_tokens, 1)
        seed_word(request.seed)
        if request.limit > self.target.context:
            raise ArgumentError(
                f"prompt and new tokens must fit into the model's {self.target.context} positions, got "
                f"{len(request.prompt)} + {request.max_new_tokens}; shorten the prompt or lower max_new_tokens"
            )
        if len(request.generated) >= request.max_new_tokens:
            raise ArgumentError(
                f"max_new_tokens includes the {len(request.generated)} tokens generated before and must be larger, got "
                f"{request.max_new_tokens}"
            )
        if max(tokens) >= self.target.vocabulary or min(tokens) < 0:
            raise ArgumentError(f"tokens of a prompt must lie in 0 … {self.target.vocabulary - 1}, got {tokens}")
        if request.prediction:
            _check_prediction(request.prediction, self.drafter, self.rule, self.target.vocabulary)
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(request, name)) is not None:
                whole(name, count, 0)
        request.policy.check_tokens(self.target.vocabulary)
        if request.grammar is not None:
            _check_grammar(request.grammar, request, self.stops | request.stop_ids, self.target.vocabulary)
        ModelTraits(self.target).check_source(request.source)


def _check_pair(drafter: Drafter, rule: Rule) -> None:
    if drafter.siblings not in rule.card.siblings:
        raise MismatchError(
            f"rule {rule.card.name!r} holds for siblings {', '.join(rule.card.siblings)}, and drafter "
            f"{drafter.name!r} draws {drafter.siblings!r}; use rule race or match, which hold for all"
        )
    if rule.card.needs_laws and not drafter.gives_laws:
        raise MismatchError(
            f"rule {rule.card.name!r} needs the distribution that each child was drawn from, and drafter "
            f"{drafter.name!r} has none; use rule race or match, or a drafter with distributions: ngram, early_exit, "
            "a model"
        )
    plan = DrafterTraits(drafter).plan
    if rule.card.text_depends_on_drafts and plan is not None and plan.shared is not None:
        raise MismatchError(
            f"rows may share a tree under rule race only: under rule {rule.card.name!r} a text would depend on the "
            "other texts of its batch; leave shared out of the plan"
        )


def _check_prediction(prediction: Sequence[int], drafter: Drafter, rule: Rule, vocabulary: int) -> None:
    if unknown := [token for token in prediction if not 0 <= token < vocabulary]:
        raise ArgumentError(f"tokens of a prediction must lie in 0 … {vocabulary - 1}, got {unknown}")
    if not fits(drafter, rule.card):
        raise MismatchError(
            f"a prediction is drafted without a draft distribution, and rule {rule.card.name!r} needs one; load the "
            "model with rule='race' (the default) or 'match', or leave the prediction out"
        )


def _check_grammar(grammar: CompiledGrammar, request: Request, stops: frozenset[int], vocabulary: int) -> None:
    if grammar.vocabulary.size != vocabulary:
        raise MismatchError(
            f"a grammar must be compiled for the {vocabulary} tokens of this model, got one for "
            f"{grammar.vocabulary.size}; compile it with this model"
        )
    if not stops:
        raise ArgumentError(
            "a text under a grammar must have a token that ends it, and this model has none; give stop_ids"
        )
    if request.policy.forced_eos_token_id:
        raise ArgumentError(
            "forced_eos_token_id must be left out under a grammar, which decides where a text may end; got "
            f"{request.policy.forced_eos_token_id}"
        )
    if request.generated and grammar.walk(request.generated, stops).has_ended:
        raise ArgumentError("a text that is continued under a grammar must not contain a stop token, and this one does")


def _can_capture(target: TreeModel, drafter: Drafter) -> bool:
    """Whether steps can be captured: the target is on a GPU and has no encoder, and no model is spread over several
    devices or processes."""
    own, traits = ModelTraits(target), DrafterTraits(drafter)
    devices = frozenset[str]().union(*(ModelTraits(model).devices for model in (target, traits.model, traits.head)))
    return target.device.type == "cuda" and not own.is_sharded and not own.has_encoder and len(devices) <= 1
