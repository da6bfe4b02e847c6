"""The model of a server: its name, its tokenizers, and the variants of it that single requests name."""

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as package_version
from typing import Any, TypeVar

import torch

from spectr.audit.witness import Witness
from spectr.draft.adaptive import SwitchingDrafter
from spectr.draft.options import DraftOptions
from spectr.engine import Engine
from spectr.errors import SpectrError
from spectr.lm import LM
from spectr.models.packed import packed_bytes
from spectr.pairing import as_rule, pair
from spectr.registry import nearest
from spectr.serve.errors import ApiError
from spectr.serve.grammars import GrammarCache
from spectr.serve.protocol import SpeculationFields
from spectr.serve.settings import ServerSettings
from spectr.serve.workers import Workers
from spectr.verify import RULES
from spectr.version import __version__

__all__ = ["DRAFTERS", "Service", "Variant"]

DRAFTERS = ("auto", "none", "lookup", "ngram")
"""Drafters that a request may name. None of them is loaded from a file or a network."""

_VARIANTS = 4  # engines besides the server's own that are kept
_FAILURES = 3  # of the engine in a row, after which the server is not ready
_TOKEN_CHARACTERS = 16  # of a prompt for each token of the context; texts have about four
_LEAST_CHARACTERS = 1 << 16  # that a text may have however short the context is
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule, a drafter and a size of tree; None where the server's own is meant."""

    rule: str | None = None
    drafter: str | None = None
    nodes: int | None = None


