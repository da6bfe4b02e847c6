"""Every endpoint as a client sees it: texts equal those of `LM.generate` with the same seed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import spectr
from spectr.errors import ArgumentError
from spectr.grammar import Grammar
from spectr.lm import LM
from spectr.serve.receipt import drafting_of, read_receipt, replay

PROMPT = "the quick brown fox"
TURNS = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "tides rise"}]


def post(client: httpx2.Client, path: str, status: int = 200, **body: Any) -> Any:
    found = client.post(path, json=body)
    assert found.status_code == status, found.text
    return found.json()


def streamed(client: httpx2.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, which must end with [DONE]."""
    with client.stream("POST", path, json={**body, "stream": True}) as found:
        assert found.status_code == 200
        assert found.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in found.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_a_completion(client: httpx2.Client, lm: LM) -> None:
    """A completion has the text, finish reason and usage of `LM.generate`."""
    found = post(client, "/v1/completions", prompt=PROMPT, max_tokens=20, seed=5, temperature=0.8)
    meant = lm.generate(PROMPT, 20, 5, raw=True, temperature=0.8)
    assert found["object"] == "text_completion"
    assert found["model"] == "tiny"
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == (meant.text, meant.finish_reason, 0)
    prompt = len(lm.encode(PROMPT, raw=True))
    usage = found["usage"]
    assert usage["prompt_tokens"] == prompt
    assert usage["completion_tokens"] == len(meant.tokens)
    assert usage["total_tokens"] == prompt + len(meant.tokens)


def test_a_conversation(client: httpx2.Client, lm: LM) -> None:
    """A chat completion has the text of `LM.generate`; content may be a string or a list of text parts."""
    found = post(client, "/v1/chat/completions", messages=TURNS, max_completion_tokens=15, seed=3)
    meant = lm.generate(TURNS, 15, 3)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": meant.text, "refusal": None}
    parts = [{**TURNS[1], "content": [{"type": "text", "text": "tides "}, {"type": "text", "text": "rise"}]}]
    again = post(client, "/v1/chat/completions", messages=[TURNS[0], *parts], max_tokens=15, seed=3)
    assert again["choices"] == found["choices"]


def test_several_prompts_and_texts(client: httpx2.Client, lm: LM) -> None:
    """Several prompts, as texts or token ids, with several texts each give the choices of `LM.generate` in order."""
    prompts = [PROMPT, "one two"]
    found = post(client, "/v1/completions", prompt=prompts, n=2, max_tokens=9, seed=11)
    meant = lm.generate(prompts, 9, 11, n=2, raw=True)
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in meant]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    ids = [lm.encode(prompt, raw=True) for prompt in prompts]
    again = post(client, "/v1/completions", prompt=ids, n=2, max_tokens=9, seed=11)
    assert again["choices"] == found["choices"]
    alone = post(client, "/v1/completions", prompt=ids[0], max_tokens=9, seed=11)
    assert alone["choices"][0]["text"] == meant[0].text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_the_text(client: httpx2.Client, path: str) -> None:
    """The chunks of a stream add up to the texts, finish reasons, usage and metrics of the whole response."""
    asked: dict[str, Any] = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": TURNS}
    asked |= {"max_tokens": 30, "seed": 2, "n": 3}
    whole = post(client, path, **asked)
    events = streamed(client, path, **asked, stream_options={"include_usage": True})
    *chunks, last = events
    texts, reasons = ["", "", ""], [None, None, None]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content", "")
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == [one.get("text", one.get("message", {}).get("content")) for one in whole["choices"]]
    assert reasons == [one["finish_reason"] for one in whole["choices"]]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["spectr"]["receipt"]["texts"] == whole["spectr"]["receipt"]["texts"]
    assert last["metrics"]["speculative_decoding"] == whole["metrics"]["speculative_decoding"]
    assert all("usage" not in event for event in streamed(client, path, **asked))
    if path == "/v1/chat/completions":
        first = [next(c for c in chunks if c["choices"][0]["index"] == at)["choices"][0]["delta"] for at in range(3)]
        assert all(delta["role"] == "assistant" for delta in first)


