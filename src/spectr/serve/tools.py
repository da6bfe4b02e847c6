"""The functions that a request lets the model call."""

from dataclasses import asdict, dataclass
from typing import Any

from spectr.calls import CallForm, CallReader, Function, call_grammar
from spectr.errors import ArgumentError
from spectr.grammar import Grammar
from spectr.lm import LM
from spectr.serve.chat_fields import NamedTool, Tool
from spectr.serve.errors import ApiError
from spectr.serve.json_text import json_bytes, json_length
from spectr.serve.protocol import ChatRequest, CompletionRequest

__all__ = ["Calling", "calling_of"]


@dataclass(frozen=True, slots=True)
class Calling:
    """The functions that an answer may call, and what its calls must satisfy."""

    form: CallForm
    shown: tuple[dict[str, Any], ...]  # all tools, as the chat template takes them
    functions: tuple[Function, ...]  # those that may be called
    is_required: bool  # whether the answer must consist of calls
    several: bool  # whether it may have more than one call

    @property
    def needs_grammar(self) -> bool:
        """Whether a grammar must restrict the answer: to calls, to valid arguments, or to a single call."""
        is_single_anyway = not self.form.marker
        is_enforced = any(function.is_enforced for function in self.functions)
        return self.is_required or is_enforced or not (self.several or is_single_anyway)

    @property
    def key(self) -> bytes:
        """Everything that the grammar depends on, as JSON."""
        functions = [[function.name, function.parameters, function.is_enforced] for function in self.functions]
        return json_bytes([asdict(self.form), functions, self.is_required, self.several])

    def characters(self, indent: int | None = None) -> int:
        """Return the number of characters of the tools that the model is shown, if the chat template writes them in one
        line, or with each entry in a line of its own."""
        return json_length([*self.shown], indent)

    def grammar(self) -> Grammar:
        """Return the grammar of the answer."""
        return call_grammar(self.form, self.functions, is_required=self.is_required, several=self.several)

    def reader(self) -> CallReader:
        """Return a reader for one answer."""
        return CallReader(self.form, [function.name for function in self.functions])


def calling_of(body: CompletionRequest | ChatRequest, lm: LM) -> Calling | None:
    """Return what the answer to a body may call; None if it may call nothing. Raises ApiError if the model cannot use
    tools, or if tools and tool_choice contradict each other."""
    if not isinstance(body, ChatRequest):
        return None
    _check_choice(body)
    choice = body.tool_choice
    if not body.tools or choice == "none":
        return None
    try:
        form = lm.call_form
    except ArgumentError as error:
        raise ApiError(400, str(error), "tools", "unsupported_tools") from error
    is_required = choice == "required" or isinstance(choice, NamedTool)
    chosen = [tool for tool in body.tools if not isinstance(choice, NamedTool) or _name(tool) == choice.function.name]
    functions = [_function(tool, body.tools.index(tool), is_required) for tool in chosen]
    several = body.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    return Calling(form, tuple(map(_shown, body.tools)), tuple(functions), is_required, several)


def _name(tool: Tool) -> str:
    return tool.function.name


def _shown(tool: Tool) -> dict[str, Any]:
    """Return what the model is shown of a tool: all that the body gives except `strict`, which only the server uses."""
    given = tool.function
    known = {"name": given.name, "description": given.description, "parameters": given.parameters}
    return {"type": "function", "function": {name: value for name, value in known.items() if value is not None}}


def _check_choice(body: ChatRequest) -> None:
    """Refuse a tool_choice of a tool that is not given, and tools that have the same name."""
    names = [_name(tool) for tool in body.tools or ()]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise ApiError(400, f"tools must have different names, and {twice!r} is there twice", "tools", "invalid_value")
    if not names and body.tool_choice not in (None, "none"):
        raise ApiError(400, "tool_choice needs tools to choose from", "tool_choice", "invalid_value")
    if isinstance(body.tool_choice, NamedTool) and body.tool_choice.function.name not in names:
        raise ApiError(400, f"tool_choice must name one of the tools, got {body.tool_choice.function.name!r}",
                       "tool_choice.function.name", "invalid_value")  # fmt: skip


def _function(tool: Tool, at: int, is_required: bool) -> Function:
    given = tool.function
    is_enforced = is_required if given.strict is None else given.strict
    if is_enforced and given.parameters and given.parameters.get("type") != "object":
        raise ApiError(400, 'the parameters of a function must be a JSON schema with "type": "object"',
                       f"tools.{at}.function.parameters", "invalid_value")  # fmt: skip
    return Function(given.name, given.parameters or None, is_enforced)