class Service:
    """The model that answers requests."""

    def __init__(self, lm: LM, settings: ServerSettings) -> None:
        self.witness = Witness(settings.audit_share) if settings.audit_share else None
        self.lm, self.settings = self._with_witness(lm), settings
        self.name = settings.name or getattr(lm.opened.target.model, "name_or_path", "") or "model"
        self.created = int(time.time())
        self.is_draining = False
        self.is_warm = False
        self._variants: OrderedDict[Variant, LM] = OrderedDict()
        self._making = threading.Lock()
        self._workers = Workers(2, max(1, settings.limits.queue))
        self.failures = 0  # of the engine, since a request last succeeded
        self._local = threading.local()
        self.grammars = GrammarCache(self.lm, settings.limits)
        self.handler: Any = None  # the `RequestHandler`, once there is an application

    @property
    def context(self) -> int:
        """Most tokens of prompt and text."""
        return self.lm.engine.target.context

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the weights."""
        return self.lm.opened.target.digest()

    @property
    def shown_fingerprint(self) -> str:
        """The digest as responses carry it."""
        return f"fp_{self.fingerprint[:16]}"

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What the numbers of a text depend on besides the weights."""
        target: Any = self.lm.opened.target
        net, ranks = target.model, {"tensor_parallel": target.group.size} if target.is_sharded else {}
        device = net.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        dtype = str(net.dtype).removeprefix("torch.")
        weights = sorted(packed_bytes(net)) or [dtype]  # as they are stored
        return {"dtype": dtype, "weights": weights, "device": device.type, "hardware": name, **ranks}

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of spectr, torch and transformers."""
        return {"spectr": __version__, "torch": torch.__version__, "transformers": package_version("transformers")}

    @property
    def audit_counts(self) -> dict[str, float]:
        """Counts of the self-audit; empty if there is none."""
        return {} if self.witness is None else self.witness.counts

    def _with_witness(self, lm: LM) -> LM:
        """The same model, with a share of its steps checked."""
        if self.witness is None:
            return lm
        made = copy.copy(lm)
        made.engine = lm.engine.with_parts(witness=self.witness)
        return made

    @property
    def not_ready(self) -> str | None:
        """Why the server should get no requests; None if it should."""
        if not self.is_warm:
            return "the model is not warm yet"
        if self.is_draining:
            return "the server is shutting down"
        if self.failures >= _FAILURES:
            return f"the engine failed in the last {self.failures} requests; the log says why"
        if self.audit_counts.get("violations", 0):
            return "the self-audit found a step that sampled from the wrong distribution; the log has the step"
        return None

    def check_length(self, characters: int, param: str) -> None:
        """Refuse a text that cannot fit into the context, before it is tokenized."""
        most = max(_LEAST_CHARACTERS, _TOKEN_CHARACTERS * self.context)
        if characters > most:
            raise ApiError(400, f"{param} must have at most {most} characters for this context, got {characters}; "
                           "shorten it", param, "context_length_exceeded")  # fmt: skip

    @property
    def is_ready(self) -> bool:
        """Whether it should get requests."""
        return self.not_ready is None

    def warm_up(self) -> None:
        """Generate a few tokens, so that the first client does not wait for one-time work."""
        self.lm.generate([0], max_new_tokens=min(8, self.context - 1), seed=0)
        self.lm.engine.warm_up(self.lm.engine.parts.rows)
        _ = self.fingerprint
        with suppress(SpectrError):  # without xgrammar or a tokenizer, requests for grammars are refused one by one
            self.grammars.prepare()
        with suppress(SpectrError):  # so are requests with tools, if the chat template has no place for them
            _ = self.lm.call_form
        self.is_warm = True

    def check_name(self, name: str | None) -> None:
        """Refuse a model that is not this one."""
        if name is not None and name != self.name:
            raise ApiError(404, f"there is no model {name[:200]!r}; this server has {self.name!r}", "model",
                           "model_not_found")  # fmt: skip

    async def in_worker(self, work: Callable[[LM], Found], tenant: str) -> Found:
        """Run a function in a thread that has a tokenizer of its own, so that neither the event loop nor the engine
        waits. Keys take turns."""
        return await self._workers.run(tenant, lambda: self._with_tokenizer(work))

    def _with_tokenizer(self, work: Callable[[LM], Found]) -> Found:
        if not hasattr(self._local, "lm"):
            self._local.lm = copy.copy(self.lm)
            with self._making:
                self._local.lm.tokenizer = copy.deepcopy(self.lm.tokenizer)
        return work(self._local.lm)

    def variant(self, speculation: SpeculationFields | None) -> LM:
        """The model with the rule, drafter and tree that a request names. The first call makes an engine, so that it
        belongs in a thread."""
        wanted = _checked(speculation)
        if wanted == Variant():
            return self.lm
        with self._making:
            if wanted not in self._variants:
                self._variants[wanted] = self._made(wanted)
            self._variants.move_to_end(wanted)
            while len(self._variants) > _VARIANTS:
                self._variants.popitem(last=False)
            return self._variants[wanted]

    def _made(self, wanted: Variant) -> LM:
        own = self.lm.engine
        rule = own.rule if wanted.rule is None else as_rule(wanted.rule)
        fits = own.drafter.siblings in rule.card.siblings
        if rule.card.text_depends_on_drafts and isinstance(own.drafter, SwitchingDrafter):
            fits = False  # the text would depend on the times of earlier steps
        if wanted.drafter is None and wanted.nodes is None and fits:
            engine = own.with_parts(rule=rule)
        else:
            options = DraftOptions(nodes=None if wanted.drafter == "none" else wanted.nodes)
            drafter = pair(wanted.drafter or "auto", self.lm.opened, rule.card, options)
            engine = Engine(own.target, drafter, rule, own.stops, rows=min(8, own.parts.rows))
        made = copy.copy(self.lm)
        made.engine = engine
        return self._with_witness(made)

    def end(self) -> None:
        """Answer all requests that run with an error. From the event loop."""
        self.handler.shutdown.begin()

    def close(self) -> None:
        """End the threads."""
        if self.witness is not None:
            self.witness.close()
        self.grammars.close()
        self._workers.close()


def _checked(speculation: SpeculationFields | None) -> Variant:
    """The variant that a request names, if it is allowed."""
    if speculation is None:
        return Variant()
    rule, drafter = speculation.rule, speculation.drafter
    if rule is not None:
        if rule not in RULES.names():
            raise ApiError(400, f"there is no rule {rule[:80]!r}; {nearest(rule[:80], RULES.names())}",
                           "spectr.rule", "invalid_value")  # fmt: skip
        if not as_rule(rule).card.lossless:
            raise ApiError(400, f"rule {rule!r} is lossy: it would change the distribution of the text; choose "
                           "race, optimal or kseq", "spectr.rule", "invalid_value")  # fmt: skip
    if drafter is not None and drafter not in DRAFTERS:
        raise ApiError(400, f"drafter must be one of {', '.join(DRAFTERS)}, got {drafter[:80]!r}",
                       "spectr.drafter", "invalid_value")  # fmt: skip
    return Variant(rule, None if drafter == "auto" else drafter, speculation.nodes)
