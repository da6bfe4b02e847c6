"""Runs third-party clients against a server with a tiny model: `make test-clients`, or `python tools/clients NAME...`.

Each client has its own virtual environment under `.venv-clients`, which is made on first use. The names are openai2 and
openai3 (every endpoint, streamed and not), schemathesis (random requests generated from our OpenAPI description),
lm_eval (two tasks, whose scores must equal those computed in this process) and aiperf (a load generator that reads our
speculation metrics).
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import spectr
from spectr.lm import LM
from spectr.serve import Limits, ServerSettings
from spectr.serve.run import background

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PACKAGES = {
    "openai2": ["openai<3"], "openai3": ["openai>=3"], "schemathesis": ["schemathesis>=4.32"],
    "lm_eval": ["lm-eval[api]>=0.4.13", "transformers"], "aiperf": ["aiperf>=0.13"],
}  # fmt: skip
CASES = 10_000  # minimum number of schemathesis cases
WORDS = [
    "the", "tides", "rise", "and", "fall", "with", "moon", "twice", "a", "day", "one", "two", "three", "four", "five",
    "six", "seven", "eight", "nine", "ten",
]  # fmt: skip
TEMPLATE = (
    "{% if tools %}<system>{{ tools | tojson }}</s>{% endif %}"
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% for call in turn.tool_calls or [] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_model(folder: Path) -> Path:
    """Save a small Llama with random weights and a small tokenizer."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<user>", "<assistant>", "<system>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    core.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    words = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>")
    words.chat_template = TEMPLATE
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=320, max_position_embeddings=512, eos_token_id=1, pad_token_id=0, **shape)  # type: ignore[arg-type]
    net = LlamaForCausalLM(config)
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.15)
    net.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def environment(name: str) -> Path:
    """Return the folder with the programs of a client; install them if they are missing."""
    folder = ROOT / ".venv-clients" / name
    if not (folder / "done").exists():
        print(f"{name}: installing {', '.join(PACKAGES[name])}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *PACKAGES[name]], check=True)
        (folder / "done").touch()
    return folder / "bin"


def called(command: list[str], folder: Path, **more: Any) -> str:
    """Run a client, and return what it printed; if it fails, exit with its output."""
    ran = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=1500, check=False, **more)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{ran.stdout[-6000:]}\n{ran.stderr[-3000:]}")
    return ran.stdout


def run_openai(name: str, url: str, folder: Path, _: LM) -> str:
    """Call every endpoint with one version of OpenAI's client."""
    return called([str(environment(name) / "python"), str(HERE / "openai_calls.py"), url], folder).strip()


def run_schemathesis(name: str, url: str, folder: Path, _: LM) -> str:
    """Send random valid and invalid requests; no answer may be a 5xx or deviate from our OpenAPI description."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    found, cases, seed = list[str](), 0, 1
    while cases < CASES:
        said = called(
            [str(environment(name) / "schemathesis"), "run", f"{url}/openapi.json", "--url", url, "--checks", checks,
             "--max-examples", "600", "--seed", str(seed), "--no-color", "--workers", "4",
             "--request-timeout", "120", "--phases",
             "examples,coverage,fuzzing"],
            folder,
        )  # fmt: skip
        counted = re.search(r"(\d+) generated", said)
        cases += int(counted[1]) if counted else 0
        found.append(said)
        seed += 1
        if not counted:
            raise SystemExit(said[-3000:])
    return f"{cases} cases in {seed - 1} runs, no failure"


def run_lm_eval(name: str, url: str, folder: Path, lm: LM) -> str:
    """Score two tasks over HTTP and in this process; the scores must be equal."""
    sys.path.insert(0, str(HERE))
    from eval_tasks import in_process, write_tasks

    write_tasks(folder, WORDS, lm)
    arguments = f"model=tiny,base_url={url}/v1/completions,tokenizer={folder / 'model'},num_concurrent=2,max_retries=1"
    out = folder / "scores"
    called(
        [str(environment(name) / "lm_eval"), "run", "--model", "local-completions", "--model_args", arguments,
         "--tasks", "tiny_choice,tiny_repeat", "--include_path", str(folder), "--output_path", str(out)],
        folder,
    )  # fmt: skip
    path = next(out.rglob("results*.json"))
    found = json.loads(path.read_text())["results"]
    scores = {task: next(v for k, v in found[task].items() if k.startswith(("acc,", "exact_match,"))) for task in found}
    meant = in_process(lm, folder)
    if any(abs(scores[task] - meant[task]) > 1e-9 for task in meant):
        raise SystemExit(f"the scores must equal those in this process, {meant}, but lm-eval found {scores}")
    return f"scores {scores}, the same as in process"


def run_aiperf(name: str, url: str, folder: Path, _: LM) -> str:
    """Send streamed requests at several concurrencies; the load generator must find our speculation metrics."""
    found = []
    for count in (1, 4):
        out = folder / f"aiperf{count}"
        called(
            [str(environment(name) / "aiperf"), "profile", "--model", "tiny", "--url", url, "--endpoint-type", "chat",
             "--streaming", "--concurrency", str(count), "--request-count", str(8 * count), "--tokenizer",
             str(folder / "model"), "--isl", "40", "--osl", "30", "--artifact-dir", str(out), "--ui", "none"],
            folder,
        )  # fmt: skip
        path = next(p for p in out.rglob("*.json") if "profile_export" in p.name)
        data = json.loads(path.read_text())
        speculation = [key for key in data if "accept" in key or "spec" in key]
        rate = data.get("request_throughput", {}).get("avg")
        found.append(f"{count} in flight: {rate:.1f} requests/s, {len(speculation)} speculation metrics")
        if not speculation:
            raise SystemExit(f"aiperf must find speculation metrics, but it found only {sorted(data)}")
    return "; ".join(found)


CLIENTS: dict[str, Callable[[str, str, Path, LM], str]] = {
    "openai2": run_openai, "openai3": run_openai, "schemathesis": run_schemathesis, "lm_eval": run_lm_eval,
    "aiperf": run_aiperf,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Run the named clients, or all."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lm = spectr.load(str(make_model(folder / "model")), "lookup", dtype="float64")
        limits = Limits(rate=None, queue=4096)
        with background(lm, ServerSettings(port=0, name="tiny", limits=limits)) as (url, _):
            for name in names or CLIENTS:
                print(f"{name}: {CLIENTS[name](name, url, folder, lm)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
