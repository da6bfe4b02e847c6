"""Turns generated texts into the bodies that clients read."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Any

from spectr.calls import CallReader, Piece
from spectr.engine import Result, Step, TokenLogprobs
from spectr.serve.parsing import ParsedRequest
from spectr.view.tokens import TokenTexts
from spectr.view.trace import traced

__all__ = ["Reply", "speculation"]


def speculation(results: Sequence[Result], nodes: int, *, detailed: bool) -> dict[str, Any]:
    """Return statistics in the form of vLLM's `metrics.speculative_decoding`, over all texts of a response."""
    steps = [step for result in results for step in result.steps]
    stats = [result.stats for result in results]
    drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
    calls = sum(one.steps for one in stats)
    most = max((step.accepted for step in steps), default=0)
    histogram = [sum(step.accepted == count for step in steps) for count in range(most + 1)]
    found: dict[str, Any] = {
        "mean_acceptance_length": sum(one.emitted for one in stats) / calls if calls else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": calls,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": nodes - 1,
    }
    if detailed:
        found["per_step_accepted"] = [step.accepted for step in steps]
        found["per_step_drafted"] = [step.drafted for step in steps]
    return found


@dataclass(slots=True)
class Reply:
    """One response: its id and time, and how its parts are written."""

    parsed: ParsedRequest
    model: str
    fingerprint: str
    texts: TokenTexts
    id: str = ""  # of the response; a resumed stream keeps its id and time
    created: int = 0
    readers: dict[int, CallReader] = field(default_factory=dict)  # of texts in which the model may call functions
    _unshown: dict[int, list[Step]] = field(default_factory=dict, init=False)  # steps that no chunk has shown
    _offsets: dict[int, int] = field(default_factory=dict, init=False)  # where the next token of a text begins
    _origin: str = field(default="", init=False)  # a digest of what the texts depend on, for the ids of calls

    def __post_init__(self) -> None:
        past = self.parsed.resume
        kind = "chatcmpl" if self.parsed.is_chat else "cmpl"
        self.id = f"{kind}-{secrets.token_hex(12)}" if past is None else past.id
        self.created = int(time.time()) if past is None else past.created

    def whole(self, results: Sequence[Result], receipt: dict[str, Any] | None) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        n = self.parsed.n  # the first text of each prompt has the prompt's log-probabilities
        choices = [self._choice(at, result, results[at // n * n]) for at, result in enumerate(results)]
        return {**self._head(chunk=False), "choices": choices, **self.closing(results, receipt)}

    def chunk(self, index: int, steps: Sequence[Step], unsent: Sequence[int], *, begins: bool) -> dict[str, Any] | None:
        """Return the chunk of a stream for steps of one text; None if it would be empty. `unsent` are the tokens that
        no earlier chunk had."""
        text, reason = "".join(step.text for step in steps), steps[-1].finish_reason if steps else None
        tokens = [token for step in steps for token in step.tokens]
        logprobs = [entry for step in steps for entry in step.logprobs or ()]
        if self.parsed.drops_text:
            text, tokens, logprobs = "", [], []
        piece = self._read(index, text, ends=reason is not None)
        self._unshown.setdefault(index, []).extend(steps)
        if not (piece or reason or begins or logprobs):
            return None
        said = None
        if self.parsed.logprobs is not None and logprobs:
            said = self._logprobs(tokens, logprobs, self._offset(index))
            self.pass_over(index, tokens)
        choice: dict[str, Any] = {"index": index, "logprobs": said, "finish_reason": self._reason(index, reason)}
        if self.parsed.is_chat:
            begin = {"role": "assistant", "content": None if piece.calls else ""} if begins else {}
            shown = {"content": piece.text} if piece.text else {}
            choice["delta"] = {**begin, **shown, **self._calls(index, piece)}
        else:
            choice["text"] = text
        found = {**self._head(chunk=True), "choices": [choice]}
        if shown := self._shown(self._unshown.pop(index), unsent):
            found["spectr"] = shown
        return found

    def pass_over(self, index: int, tokens: Sequence[int]) -> None:
        """Move the place where the next token of a text begins behind tokens that the client has."""
        if self.parsed.logprobs is not None and not self.parsed.is_chat:
            self._offsets[index] = self._offset(index) + self._length(tokens)

    def _offset(self, index: int) -> int:
        """Return where the next token of a text begins, in characters of the joined texts of its tokens."""
        if index not in self._offsets:
            self._offsets[index] = self._length(self._prompt(index)) if self.parsed.echoes else 0
        return self._offsets[index]

    def _length(self, tokens: Sequence[int]) -> int:
        return sum(len(self.texts.text(token)) for token in tokens)

    def _prompt(self, index: int) -> list[int]:
        return self.parsed.prompts[index // self.parsed.n]

    def skip(self, index: int, text: str) -> None:
        """Read the beginning of a text that an earlier connection sent, so that calls in it are not sent again."""
        self._read(index, text, ends=False)

    def _read(self, index: int, text: str, *, ends: bool) -> Piece:
        """Split the next piece of a text into text and calls of functions."""
        calling = self.parsed.calling
        if calling is None:
            return Piece(text)
        if (reader := self.readers.get(index)) is None:
            reader = self.readers[index] = calling.reader()
        piece = reader.feed(text)
        if ends:
            piece.text += reader.finish().text
        return piece

    def _calls(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return parts of calls as a field of a chunk; no field if there are none."""
        parts: list[dict[str, Any]] = []
        for call in piece.calls:
            part: dict[str, Any] = {"index": call.number, "function": {"arguments": call.arguments}}
            if call.name is not None:
                part = {"index": call.number, "id": self._call_id(index, call.number), "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments}}  # fmt: skip
            parts.append(part)
        return {"tool_calls": parts} if parts else {}

    def _call_id(self, index: int, number: int) -> str:
        """Return the id of a call, derived from the prompts and the seed, so that a resumed stream has the same."""
        if not self._origin:  # once: the prompts may have very many tokens, and the texts many calls
            self._origin = sha256(f"{self.parsed.prompts}-{self.parsed.seed}".encode()).hexdigest()
        return "call_" + sha256(f"{self._origin}-{index}-{number}".encode()).hexdigest()[:24]

    def _message(self, index: int, text: str) -> dict[str, Any]:
        """Return the message of an answer that is not streamed."""
        piece = self._read(index, text, ends=True)
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"}
                for call in self._calls(index, piece)["tool_calls"]
            ]
        return message

    def _shown(self, steps: Sequence[Step], tokens: Sequence[int]) -> dict[str, Any]:
        """Return the trace and the tokens of steps, if the body asks for them."""
        wanted = self.parsed.body.spectr
        found: dict[str, Any] = {}
        if wanted is not None and wanted.trace:
            found["trace"] = [traced(step, self.texts) for step in steps]
        if wanted is not None and wanted.tokens:
            found["tokens"] = list(tokens)
        return found

    def echo(self, index: int, result: Result) -> dict[str, Any]:
        """Return the prompt of one text as the first chunk of a stream; `result` is of the prompt's first text."""
        prompt = self._prompt(index)
        if self.parsed.logprobs is not None:
            self._offset(index)  # counted here, because a prompt may have very many tokens
        logprobs = self._logprobs(prompt, result.prompt_logprobs or [], 0) if self.parsed.logprobs is not None else None
        choice = {"index": index, "text": self.texts.decode(prompt), "logprobs": logprobs, "finish_reason": None}
        return {**self._head(chunk=True), "choices": [choice]}

    def entries(self, results: Sequence[Result]) -> int:
        """Estimate how many numbers a response has: log-probabilities, or else tokens."""
        tokens = sum(len(result.tokens) + len(result.prompt_logprobs or ()) * self.parsed.n for result in results)
        return tokens * (1 + (self.parsed.logprobs or 0))

    def last(self, results: Sequence[Result], receipt: dict[str, Any] | None, *, usage: bool) -> dict[str, Any]:
        """Return the chunk after all texts, which has usage, statistics and receipt, and no choice."""
        closing = self.closing(results, receipt)
        if not usage:
            del closing["usage"]
        return {**self._head(chunk=True), "choices": [], **closing}

    def closing(self, results: Sequence[Result], receipt: dict[str, Any] | None) -> dict[str, Any]:
        """Return usage, statistics and receipt of the whole request."""
        detailed = self.parsed.body.spectr is not None and bool(self.parsed.body.spectr.statistics)
        nodes = self.parsed.lm.engine.drafter.nodes
        said = {"seed": self.parsed.seed, **({} if receipt is None else {"receipt": receipt})}
        return {
            "usage": self._usage(results),
            "metrics": {"speculative_decoding": speculation(results, nodes, detailed=detailed)},
            "spectr": said,
        }

    def _head(self, *, chunk: bool) -> dict[str, Any]:
        chat = self.parsed.is_chat
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _choice(self, index: int, result: Result, first: Result) -> dict[str, Any]:
        prompt = self._prompt(index)
        tokens, logprobs, text = result.tokens, list[TokenLogprobs | None](result.logprobs or []), result.text
        if self.parsed.drops_text:
            tokens, logprobs, text = [], [], ""
        if self.parsed.echoes:
            tokens, text = [*prompt, *tokens], self.texts.decode(prompt) + text
            logprobs = [*(first.prompt_logprobs or []), *logprobs]
        said = self._logprobs(tokens, logprobs, 0) if self.parsed.logprobs is not None else None
        place = {"message": self._message(index, text)} if self.parsed.is_chat else {"text": text}
        reason = self._reason(index, result.finish_reason)
        choice: dict[str, Any] = {"index": index, "logprobs": said, "finish_reason": reason, **place}
        if shown := self._shown(result.steps, result.tokens):
            choice["spectr"] = shown
        return choice

    def _reason(self, index: int, reason: str | None) -> str | None:
        reader = self.readers.get(index)
        if reason == "stop" and reader is not None and reader.count and not reader.is_within_call:
            return "tool_calls"
        return "length" if self.parsed.drops_text and reason is not None else reason

    def _usage(self, results: Sequence[Result]) -> dict[str, Any]:
        prompt, stats = sum(map(len, self.parsed.prompts)), [result.stats for result in results]
        new = 0 if self.parsed.drops_text else sum(len(result.tokens) for result in results)
        # a text that is continued may be in the cache, too
        cached = [min(result.reused, len(self._prompt(index))) for index, result in enumerate(results)]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": max(cached, default=0)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(one.accepted_prediction_tokens for one in stats),
                "rejected_prediction_tokens": sum(one.rejected_prediction_tokens for one in stats),
            },
        }

    def _logprobs(self, tokens: Sequence[int], found: Sequence[TokenLogprobs | None], start: int) -> dict[str, Any]:
        write = self._chat_logprobs if self.parsed.is_chat else self._completion_logprobs
        return write(tokens, found, start)

    def _chat_logprobs(self, tokens: Sequence[int], found: Sequence[TokenLogprobs | None], _: int) -> dict[str, Any]:
        def one(token: int, logprob: float) -> dict[str, Any]:
            return {"token": self.texts.text(token), "logprob": logprob, "bytes": list(self.texts.raw(token))}

        content = [
            {**one(token, entry.logprob), "top_logprobs": [one(*pair) for pair in entry.top]}
            for token, entry in zip(tokens, found, strict=True)
            if entry is not None
        ]
        return {"content": content, "refusal": None}

    def _completion_logprobs(
        self, tokens: Sequence[int], found: Sequence[TokenLogprobs | None], start: int
    ) -> dict[str, Any]:
        texts = [self.texts.text(token) for token in tokens]
        offsets = list(accumulate(map(len, texts[:-1]), initial=start)) if texts else []
        top = [
            None if entry is None else self._by_text(token, entry) for token, entry in zip(tokens, found, strict=True)
        ]
        return {
            "tokens": texts,
            "token_logprobs": [None if entry is None else entry.logprob for entry in found],
            "top_logprobs": top if self.parsed.logprobs else None,
            "text_offset": offsets,
        }

    def _by_text(self, chosen: int, entry: TokenLogprobs) -> dict[str, float]:
        """Return log-probabilities by text, that of the chosen token under its own. Another token with the same text,
        such as another part of a character, is named by its bytes."""
        own = self.texts.text(chosen)

        def name(token: int) -> str:
            text = self.texts.text(token)
            is_other = text == own and token != chosen
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.texts.raw(token)) if is_other else text

        return {name(token): value for token, value in reversed(entry.top)} | {own: entry.logprob}
