"""`spectr serve`, `spectr play` and `spectr replay`: the HTTP server, the playground, and checks of receipts."""

import json
import logging
import os
import stat
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectr.cli.flags import (
    ADDRESS,
    LIMITS,
    LOADING,
    SPECULATION,
    DeviceFlag,
    DrafterFlag,
    DrainTimeoutFlag,
    DtypeFlag,
    InsecureFlag,
    ModelFlag,
    NodesFlag,
    PlanFlag,
    PortFlag,
    RequestTimeoutFlag,
    RuleFlag,
    given,
)
from spectr.cli.output import JsonFlag, print_json, talk
from spectr.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from spectr.lm import LM
    from spectr.serve import ServerSettings

__all__ = ["log_to_stderr", "needs_server", "play", "read_keys", "replay", "serve"]

OPERATION = "Operation"
_KEYS = "SPECTR_API_KEYS"


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Read API keys from a file, one per line, and from the environment, separated by commas."""
    lines = os.environ.get(_KEYS, "").split(",")
    if path is not None:
        try:
            lines += path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"--api-key-file must be a file with one key per line: {error}") from error
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            talk(f"other users of this machine can read the keys in {path}; chmod 600 it")
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if path is not None and not keys:
        raise ArgumentError(f"--api-key-file must contain at least one key, and {path} contains none")
    if short := [key for key in keys if len(key) < 8]:
        raise ArgumentError(f"an API key must have at least 8 characters, and {len(short)} of {len(keys)} have fewer")
    if wrong := [key for key in keys if not (key.isascii() and key.isprintable() and " " not in key)]:
        raise ArgumentError(
            f"an API key must consist of visible ASCII characters, because it is sent in a header, and {len(wrong)} of "
            f"{len(keys)} do not"
        )
    return tuple(dict.fromkeys(keys))


def needs_server(command: str = "spectr serve") -> None:
    """Raise if the packages that the server requires are not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", command) from error


