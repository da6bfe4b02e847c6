"""Compiles grammars for one vocabulary, within limits of time and memory, and caches them."""

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
from spectr.grammar.trial import Trial, error_text
from spectr.grammar.vocabulary import Vocabulary, xgrammar
from spectr.grammar.walk import GrammarWalk

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarLimits", "needs_trial"]

_LIGHT_BYTES, _LIGHT_REPEATS, _LIGHT_COUNT = 2048, 12, 32
"""A user's grammar within these limits (bytes, repetitions, largest count) compiles in about a second at most."""
_HEAVY_BYTES = 1 << 14  # a longer grammar of any kind is tried first
_COUNTED = re.compile(r"\]\{(?:\d+,)?(\d+)\}")  # a bounded number of characters, as maxLength is written


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Limits for compiling one grammar, and for the cache of compiled grammars."""

    seconds: float = 20.0  # processor time to compile one grammar
    memory: int = 1 << 30  # bytes to compile one grammar
    kept: int = 256  # grammars in the cache
    kept_bytes: int = 1 << 28  # bytes of the cache


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar compiled for the tokens of one model."""

    grammar: Grammar
    vocabulary: Vocabulary = field(repr=False)
    handle: Any = field(repr=False)  # xgrammar's compiled grammar
    spellings: Spellings = field(repr=False, compare=False)  # how forced texts are split into tokens

    def walk(self, generated: Sequence[int] = (), stops: Iterable[int] | None = None) -> GrammarWalk:
        """Return the state of a text with tokens `generated` so far, which `stops` end (by default the
        vocabulary's)."""
        return GrammarWalk(self, generated, self.vocabulary.stops if stops is None else stops)

    @property
    def size(self) -> int:
        """The memory of the compiled grammar in bytes."""
        return int(self.handle.memory_size_bytes)


class GrammarCompiler:
    """Compiles grammars for one vocabulary. It is thread-safe; concurrent requests for a grammar compile it once."""

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
        """Return the grammar if it has been compiled, else None, without waiting."""
        with self._lock:
            found = self._known.get(grammar)
        return found.result() if found is not None and found.done() and found.exception() is None else None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the compiled grammar; raises ArgumentError if it is invalid or exceeds the limits."""
        if not isinstance(grammar, Grammar):
            raise ArgumentError(f"grammar must be a Grammar, such as Grammar.json_schema(…), got {grammar!r}")
        with self._lock:
            promise = self._known.get(grammar)
            is_mine = promise is None
            if promise is None:
                promise = self._known[grammar] = Future()
            self._known.move_to_end(grammar)
        if is_mine:
            self._fulfil(promise, grammar)
        error = promise.exception()
        if error is not None:
            raise type(error)(*error.args) from error
        return promise.result()

    def _fulfil(self, promise: "Future[CompiledGrammar]", grammar: Grammar) -> None:
        """Compile a grammar for all waiting threads. Errors of the grammar are cached, other errors are not."""
        try:
            promise.set_result(self._compiled(grammar))
        except BaseException as error:
            if not isinstance(error, ArgumentError):
                with self._lock:
                    self._known.pop(grammar, None)
            promise.set_exception(error)
        self._forget_some()

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        if needs_trial(grammar):
            self.trial.attempt(grammar.text, grammar.root)
        try:
            handle = self._compiler.compile_grammar(grammar.text, root_rule_name=grammar.root)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise ArgumentError(f"this grammar cannot be compiled: {error_text(error)}") from error
        return CompiledGrammar(grammar, self.vocabulary, handle, Spellings(self.vocabulary))

    @cached_property
    def _compiler(self) -> Any:
        threads = max(1, min(8, (os.cpu_count() or 2) // 2))
        return xgrammar().GrammarCompiler(self.vocabulary.info, max_threads=threads, cache_enabled=False)

    def _forget_some(self) -> None:
        """Evict grammars, least recently used first, until the limits hold. Users of an evicted one keep it alive."""
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


def needs_trial(grammar: Grammar) -> bool:
    """Return whether compiling might take more than about a second. Schemas and choices take long if they are large or
    bound the lengths of strings; a grammar written by a user may take any time, for example with many optional parts in
    a row."""
    text = grammar.text
    if not grammar.is_foreign:
        return len(text) > _HEAVY_BYTES or sum(map(int, _COUNTED.findall(text))) > _LIGHT_COUNT
    counts = [
        int(number) for part in text.split("{")[1:] for number in part.partition("}")[0].split(",") if number.isdigit()
    ]
    repeats = sum(text.count(sign) for sign in "?*+{")
    return len(text) > _LIGHT_BYTES or repeats > _LIGHT_REPEATS or max(counts, default=0) > _LIGHT_COUNT
