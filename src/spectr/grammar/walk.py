"""The state of one text in its grammar, on the host, and the tokens that may follow the nodes of a draft tree."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.grammar.forced import forced_text, forces_little
from spectr.grammar.masks import words
from spectr.grammar.vocabulary import xgrammar

if TYPE_CHECKING:
    from spectr.grammar.compiler import CompiledGrammar

__all__ = ["GrammarWalk"]

_PATIENCE = 1.0
"""Time limit of one walk in seconds. Most walks take less than a millisecond; a highly ambiguous grammar takes longer
with each token, and all other requests wait for it."""


_SIGNS = 8  # bytes of forced text to find for each requested token


class GrammarWalk:
    """The state of a text in its grammar: the tokens generated so far, and the matcher. It belongs to one request and
    one thread."""

    def __init__(self, compiled: "CompiledGrammar", generated: Sequence[int], stops: Iterable[int]) -> None:
        self.compiled = compiled
        self._vocabulary = compiled.vocabulary
        self._matcher: Any = xgrammar().GrammarMatcher(compiled.handle, override_stop_tokens=sorted(stops))
        self._generated: list[int] = []
        self._expected = b""  # the forced text at the last call of `forced`
        self.error: Exception | None = None  # why the text cannot be continued
        self.commit(generated)

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance the text by these tokens."""
        self.compiled.spellings.learn(self._expected, list(tokens))
        self._expected, start = b"", time.perf_counter()
        for at, token in enumerate(tokens):
            if not self._matcher.accept_token(token):
                raise ArgumentError(
                    f"a text must match its grammar, and token {token} at index {at} of {list(tokens)} does not"
                )
            self._generated.append(token)
        self._check_time(start)

    def forced(self, most: int) -> list[int]:
        """Return at most `most` tokens that should come next because the grammar determines the text; for drafting."""
        if self.has_ended or self.error is not None:
            return []
        before = b"".join(self._vocabulary.pieces[token] for token in self._generated)
        is_short = forces_little(self.compiled.grammar)
        self._expected, is_end = forced_text(self._matcher, self._vocabulary, before, _SIGNS * most, is_short=is_short)
        try:
            tokens = self.compiled.spellings.split(self._expected, self._generated, most)
        except Exception as error:  # of any kind, from a tokenizer: it ends this text only
            self.error = error
            return []
        is_spelled = sum(len(self._vocabulary.pieces[token]) for token in tokens) == len(self._expected)
        return [*tokens, *([min(self._matcher.stop_token_ids)] if is_end and is_spelled else [])][:most]

    @property
    def has_ended(self) -> bool:
        """Whether the text has ended with a stop token."""
        return bool(self._matcher.is_terminated())

    def masks(self, paths: Sequence[Sequence[int]], out: Tensor | None = None) -> Tensor:
        """Return packed masks (M, W) int32 of the tokens that may follow the text and each of M paths.

        A mask is empty below a token that is not allowed or that ends the text. One walk serves all paths, and visits
        common prefixes once. If it takes too long, `error` is set and all masks are empty."""
        tree = _Tree(paths)
        found = torch.zeros(len(tree.tokens), words(self._vocabulary.size), dtype=torch.int32)
        if not self.has_ended and self.error is None:
            self._traverse(tree, found)
        heads = self._vocabulary.heads
        tokens = [self._generated[-1] if self._generated else -1, *tree.tokens[1:]]
        if not heads.isdisjoint(tokens):
            ends = [node for node, token in enumerate(tokens) if token in heads]
            found[ends] &= self._vocabulary.tails
        return torch.index_select(found, 0, torch.tensor(tree.places), out=out)

    def _traverse(self, tree: "_Tree", found: Tensor) -> None:
        start = time.perf_counter()
        parts = (torch.tensor(part) for part in (tree.first_child, tree.next_sibling, tree.tokens))
        is_done = self._matcher.traverse_draft_tree(*parts, found, _PATIENCE)
        if not self._check_time(start, is_done=is_done):
            found.zero_()

    def _check_time(self, start: float, *, is_done: bool = True) -> bool:
        """Return whether the work is done and took less than the time limit; otherwise set `error`."""
        if is_done and time.perf_counter() - start < _PATIENCE:
            return True
        self.error = self.error or ArgumentError(
            f"a grammar must determine the next tokens within {_PATIENCE:g} seconds, and this one does not after this "
            "text; make it less ambiguous, so that a text can be parsed in few ways"
        )
        return False


class _Tree:
    """Paths as one tree; `places` are the nodes at the ends of the paths."""

    def __init__(self, paths: Sequence[Sequence[int]]) -> None:
        self.tokens, self.first_child, self.next_sibling = [0], [-1], [-1]
        self._last_child = [-1]
        self._known: dict[tuple[int, int], int] = {}
        self.places = [self._place(path) for path in paths]

    def _place(self, path: Sequence[int]) -> int:
        node = 0
        for token in path:
            node = self._known.get((node, token)) or self._add(node, token)
        return node

    def _add(self, parent: int, token: int) -> int:
        node = self._known[parent, token] = len(self.tokens)
        self.tokens.append(token)
        for links in (self.first_child, self.next_sibling, self._last_child):
            links.append(-1)
        last = self._last_child[parent]
        if last < 0:
            self.first_child[parent] = node
        else:
            self.next_sibling[last] = node
        self._last_child[parent] = node
        return node
