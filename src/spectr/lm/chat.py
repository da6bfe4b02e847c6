"""`Chat`: a conversation with a model."""

from typing import Any

from spectr.engine.metrics import Stats
from spectr.errors import ArgumentError
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
        the handle is closed or interrupted, or another message is sent, the answer so far stays in the history; a turn
        that fails does not."""
        check_text(text, "a turn")
        self.lm.require_tokenizer()
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model, and this one has an encoder; use generate")
        for name in ("raw", "n", "seeds"):
            if settings.get(name):
                raise ArgumentError(f"say gives one text and takes no {name}; use generate")
        if self._answering is not None:
            self._answering.cancel()  # the turns include it from now on
        turns = [*self.turns, {"role": "user", "content": text}]
        tokens = self.lm.encode_turns(turns)
        limit = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        make, _ = self.lm.request_maker(tokens, {**settings, **limit}, 2 * MAX_NEW_TOKENS)
        request = make(seed_or_random(seed))
        self._check_room(len(tokens), request.max_new_tokens)
        self.lm.engine.check(request)

        def record(answer: TextHandle) -> None:
            if self.turns == turns[:-1]:  # else the user has changed them meanwhile
                self.turns = [*turns, {"role": "assistant", "content": answer.text}]

        self._answering = TextHandle(self.lm.engine.submit(request), record)
        return self._answering

    def _check_room(self, tokens: int, limit: int) -> None:
        context = self.lm.engine.target.context
        if tokens + limit > context:
            raise ArgumentError(
                f"a conversation and its next answer must fit into the model's {context} positions, got {tokens} + "
                f"{limit}; lower max_new_tokens, say less, take early turns out of turns, or begin another conversation"
            )
