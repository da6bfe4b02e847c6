"""The state of a request inside a lane."""

from dataclasses import dataclass, field, replace
from typing import Any

from spectr.engine.handle import Delivery
from spectr.engine.request import Request
from spectr.grammar import GrammarWalk
from spectr.policy.history import HostText

__all__ = ["RequestState"]


@dataclass(slots=True, eq=False)
class RequestState:
    """A request in a lane, its text as far as the host has read it, and how much of that its row has prefilled."""

    delivery: Delivery
    text: list[int]  # prompt and generated tokens
    prefilled: int = 0  # tokens that both target and drafter have prefilled
    host_text: HostText = field(default_factory=HostText)  # the text that users' functions are called with
    walk: GrammarWalk | None = None  # the position of the text in its grammar; set when the request gets a row

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.delivery.request

    @property
    def resumed(self) -> Request:
        """The request, continued from the text so far."""
        return replace(self.request, generated=self.text[len(self.request.prompt) :])

    @property
    def scope(self) -> tuple[Any, str]:
        """What two requests must have in common for one to copy the other's prefix."""
        return self.request.source, self.request.cache_scope

    @property
    def to_prefill(self) -> int:
        """How many tokens must be prefilled before the request can decode: all but the last, which is the root."""
        return len(self.text) - 1 - self.prefilled

    @property
    def is_done(self) -> bool:
        """Whether the request has ended or was cancelled."""
        return self.delivery.has_ended or self.delivery.is_cancelled
