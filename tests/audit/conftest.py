"""A small real model for audits, and a server that samples from one law and states another."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from transformers import PreTrainedModel

import spectr

SIZE = 24
Law = Callable[[tuple[int, ...]], np.ndarray]


def llama(seed: int, layers: int = 2, size: int = SIZE) -> PreTrainedModel:
    """Return a small Llama in float32 whose token 2 ends a text."""
    special = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1}
    return tiny.llama(seed, size, layers, dtype=torch.float32, **special)


@pytest.fixture(scope="session")
def lm() -> spectr.LM:
    return spectr.load(llama(3), "none")


@pytest.fixture(scope="session")
def small() -> PreTrainedModel:
    return llama(8, layers=1)


class _Handler(BaseHTTPRequestHandler):
    """Serves completions of one law, in the form of the OpenAI API."""

    server: "LawServer"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        known = asked["model"] == "toy"
        choices = [self.choice(asked) for _ in range(asked["n"] if known else 0)]
        data = json.dumps({"choices": choices} if known else {"error": f"no model {asked['model']}"}).encode()
        self.send_response(200 if known else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def choice(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return one text, whose tokens are drawn from the served law and described by the stated law."""
        text: tuple[int, ...] = ()
        places = []
        while len(text) < asked["max_tokens"]:
            sums, stated = self.server.rows(text)
            token = int(np.searchsorted(sums, self.server.draw.random() * sums[-1], side="right"))
            if token == self.server.end:
                break
            best = list(stated)[: int(asked.get("top_logprobs") or asked["logprobs"])]
            places.append((self.server.word(token), {self.server.word(t): stated[t] for t in best}, stated[token]))
            text = (*text, token)
        return {"text": "", "logprobs": self.logprobs(places)}

    def logprobs(self, places: list[tuple[str, dict[str, float], float]]) -> dict[str, Any]:
        if self.path.endswith("/chat/completions"):
            content = [
                {
                    "token": token, "logprob": own,
                    "top_logprobs": [{"token": t, "logprob": value} for t, value in listed.items()],
                }
                for token, listed, own in places
            ]  # fmt: skip
            return {"content": content}
        every = [{**listed, token: own} for token, listed, own in places]  # as servers do, including the sampled token
        return {"tokens": [token for token, _, _ in places], "top_logprobs": every}


class LawServer(ThreadingHTTPServer):
    """Serves texts of the law `served` and states the law `stated`."""

    def __init__(self, stated: Law, served: Law, end: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stated, self.served, self.end = stated, served, end
        self.draw = np.random.default_rng(11)
        self.asked: list[dict[str, Any]] = []
        self.sums: dict[tuple[int, ...], np.ndarray] = {}

    def rows(self, text: tuple[int, ...]) -> tuple[np.ndarray, dict[int, float]]:
        """Return running sums of the served law, and logarithms of the stated law, the likeliest first."""
        if text not in self.sums:
            self.sums[text] = self.served(text).cumsum()
        stated = self.stated(text)
        return self.sums[text], {int(t): math.log(max(stated[t], 1e-30)) for t in np.argsort(-stated)}

    def word(self, token: int) -> str:
        return "</s>" if token == self.end else f" w{token}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@pytest.fixture
def serve() -> Callable[..., Any]:
    """Run a server while the context is open."""

    @contextmanager
    def running(stated: Law, served: Law, end: int | None = None) -> Iterator[LawServer]:
        server = LawServer(stated, served, end)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return running
