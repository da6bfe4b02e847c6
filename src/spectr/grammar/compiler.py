"""From a grammar to what masks are computed with, for one vocabulary: within limits, and each grammar once."""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar.forced import Spellings
from spectr.grammar.grammar import Grammar
from spectr.grammar.trial import Trial, said
from spectr.grammar.vocabulary import Vocabulary, xgrammar
from spectr.grammar.walk import GrammarWalk

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarLimits"]

_LIGHT_BYTES, _LIGHT_REPEATS, _LIGHT_COUNT = 2048, 12, 32
"""A grammar of users that is shorter, repeats less often, and counts no further takes about a second at most."""
_HEAVY_BYTES = 1 << 14  # so much of any grammar is tried first
_COUNTED = re.compile(r"\]\{(?:\d+,)?(\d+)\}")  # characters with a bound on their number, as maxLength becomes


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """What compiling may take, and how much is kept."""

    seconds: float = 20.0  # of a processor, for one grammar
    memory: int = 1 << 30  # bytes, for one grammar while it is compiled
    kept: int = 256  # grammars
    kept_bytes: int = 1 << 28  # of those grammars


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar for the tokens of one model."""

    grammar: Grammar
    vocabulary: Vocabulary = field(repr=False)
    handle: Any = field(repr=False)  # xgrammar's
    spellings: Spellings = field(repr=False, compare=False)  # of what it forces

    def walk(self, generated: Sequence[int] = (), stops: Iterable[int] | None = None) -> GrammarWalk:
        """A text that follows it, `generated` so far, and that `stops` end; by default those of the vocabulary."""
        return GrammarWalk(self, generated, self.vocabulary.stops if stops is None else stops)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return int(self.handle.memory_size_bytes)


class GrammarCompiler:
    """Compiles grammars for one vocabulary. From any thread; a grammar that several ask for is compiled once."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits | None = None) -> None:
        self.vocabulary, self.limits = vocabulary, limits or GrammarLimits()
        self.trial = Trial(vocabulary, self.limits.seconds, self.limits.memory)
        self._lock = threading.Lock()
        self._known: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()

    def limit_time(self, seconds: float) -> None:
        """Set the processor time that compiling one grammar may take from now on."""
        self.limits = replace(self.limits, seconds=seconds)
        self.trial.seconds = seconds

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """The grammar if it has been compiled, without waiting."""
        with self._lock:
            found = self._known.get(grammar)
        return found.result() if found is not None and found.done() and found.exception() is None else None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """The grammar for this vocabulary; raises ArgumentError if it is not one, or takes more than the limits."""
        if not isinstance(grammar, Grammar):
            raise ArgumentError(f"grammar must be a Grammar, such as Grammar.json_schema(…), got {grammar!r}")
        with self._lock:
            found = self._known.get(grammar)
            is_mine = found is None
            if found is None:
                found = self._known[grammar] = Future()
            self._known.move_to_end(grammar)
        if is_mine:
            self._fulfil(found, grammar)
        error = found.exception()
        if error is not None:
            raise type(error)(*error.args) from error
        return found.result()

    def _fulfil(self, promise: "Future[CompiledGrammar]", grammar: Grammar) -> None:
        """Compile a grammar for all who wait for it. What is wrong with it is remembered; what else goes wrong is
        not."""
        try:
            promise.set_result(self._compiled(grammar))
        except BaseException as error:
            if not isinstance(error, ArgumentError):
                with self._lock:
                    self._known.pop(grammar, None)
            promise.set_exception(error)
        self._forget_some()

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        if _needs_trial(grammar):
            self.trial.attempt(grammar.text, grammar.root)
        try:
            handle = self._compiler.compile_grammar(grammar.text, root_rule_name=grammar.root)
        except RuntimeError as error:
            raise ArgumentError(f"this grammar cannot be compiled: {said(error)}") from error
        return CompiledGrammar(grammar, self.vocabulary, handle, Spellings(self.vocabulary))

    @cached_property
    def _compiler(self) -> Any:
        threads = max(1, min(8, (os.cpu_count() or 2) // 2))
        return xgrammar().GrammarCompiler(self.vocabulary.info, max_threads=threads, cache_enabled=False)

    def _forget_some(self) -> None:
        """Keep as many as the limits say, those used last. One in use lives on with whoever uses it."""
        with self._lock:
            done = [grammar for grammar, promise in self._known.items() if promise.done()]
            sizes = {grammar: _size(self._known[grammar]) for grammar in done}
            total = sum(sizes.values())
            for grammar in done[:-1]:
                if len(self._known) <= self.limits.kept and total <= self.limits.kept_bytes:
                    return
                total -= sizes[grammar]
                del self._known[grammar]


def _size(promise: "Future[CompiledGrammar]") -> int:
    return 0 if promise.exception() is not None else promise.result().size


def _needs_trial(grammar: Grammar) -> bool:
    """Whether compiling might take more than about a second. Schemas and choices take long if they are large or bound
    the lengths of strings; a grammar that users write may take any time, such as many optional parts in a row."""
    text = grammar.text
    if not grammar.is_foreign:
        return len(text) > _HEAVY_BYTES or sum(map(int, _COUNTED.findall(text))) > _LIGHT_COUNT
    counts = [
        int(number) for part in text.split("{")[1:] for number in part.partition("}")[0].split(",") if number.isdigit()
    ]
    repeats = sum(text.count(sign) for sign in "?*+{")
    return len(text) > _LIGHT_BYTES or repeats > _LIGHT_REPEATS or max(counts, default=0) > _LIGHT_COUNT