def log_to_stderr(verbose: bool) -> None:
    """Log to stderr; with `verbose`, one line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("spectr.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("uvicorn.error").addHandler(handler)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def serve(
    model: ModelFlag = "smollm2-135m",
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on.", rich_help_panel=ADDRESS)
    ] = "127.0.0.1",
    port: PortFlag = 8000,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in requests.", rich_help_panel=ADDRESS)
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"API keys, one per line; also read from {_KEYS}.", rich_help_panel=ADDRESS),
    ] = None,
    insecure: InsecureFlag = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Allow pages of this origin; may be repeated.", rich_help_panel=ADDRESS),
    ] = None,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    drafter: DrafterFlag = "auto",
    rule: RuleFlag = "race",
    nodes: NodesFlag = None,
    plan: PlanFlag = None,
    compile_layers: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile layers with torch.compile; slow at the start.", rich_help_panel=SPECULATION
        ),
    ] = False,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Spread the layers over N processes of torchrun.", rich_help_panel=LOADING
        ),
    ] = 1,
    max_running: Annotated[
        int, typer.Option(min=1, metavar="N", help="Texts generated at once.", rich_help_panel=LIMITS)
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(min=0, metavar="N", help="Texts that may wait.", rich_help_panel=LIMITS)
    ] = 256,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum length of a prompt.", rich_help_panel=LIMITS)
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, metavar="N", help="Maximum size of a request.", rich_help_panel=LIMITS)
    ] = 4 << 20,
    max_texts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of texts per request.", rich_help_panel=LIMITS)
    ] = 64,
    rate: Annotated[
        float | None, typer.Option(min=0.1, metavar="N", help="Requests per minute of one key.", rich_help_panel=LIMITS)
    ] = None,
    grammar_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Processor time to compile one schema, regex or grammar.",
            rich_help_panel=LIMITS,
        ),
    ] = 5.0,
    request_timeout: RequestTimeoutFlag = 600.0,
    drain_timeout: DrainTimeoutFlag = 30.0,
    audit_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Recompute and check this share of the steps.",
            rich_help_panel=OPERATION,
        ),
    ] = 0.0,
    vllm_metrics: Annotated[
        bool, typer.Option("--vllm-metrics", help="Also export metrics under vLLM's names.", rich_help_panel=OPERATION)
    ] = False,
    receipts: Annotated[bool, typer.Option(help="Add receipts to responses.", rich_help_panel=OPERATION)] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log a line for every request.", rich_help_panel=OPERATION)
    ] = False,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Also log prompts.", rich_help_panel=OPERATION)
    ] = False,
) -> None:
    """Serve a model over HTTP, with an OpenAI-compatible API. Ctrl-C or SIGTERM lets running requests finish."""
    needs_server()
    from spectr.serve import Limits, ServerSettings
    from spectr.serve.run import serve as run_server

    settings = ServerSettings(
        host, port, name or model, read_keys(api_key_file), insecure, tuple(cors_origin or ()), audit_share,
        vllm_metrics, log_prompts, receipts,
        limits=Limits(
            body_bytes=max_body_bytes, prompt_tokens=max_prompt_tokens, texts=max_texts, running=max_running,
            queue=max_queue, rate=rate, compile_time=grammar_timeout, request_time=request_timeout,
            drain_time=drain_timeout,
        ),
    )  # fmt: skip
    log_to_stderr(verbose or log_prompts)

    def load() -> "LM":
        from spectr.lm import load as load_model

        options = given(nodes=nodes, plan=plan, compile=compile_layers or None)
        options |= {"tensor_parallel": tensor_parallel} if tensor_parallel > 1 else {}
        return load_model(model, drafter, rule, device=device, dtype=dtype, progress=talk, rows=max_running, **options)

    if tensor_parallel > 1 and _follows():
        load()  # does not return: this rank executes what rank 0, which runs the server, sends

    def started(url: str) -> None:
        talk(f"serving {settings.name} at {url}/v1 ({'with' if settings.keys else 'without'} API keys); Ctrl-C ends it")
        talk(f"playground: {url}/")
        talk(f"try: {_example(url, settings)}")

    run_server(settings, load, talk, started)


def _follows() -> bool:
    """Return whether this process is a rank of torchrun other than 0."""
    from spectr.models.parallel.group import rank_here

    return rank_here() > 0


def _example(url: str, settings: "ServerSettings") -> str:
    body = json.dumps({"messages": [{"role": "user", "content": "Explain tides."}], "max_tokens": 64})
    key = " -H 'Authorization: Bearer KEY'" if settings.keys else ""
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def play(
    model: ModelFlag = "smollm2-135m",
    port: PortFlag = 0,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    drafter: DrafterFlag = "auto",
    nodes: NodesFlag = 16,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch the token trees in the browser. Serves a model to this machine only, until Ctrl-C."""
    needs_server()
    from spectr.serve import ServerSettings
    from spectr.serve.run import serve as run_server

    log_to_stderr(False)

    def load() -> "LM":
        from spectr.lm import load as load_model

        return load_model(model, drafter, device=device, dtype=dtype, progress=talk, **given(nodes=nodes))

    def started(url: str) -> None:
        talk(f"the playground is at {url}/ ; Ctrl-C ends it")
        if browser:
            webbrowser.open(f"{url}/")

    run_server(ServerSettings(port=port, name=model), load, talk, started)


def replay(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A receipt, or the response that contains it.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model. [default: the one named in the receipt]")
    ] = None,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    drafter: DrafterFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Generate the text of a receipt again, and report whether it is the same. Exit code 1 if it is not."""
    needs_server()
    from spectr.lm import load
    from spectr.serve.receipt import drafting_of, read_receipt
    from spectr.serve.receipt import replay as run_again

    found = read_receipt(receipt)
    named, options = drafting_of(found)
    speculation = found["speculation"]
    try:
        lm = load(model or found["model"]["name"], named if drafter == "auto" else drafter, speculation["rule"],
                  device=device, dtype=dtype, progress=talk, **options)  # fmt: skip
    except ArgumentError as error:
        if not options:
            raise
        raise ArgumentError(
            f"the receipt was made with drafter {speculation['drafter']!r} and {options}, and it cannot be loaded: "
            f"{error}. Name the drafter with --drafter"
        ) from error
    texts = run_again(lm, found, talk)
    if as_json:
        print_json({"texts": [{"text": one.output.text, "same": one.is_same} for one in texts]})
    else:
        for one in texts:
            print(one.output.text)
            talk("the same tokens as in the receipt" if one.is_same else "NOT the tokens of the receipt")
    if not all(one.is_same for one in texts):
        raise typer.Exit(1)
