"""Settings that an operator chooses."""

from dataclasses import dataclass, field

__all__ = ["Limits", "ServerSettings"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one client can take. Times are in seconds."""

    body_bytes: int = 4 << 20
    prompt_tokens: int | None = None  # None: what the model's context holds
    texts: int = 64  # texts that one request may ask for: n times its prompts
    stop_strings: int = 16
    stop_characters: int = 1024  # of one stop string
    bias_tokens: int = 1024  # entries of logit_bias
    logprobs: int = 1 << 19  # log-probabilities of one request: texts times tokens times those in place of each
    grammar_bytes: int = 64 << 10  # of a schema, regex or grammar
    compile_time: float = 5.0  # of a processor, to compile one of those
    running: int = 64  # texts that run at once
    queue: int = 256  # texts that wait
    rate: float | None = None  # requests a minute for each key; None: any number
    connections: int = 1024
    request_time: float = 600.0  # from the first byte to the last
    header_time: float = 10.0  # to send the headers of a request
    body_time: float = 30.0  # to send its body
    idle_time: float = 5.0  # between two requests of a connection
    write_time: float = 30.0  # for a client to read what it is sent
    drain_time: float = 30.0  # for running requests after a signal to end


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is reached and what it may do."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None  # of the model, as clients call it; None: as it was loaded
    keys: tuple[str, ...] = ()  # API keys; without any, everybody who reaches the server may use it
    insecure: bool = False  # allows a public address without keys
    origins: tuple[str, ...] = ()  # web pages that may call, by origin; none by default
    audit_share: float = 0.0  # of steps that are recomputed in the background
    vllm_names: bool = False  # counters of speculation under vLLM's names too
    logs_prompts: bool = False
    receipts: bool = True
    event_ids: bool = False  # in streams whose request does not say; some clients read every line as data
    keep_alive: float = 15.0  # seconds between comments in a stream that has nothing else to send
    limits: Limits = field(default_factory=Limits)
