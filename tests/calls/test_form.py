"""The form of calls is found by letting a chat template write some."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from jinja2 import Environment, TemplateError

from spectr.calls import CallForm
from spectr.errors import ArgumentError

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
HERMES = (
    "<|im_start|>assistant{% if turn.content %}{{ '\n' + turn.content }}{% endif %}{% for call in turn.tool_calls %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
)
OPENING = "{{ '<|im_start|>assistant\n' }}"
PYTHONIC = (
    "<a>{% if turn.tool_calls %}[{{ turn.tool_calls[0].function.name }}()]{% else %}{{ turn.content }}{% endif %}</a>"
)
LLAMA = (
    "<a>{% if turn.tool_calls | length > 1 %}{{ fail('one call only') }}{% endif %}{% if turn.tool_calls %}"
    '{"name": "{{ turn.tool_calls[0].function.name }}", "parameters": '
    "{{ turn.tool_calls[0].function.arguments | tojson }}}{% else %}{{ turn.content }}{% endif %}</a>"
)
THINKING = (
    "<a>{{ '<think>\n\n</think>\n\n' }}{{ turn.content }}{% for call in turn.tool_calls %}[CALL]"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}[END]{% endfor %}</a>"
)


def fail(why: str) -> None:
    raise TemplateError(why)


def as_json(value: Any, **_: Any) -> str:
    """Write JSON as transformers' chat templates do: keys in their order, and nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=False)


def form_of(answer: str, opening: str = "<a>", tools: str = TOOLS) -> CallForm:
    """Return the form of a template in which an assistant's message is written as `answer`."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["tojson"] = as_json
    turns = "{% for turn in messages %}{% if turn.role == 'assistant' %}" + answer
    turns += "{% else %}<u>{{ turn.content }}</u>{% endif %}{% endfor %}"
    template = environment.from_string(tools + turns + "{% if add_generation_prompt %}" + opening + "{% endif %}")

    def render(messages: Sequence[dict[str, Any]], functions: Sequence[dict[str, Any]], is_open: bool) -> str:
        return template.render(messages=messages, tools=functions, add_generation_prompt=is_open, fail=fail)

    return CallForm.of(render)


def test_calls_between_marks() -> None:
    """The form of Hermes and Qwen: an object between two tags, and several calls on lines of their own."""
    form = form_of(HERMES, OPENING)
    assert form == CallForm("<tool_call>\n", "\n</tool_call>", "arguments", "\n")
    assert (form.marker, form.closing) == ("<tool_call>", "</tool_call>")


def test_a_call_without_marks() -> None:
    """The form of Llama 3: the answer is an object, and there is at most one call."""
    assert form_of(LLAMA) == CallForm("", "", "parameters", None)


def test_what_stands_before_every_answer_is_no_part_of_a_call() -> None:
    """An empty thought that a template writes before earlier answers does not belong to the call."""
    assert form_of(THINKING) == CallForm("[CALL]", "[END]", "arguments", "")


@pytest.mark.parametrize(
    ("answer", "opening", "tools", "words"),
    [
        (HERMES, OPENING, "", "does not show functions"),
        (PYTHONIC, "<a>", TOOLS, r"writes '\[probe_function\(\)\]'"),
        ("<a>{{ turn.content }}</a>", "<a>", TOOLS, "writes ''"),
        ("<a>{{ turn.content }}</a>", "<b>", TOOLS, "differently from where an answer begins"),
        ("<a>{{ turn.content }}{{ fail('no') }}</a>", "<a>", TOOLS, "that of this model fails: no"),
        ("<a>{{ turn.content }}{% if turn.tool_calls %}</b>{% else %}</a>{% endif %}", "<a>", TOOLS, "not known"),
    ],
    ids=["no functions", "no JSON", "calls left out", "another opening", "an error", "another end"],
)
def test_other_forms_are_refused_with_the_reason(answer: str, opening: str, tools: str, words: str) -> None:
    """A template without calls of functions, or in a form that is not known, is refused with what it does."""
    with pytest.raises(ArgumentError, match=words):
        form_of(answer, opening, tools)