def test_every_setting(client: httpx2.Client, lm: LM) -> None:
    """Every sampling field of a request has the effect of the same setting of `LM.generate`."""
    fields: dict[str, Any] = {
        "temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "typical_p": 0.95, "presence_penalty": 0.3,
        "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"40": 5, "41": -100}, "min_tokens": 6,
        "stop": ["zz", 7], "stop_token_ids": [9],
    }  # fmt: skip
    found = post(client, "/v1/completions", prompt=PROMPT, max_tokens=25, seed=8, **fields)
    settings = {name: value for name, value in fields.items() if name not in ("stop", "stop_token_ids", "min_tokens")}
    settings |= {"logit_bias": {40: 5, 41: -100}, "min_new_tokens": 6, "stop": ["zz"], "stop_ids": [7, 9]}
    meant = lm.generate(PROMPT, 25, 8, raw=True, **settings)
    assert found["choices"][0]["text"] == meant.text
    assert found["usage"]["completion_tokens"] == len(meant.tokens)


def test_a_stop_string_is_not_shown(client: httpx2.Client, lm: LM) -> None:
    free = lm.generate(PROMPT, 30, 4, raw=True).text
    stop = free[10:13]
    found = post(client, "/v1/completions", prompt=PROMPT, max_tokens=30, seed=4, stop=stop)
    assert found["choices"][0]["text"] == free[: free.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"


def test_without_a_limit_the_context_is_the_limit(client: httpx2.Client, lm: LM) -> None:
    found = post(client, "/v1/completions", prompt=PROMPT, seed=1, logit_bias={"1": -100})
    prompt = len(lm.encode(PROMPT, raw=True))
    assert found["usage"]["completion_tokens"] == lm.engine.target.context - prompt
    assert found["choices"][0]["finish_reason"] == "length"


def test_a_seed_is_random_and_told(client: httpx2.Client) -> None:
    """Without a seed the server draws one and reports it; the reported seed reproduces the text."""
    first, second = (post(client, "/v1/completions", prompt=PROMPT, max_tokens=20) for _ in range(2))
    assert first["spectr"]["seed"] != second["spectr"]["seed"]
    again = post(client, "/v1/completions", prompt=PROMPT, max_tokens=20, seed=first["spectr"]["seed"])
    assert again["choices"] == first["choices"]


def test_log_probabilities(client: httpx2.Client, lm: LM) -> None:
    """Log-probabilities equal those of `LM.generate`, in completions and chats, whole and streamed."""
    meant = lm.generate(PROMPT, 6, 5, raw=True, logprobs=2)
    assert meant.logprobs is not None
    found = post(client, "/v1/completions", prompt=PROMPT, max_tokens=6, seed=5, logprobs=2)["choices"][0]["logprobs"]
    assert found["token_logprobs"] == pytest.approx(meant.logprobs)
    assert meant.top_logprobs is not None
    for text, entry, own, top in zip(
        found["tokens"], found["top_logprobs"], meant.logprobs, meant.top_logprobs, strict=True
    ):
        assert entry[text] == pytest.approx(own)  # another token with the same text is named by its bytes
        assert max(entry.values()) == pytest.approx(top[0][1])
    assert found["text_offset"][0] == 0
    chunks = streamed(client, "/v1/completions", prompt=PROMPT, max_tokens=6, seed=5, logprobs=2)
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"] and c["choices"][0]["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == found["text_offset"]
    turn = {"messages": TURNS, "max_tokens": 6, "seed": 5, "logprobs": True}
    whole = post(client, "/v1/chat/completions", **turn, top_logprobs=3)
    entries = whole["choices"][0]["logprobs"]["content"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace")
    assert spelled == whole["choices"][0]["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    events = streamed(client, "/v1/chat/completions", **turn, top_logprobs=3)
    pieces = [e["choices"][0]["logprobs"] for e in events if e["choices"]]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == entries
    bare = post(client, "/v1/chat/completions", **turn)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * 6


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_echo(client: httpx2.Client, lm: LM, limit: int) -> None:
    """With `echo` the choice begins with the prompt and its log-probabilities, whole and streamed."""
    prompt = lm.encode(PROMPT, raw=True)
    asked = {"prompt": prompt, "max_tokens": limit, "seed": 5, "echo": True, "logprobs": 1, "temperature": 0}
    found = post(client, "/v1/completions", **asked)
    choice = found["choices"][0]
    assert choice["text"].startswith(PROMPT)
    count = len(prompt) + limit
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == count
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    meant = lm.generate(prompt, 1, 5, prompt_logprobs=1, temperature=0).prompt_logprobs
    assert meant is not None
    own = [entry.logprob for entry in meant if entry is not None]
    assert choice["logprobs"]["token_logprobs"][1 : len(prompt)] == pytest.approx(own)
    assert found["usage"]["completion_tokens"] == limit
    events = streamed(client, "/v1/completions", **asked)
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == choice["text"]
    parts = [e["choices"][0]["logprobs"] for e in events if e["choices"] and e["choices"][0]["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == choice["logprobs"]["text_offset"]


def test_speculation_of_one_request(client: httpx2.Client) -> None:
    """A request may choose rule, drafter and nodes; its statistics and trace add up, and greedy text is the same."""
    asked: dict[str, Any] = {"prompt": "one two three one two three", "max_tokens": 40, "seed": 6, "temperature": 0}
    first = post(client, "/v1/completions", **asked, spectr={"statistics": True, "trace": True})
    figures = first["metrics"]["speculative_decoding"]
    assert figures["num_accepted_draft_tokens"] > 0
    assert figures["mean_acceptance_length"] == pytest.approx(40 / figures["num_spec_steps"])
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"] == len(figures["per_step_accepted"])
    assert sum(figures["per_step_accepted"]) == figures["num_accepted_draft_tokens"]
    assert sum(figures["per_step_drafted"]) == figures["num_draft_tokens"]
    trace = first["choices"][0]["spectr"]["trace"]
    assert sum(len(step["tokens"]) for step in trace) == 40
    assert "".join(step["text"] for step in trace) == first["choices"][0]["text"]
    plain = post(client, "/v1/completions", **asked, spectr={"drafter": "none", "statistics": True})
    assert plain["choices"][0]["text"] == first["choices"][0]["text"]
    assert plain["metrics"]["speculative_decoding"]["num_spec_steps"] == 40
    for rule, drafter in (("optimal", "ngram"), ("match", "lookup")):
        other = post(client, "/v1/completions", **asked, spectr={"rule": rule, "drafter": drafter, "nodes": 5})
        assert other["choices"][0]["text"] == first["choices"][0]["text"]  # every rule gives the same greedy text
        assert other["spectr"]["receipt"]["speculation"]["rule"] == rule


@pytest.mark.parametrize(
    "speculation",
    [{"rule": "optimal", "drafter": "ngram", "nodes": 6}, {"rule": "kseq", "drafter": "ngram"},
     {"rule": "block", "drafter": "ngram"}, {"rule": "match", "drafter": "lookup", "nodes": 4}, {"rule": "match"},
     {"rule": "match", "drafter": "none"}],
)  # fmt: skip
def test_a_receipt_says_how_the_drafts_were_made(
    client: httpx2.Client, lm: LM, folder: Path, tmp_path: Path, speculation: dict[str, Any]
) -> None:
    """Under rules whose text depends on drafts, a model that is loaded as the receipt says gives the text again. A
    model with another drafter says what differs."""
    found = post(client, "/v1/completions", prompt="one two one two", max_tokens=24, seed=1, spectr=speculation)
    path, said = tmp_path / "response.json", list[str]()
    path.write_text(json.dumps(found))
    receipt = read_receipt(path)
    drafter, options = drafting_of(receipt)
    again = spectr.load(str(folder), drafter, speculation["rule"], dtype="float64", **options)
    assert replay(again, receipt, said.append)[0].is_same
    assert not said
    replay(lm, receipt, said.append)
    assert f"made under rule '{speculation['rule']}', this is 'race'" in said[0]
    other = spectr.load(str(folder), "ngram", speculation["rule"], dtype="float64", nodes=3)
    replay(other, receipt, said.append)
    assert "the receipt was made with another " in said[-1]
    for wrong in ({"plan": "drafts"}, {"rule": ["kseq"]}, {"drafter": None}, {"nodes": "3"}):
        path.write_text(json.dumps({**receipt, "speculation": {**receipt["speculation"], **wrong}}))
        with pytest.raises(ArgumentError, match="a receipt must be what a response has"):
            read_receipt(path)
    del receipt["speculation"]["plan"]  # as in older receipts
    assert drafting_of(receipt)[0] == drafter


def test_a_receipt_gives_the_text_again(client: httpx2.Client, lm: LM, tmp_path: Path) -> None:
    """Replaying a receipt reproduces the texts; another seed or other weights are reported."""
    found = post(client, "/v1/completions", prompt=[PROMPT, "naïve"], n=2, max_tokens=12, top_k=9, logit_bias={"40": 5})
    path, said = tmp_path / "response.json", list[str]()
    path.write_text(json.dumps(found))
    receipt = read_receipt(path)
    assert receipt["arithmetic"]["weights"] == [receipt["arithmetic"]["dtype"]]
    texts = replay(lm, receipt, said.append)
    assert all(text.is_same for text in texts)
    assert [text.output.text for text in texts] == [choice["text"] for choice in found["choices"]]
    assert not said
    assert not replay(lm, {**receipt, "seed": receipt["seed"] + 1}, said.append)[0].is_same
    receipt["model"]["digest"] = "0"
    replay(lm, receipt, said.append)
    assert "weights" in said[0]
    assert drafting_of(receipt) == ("auto", {})
    assert (
        "receipt"
        not in post(client, "/v1/completions", prompt="one", max_tokens=1, spectr={"receipt": False})["spectr"]
    )


def test_models_and_tokens(client: httpx2.Client, lm: LM) -> None:
    """The endpoints for models list the model, and tokenize and detokenize are inverse to each other."""
    (card,) = client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny"
    assert client.get("/v1/models/tiny").json() == card
    assert client.get("/v1/models/other").status_code == 404
    text = "naïve café ☕"
    found = post(client, "/tokenize", prompt=text, return_token_strs=True)
    assert found["tokens"] == lm.encode(text, raw=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert post(client, "/detokenize", tokens=found["tokens"])["prompt"] == text
    turns = post(client, "/tokenize", messages=TURNS)
    assert turns["tokens"] == lm.encode_turns(TURNS)
    post(client, "/tokenize", 400, prompt="a", messages=TURNS)
    post(client, "/detokenize", 400, tokens=[320])


def test_health_metrics_and_version_are_served(client: httpx2.Client) -> None:
    """Health, readiness, version, metrics and OpenAPI description are served, and the metrics count requests."""
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json()["status"] == "ready"
    assert "spectr" in client.get("/version").json()
    before = client.get("/metrics").text
    tokens = post(client, "/v1/completions", prompt=PROMPT, max_tokens=10)["usage"]["completion_tokens"]
    after = client.get("/metrics").text

    def value(page: str, name: str) -> float:
        return float(next(line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name)))

    for name, added in (("spectr:generation_tokens_total", tokens), ("spectr:time_to_first_token_seconds_count", 1)):
        assert value(after, name) - value(before, name) == added
    assert value(after, "spectr:spec_decode_num_drafts_total") > value(before, "spectr:spec_decode_num_drafts_total")
    assert 'spectr:spec_decode_num_accepted_tokens_per_pos_total{position="0"}' in after
    described = client.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/health"} <= set(described["paths"])
    assert all("422" not in one["responses"] for path in described["paths"].values() for one in path.values())


def test_a_prediction_changes_nothing(client: httpx2.Client) -> None:
    """A right or wrong prediction leaves the text unchanged and is counted in the usage."""
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "seed": 4, "temperature": 0.9}
    plain = post(client, "/v1/completions", **asked)
    text = plain["choices"][0]["text"]
    found = post(client, "/v1/completions", **asked, prediction={"type": "content", "content": text})
    assert found["choices"] == plain["choices"]
    details = found["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    wrong = post(client, "/v1/completions", **asked, prediction={"type": "content", "content": "entirely different"})
    assert wrong["choices"] == plain["choices"]
    parts = {"type": "content", "content": [{"type": "text", "text": text}]}
    assert post(client, "/v1/completions", **asked, prediction=parts)["choices"] == plain["choices"]
    post(client, "/v1/completions", 400, **asked, prediction=parts, spectr={"rule": "kseq", "drafter": "ngram"})


def test_a_server_that_checks_itself(other: Callable[..., Any]) -> None:
    """With a witness the server reports checked steps, and is no longer ready after a violation."""
    client, service = other(audit_share=1.0)
    asked = {"prompt": PROMPT, "max_tokens": 30, "n": 4, "top_p": 0.9, "frequency_penalty": 0.3}
    post(client, "/v1/completions", **asked)
    post(client, "/v1/completions", **asked, spectr={"drafter": "none"})
    assert service.witness is not None
    assert service.witness.drain(30)
    found = client.get("/ready").json()
    assert found["checked"] > 0
    assert found["violations"] == 0
    assert "spectr:audit_checked_total" in client.get("/metrics").text
    service.witness._violations = 1
    assert client.get("/ready").status_code == 503
    assert "sampled from the wrong distribution" in client.get("/ready").json()["error"]["message"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "sea": {"type": "boolean"}},
    "required": ["name", "sea"],
}


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(client: httpx2.Client, lm: LM, stream: bool) -> None:
    """Structured output equals that of `LM.generate` with the grammar, and is valid if it ends by itself."""
    forms: list[tuple[dict[str, Any], Grammar, Callable[[str], Any]]] = [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
         Grammar.json_schema(SCHEMA), lambda text: json.loads(text)["sea"] in (True, False)),
        ({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}}, Grammar.regex("[a-f]{3}-[0-9]{2}"),
         re.compile("[a-f]{3}-[0-9]{2}").fullmatch),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Grammar.choice(["yes", "no"]), {"yes", "no"}.__contains__),
    ]  # fmt: skip
    for form, grammar, is_valid in forms:
        for seed in range(3):
            asked = {"prompt": PROMPT, "max_tokens": 200, "seed": seed, **form}
            if stream:
                events = streamed(client, "/v1/completions", **asked)
                text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
            else:
                text = post(client, "/v1/completions", **asked)["choices"][0]["text"]
            meant = lm.generate(PROMPT, 200, seed, raw=True, grammar=grammar)
            assert text == meant.text
            if meant.finish_reason == "stop":
                assert is_valid(text), text


def test_structured_output_that_is_refused(client: httpx2.Client) -> None:
    """Invalid or contradictory descriptions of structured output are refused with status 400 and a message."""
    for form in (
        {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"json": "{"}}, {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}}, {"structured_outputs": {"grammar": "root ::= ("}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
    ):  # fmt: skip
        found = post(client, "/v1/completions", 400, prompt=PROMPT, max_tokens=5, **form)
        assert found["error"]["message"]


def test_a_receipt_of_structured_output(client: httpx2.Client, lm: LM, tmp_path: Path) -> None:
    """A receipt contains the grammar, so that replaying it reproduces structured output."""
    asked = {"prompt": PROMPT, "max_tokens": 40, "structured_outputs": {"choice": ["one", "two", "three"]}}
    (tmp_path / "found.json").write_text(json.dumps(post(client, "/v1/completions", **asked)))
    assert replay(lm, read_receipt(tmp_path / "found.json"), lambda _: None)[0].is_same
