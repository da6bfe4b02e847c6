"""`Chat`: a conversation with a model."""

from typing import Any

from spectr.engine.metrics import Stats
from spectr.errors import ArgumentError, ContextError
from spectr.lm.model import LM
from spectr.lm.output import TextHandle
from spectr.lm.settings import MAX_NEW_TOKENS, seed_or_random
from spectr.text.prompt import check_text

__all__ = ["Chat"]


class Chat:
    """A conversation. Turns that the engine has prefilled are not prefilled again."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.turns: list[dict[str, str]] = []
        self._answering: TextHandle | None = None
        self._asked: list[dict[str, str]] | None = None  # the turns before its text, until that is among the turns

    @property
    def stats(self) -> Stats:
        """The statistics of the last answer."""
        return Stats() if self._answering is None else self._answering.stats

    @property
    def reused(self) -> int:
        """The number of tokens of the last prompt that were already cached."""
        return 0 if self._answering is None else self._answering.reused

    def say(self, text: str, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any) -> TextHandle:
        """Send a message and return a handle that yields the answer in pieces, of at most 256 tokens by default. If
        the handle is closed or interrupted, or another message is sent, the answer so far stays in the history. A turn
        that fails does not, nor does one whose answer was never begun to be read."""
        check_text(text, "a turn")
        self.lm.require_tokenizer()
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model, and this one has an encoder; use generate")
        for name in ("raw", "n", "seeds"):
            if settings.get(name):
                raise ArgumentError(f"say gives one text and takes no {name}; use generate")
        turns = [*self._turns_so_far(), {"role": "user", "content": text}]
        tokens = self.lm.encode_turns(turns)
        limit = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        make, _ = self.lm.request_maker(tokens, {**settings, **limit}, 2 * MAX_NEW_TOKENS)
        request = make(seed_or_random(seed))
        self._check_room(len(tokens), request.max_new_tokens)
        self.lm.engine.check(request)
        if self._answering is not None:
            self._answering.cancel()  # only now: a message that is refused does not end it

        def record(answer: TextHandle) -> None:
            if self.turns == turns[:-1]:  # else the user has changed them meanwhile
                self.turns = [*turns, {"role": "assistant", "content": answer.text}]
            self._asked = None

        self._asked, self._answering = turns, TextHandle(self.lm.engine.submit(request), record)
        return self._answering

    def _turns_so_far(self) -> list[dict[str, str]]:
        """Return the turns as they are once the answer that is still open is cancelled, which records it."""
        asked, answering = self._asked, self._answering
        is_kept = answering is not None and answering.has_begun and answering.finish_reason != "error"
        if asked is None or answering is None or not is_kept or self.turns != asked[:-1]:
            return self.turns
        return [*asked, {"role": "assistant", "content": answering.text}]

    def _check_room(self, tokens: int, limit: int) -> None:
        context = self.lm.engine.target.context
        if tokens + limit > context:
            raise ContextError(
                f"a conversation and its next answer must fit into the model's {context} positions, got {tokens} + "
                f"{limit}; lower max_new_tokens, say less, take early turns out of turns, or begin another conversation"
            )
