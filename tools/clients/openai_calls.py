"""Calls every endpoint with OpenAI's client, streamed and not. It runs in the client's environment, without spectr."""

import asyncio
import json
import sys

import openai
from openai import AsyncOpenAI, OpenAI

URL = sys.argv[1]
TURNS = [{"role": "user", "content": "the tides rise"}]


def check_models(client: OpenAI) -> None:
    """List and retrieve models."""
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    try:
        client.models.retrieve("other")
        raise AssertionError("a model that does not exist was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"


def check_completions(client: OpenAI) -> None:
    """Request completions: whole, streamed, with log-probabilities, and for several prompts."""
    asked = {"model": "tiny", "prompt": "one two", "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**asked, logprobs=2, n=2)
    assert len(whole.choices) == 2
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens / 2 == 12
    pieces = list(client.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True}))
    for index in range(2):
        text = "".join(c.text for piece in pieces for c in piece.choices if c.index == index)
        assert text == whole.choices[index].text
    assert pieces[-1].usage.completion_tokens == 24
    echo = client.completions.create(model="tiny", prompt="one two", max_tokens=1, echo=True, logprobs=1)
    assert echo.choices[0].text.startswith("one two")
    batch = client.completions.create(model="tiny", prompt=["one", "two"], max_tokens=3)
    assert [choice.index for choice in batch.choices] == [0, 1]


def check_chat(client: OpenAI) -> None:
    """Request chat completions: whole, streamed, with settings, and with fields that must be refused."""
    asked = {"model": "tiny", "messages": TURNS, "max_completion_tokens": 12, "seed": 3}
    more = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.1, "stop": ["zzz"]}
    whole = client.chat.completions.create(**asked, **more, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    pieces = list(client.chat.completions.create(**asked, **more, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    extra = client.chat.completions.create(**asked, extra_body={"spectr": {"drafter": "none"}, "top_k": 5})
    assert extra.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] == extra.usage.completion_tokens
    for wrong in ({"temperature": -1}, {"store": True}):
        try:
            client.chat.completions.create(**asked, **wrong)
            raise AssertionError(f"{wrong} was not refused")
        except openai.BadRequestError as error:
            assert error.param == next(iter(wrong))
    if hasattr(client.chat.completions, "stream"):
        with client.chat.completions.stream(model="tiny", messages=TURNS, max_tokens=5, seed=1) as events:
            kinds = {event.type for event in events}
        assert {"chunk", "content.delta", "content.done"} <= kinds


def check_tools(client: OpenAI) -> None:
    """Let the model call functions, streamed and not, and send the results back."""
    schema = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "pick", "parameters": schema, "strict": True}}
    asked = {"model": "tiny", "messages": TURNS, "tools": [tool], "tool_choice": "required", "seed": 3}
    asked |= {"parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content, call.function.name) == ("tool_calls", None, "pick")
    assert json.loads(call.function.arguments)["x"] in ("a", "b")
    parts = [
        part
        for piece in client.chat.completions.create(**asked, stream=True)
        if piece.choices
        for part in piece.choices[0].delta.tool_calls or ()
    ]
    assert parts[0].id == call.id
    assert parts[0].function.name == "pick"
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    if hasattr(client.chat.completions, "stream"):
        with client.chat.completions.stream(**asked) as events:
            final = events.get_final_completion()
        assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    turns = [*TURNS, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "12"}]
    answer = client.chat.completions.create(model="tiny", messages=turns, tools=[tool], max_tokens=5)
    assert answer.usage.completion_tokens > 0


def check_responses(client: OpenAI) -> None:
    """Use the newer interface: texts, streams, and calls of functions."""
    asked = {"model": "tiny", "input": "the tides rise", "max_output_tokens": 12, "extra_body": {"seed": 3}}
    whole = client.responses.create(**asked)
    chat = client.chat.completions.create(model="tiny", messages=TURNS, max_tokens=12, seed=3)
    assert whole.output_text == chat.choices[0].message.content
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 12
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(**asked) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"
    schema = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"]}
    tool = {"type": "function", "name": "pick", "parameters": schema, "strict": True}
    called = client.responses.create(
        model="tiny", input="go", tools=[tool], tool_choice={"type": "function", "name": "pick"}, extra_body={"seed": 3}
    )
    (call,) = called.output
    assert json.loads(call.arguments)["x"] in ("a", "b")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    turns = [{"role": "user", "content": "go"}, *called.output, result]
    assert client.responses.create(model="tiny", input=turns, tools=[tool], max_output_tokens=5).output
    try:
        client.responses.create(model="tiny", input="go", previous_response_id="resp_1")
        raise AssertionError("previous_response_id was not refused")
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id"


async def check_async() -> None:
    """Run many requests at once, and abandon some in the middle of their stream."""
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        asked = {"model": "tiny", "messages": TURNS, "max_tokens": 40}

        async def one(seed: int) -> str:
            text = ""
            async for piece in await client.chat.completions.create(**asked, seed=seed, stream=True):
                text += (piece.choices[0].delta.content or "") if piece.choices else ""
                if seed % 3 == 0 and text:
                    break
            return text

        texts = await asyncio.gather(*(one(seed) for seed in range(12)))
        whole = await client.chat.completions.create(**asked, seed=1)
        assert whole.choices[0].message.content == texts[1]


if __name__ == "__main__":
    with OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as made:
        check_models(made)
        check_completions(made)
        check_chat(made)
        check_tools(made)
        check_responses(made)
    asyncio.run(check_async())
    print(f"openai {openai.__version__}: models, completions, chat, tools, responses, streams, refusals")
