"""`spectr audit`: flags, tables, JSON and exit status; of a model, a function and an endpoint."""

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from tests.tiny import llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

Spectr = Callable[..., Any]
WORDS = ["</s>", *"abcdefghijklmnopqrs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a small model with a tokenizer of letters."""
    special = {"eos_token_id": 0, "bos_token_id": None, "pad_token_id": 0}
    net = llama(4, 20, 4, dtype=torch.float32, num_key_value_heads=4, max_position_embeddings=64, **special)
    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("letters")
    net.save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>").save_pretrained(path)
    return str(path)


def test_exact(spectr: Spectr, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    ran = spectr("audit", "--exact", "--rule", "recursive_wor", "--out", str(file))
    assert ran.code == 0
    assert ran.out.splitlines()[2].startswith("recursive_wor × without_replacement   total variation")
    assert "1 of 1 lossless claims hold." in ran.out
    found = json.loads(file.read_text())
    assert found["command"] == f"spectr audit --exact --rule recursive_wor --out {file}"
    assert found["holds"] is True
    assert found["findings"][0]["total_variation"]["3"] < 1e-12
    assert "plain" in found["findings"][0]["corners"]
    assert found["versions"]["spectr"]


def test_a_lossy_rule_fails_and_says_how_much(spectr: Spectr) -> None:
    ran = spectr("audit", "--exact", "--rule", "pareto", "--set", "budget=0.05", "--json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert found["command"].startswith("spectr audit --exact --rule pareto --set budget=0.05")
    assert {finding["status"] for finding in found["findings"]} == {"LOSSY"}
    assert all(0.01 < finding["total_variation"]["1"] < 0.2 for finding in found["findings"])
    said = "rules that state a bias differ from the target's law in 3 of 3 cases, by no more than they state"
    assert found["summary"] == said
    assert all("is off by at most 0.0" in finding["measured"] for finding in found["findings"])
    assert all("and 0.05 per token is stated" in finding["measured"] for finding in found["findings"])


@pytest.mark.slow
def test_a_model(spectr: Spectr, folder: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    flags = ("--rule", "optimal", "--drafter", "early_exit", "--samples", "2000", "--vocabulary", "8")
    texts = ("--prompt", "a b c a b", "--prompt", "d e", "--temperature", "0.9", "--top-k", "6")
    ran = spectr("audit", folder, *flags, *texts, "--out", str(file))
    assert ran.code == 0, ran.out
    assert [line.split()[0] for line in ran.out.splitlines() if "measured" in line] == [
        "rows",
        "law",
        "equal",
        "drafts",
    ]
    assert "statistical tests share a false-alarm rate of 1e-06" in ran.out
    found = json.loads(file.read_text())
    law = next(finding for finding in found["findings"] if finding["section"] == "law")
    assert (law["case"], law["samples"], law["seeds"]) == ("optimal × early_exit", 2000, [0, 1999])
    assert set(law["tests"]) == {"first token", "text", "ranks", "neighbours"}
    assert law["needs_samples"] > 50_000 > law["samples"]
    assert 0.05 < law["sees_total_variation"] < 0.2
    again = spectr("audit", folder, *flags, *texts, "--json")
    same = [f for f in json.loads(again.out)["findings"] if f["section"] == "law"]
    assert same == [law]  # seeds make it deterministic


def test_a_lossy_rule_on_a_model_fails(spectr: Spectr, folder: str) -> None:
    flags = ("--rule", "lenience", "--set", "lenience=0.5", "--samples", "6000", "--vocabulary", "8", "--raw")
    ran = spectr("audit", folder, "--prompt", "a b c", *flags)
    assert ran.code == 1
    assert "lenience(lenience=0.5) × noisy" in ran.out
    assert "LOSSY" in ran.out
    assert "rules that state a bias differ from the target's law in 1 of 1 cases." in ran.out


def test_transformers(spectr: Spectr, folder: str) -> None:
    ran = spectr("audit", folder, "--engine", "transformers", "--prompt", "a b c", "--samples", "20", "--json")
    assert ran.code == 0
    cases = [finding["case"] for finding in json.loads(ran.out)["findings"]]
    assert cases[1] == "assistant_model × noisy"


def test_direct(spectr: Spectr, folder: str) -> None:
    flags = ("--direct", "--drafter", "ngram", "--rule", "kseq", "--samples", "300", "--length", "2")
    ran = spectr("audit", folder, "--prompt", "a b c", *flags)
    assert ran.code == 0
    assert "kseq × ngram, not replayed" in ran.out


FUNCTION = """
import random
from functools import cache

import torch
from transformers import AutoModelForCausalLM

net = AutoModelForCausalLM.from_pretrained({folder!r}).eval()


@cache
@torch.no_grad()
def law(text, tilt):
    return (net(torch.tensor([text])).logits[0, -1] * tilt).softmax(-1).tolist()


def sample(prompt, seed, tilt=1.0):
    text, draw = tuple(prompt), random.Random(seed)
    while len(text) < len(prompt) + 2 and text[-1] != 0:
        text += tuple(draw.choices(range(20), law(text, tilt)))
    return text[len(prompt) :]


def cold(prompt, seed):
    return sample(prompt, seed, 3.0)
"""


def test_a_function(spectr: Spectr, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION.format(folder=folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, code in (("sample", 0), ("cold", 1)):
        flags = ("--function", f"mine:{name}", "--length", "2", "--samples", "800")
        ran = spectr("audit", folder, "--prompt", "a b c", *flags)
        assert ran.code == code, ran.out + ran.err
        assert f"mine:{name}" in ran.out


class Dice(BaseHTTPRequestHandler):
    """A server with six equally likely tokens at every position."""

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        law = {str(face): -1.791759469228055 for face in range(6)}
        throws = torch.randint(6, (asked["n"], asked["max_tokens"]), generator=self.server.draw)  # type: ignore[attr-defined]
        choices = [
            {"logprobs": {"tokens": [str(face) for face in throw], "top_logprobs": [law] * len(throw)}}
            for throw in throws.tolist()
        ]
        data = json.dumps({"choices": choices, "key": self.headers["Authorization"], "asked": asked}).encode()
        self.server.seen.append((asked, self.headers["Authorization"]))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def dice() -> Iterator[Any]:
    server = HTTPServer(("127.0.0.1", 0), Dice)
    server.draw, server.seen = torch.Generator().manual_seed(2), []  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint(spectr: Spectr, dice: Any) -> None:
    url = f"http://127.0.0.1:{dice.server_address[1]}/v1"
    more = ("--header", "Authorization: Bearer me", "--body", '{"ignore_eos": true}', "--choices", "40", "--top", "6")
    ran = spectr("audit", "my-model", "--url", url, "--prompt", "Throw.", "--samples", "900", "--length", "2", *more)
    assert ran.code == 0, ran.out + ran.err
    assert f"{url}/completions" in ran.out
    asked, key = dice.seen[-1]
    assert (asked["model"], asked["prompt"], asked["ignore_eos"], key) == ("my-model", "Throw.", True, "Bearer me")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--exact", "--planted"), "one kind of audit at a time, got --exact and --planted"),
        (("--engine", "vllm"), "--engine must be spectr or transformers"),
        (("--exact", "--rule", "ksec"), "did you mean kseq"),
        (("--exact", "--set", "budget=1"), "--set is for one rule"),
        (("--exact", "--rule", "pareto", "--set", "budget"), "separated by '='"),
        (("--exact", "--rule", "pareto", "--set", "bugdet=1"), "an option it does not take"),
        (("--function", "nothing_here:f"), "--function takes module:name"),
        (("--url", "http://127.0.0.1:9/v1", "--body", "[1]"), "--body takes a JSON object"),
        (("--url", "http://127.0.0.1:9/v1"), "must answer with JSON"),
        (("--exact", "--alarms", "2"), "alarms must lie between 0 and 1"),
        (("--exact", "--out", "nowhere/audit.json"), "there is no folder nowhere"),
    ],
)
def test_bad_arguments_are_refused(spectr: Spectr, flags: tuple[str, ...], sentence: str) -> None:
    ran = spectr("audit", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
