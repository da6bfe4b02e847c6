"""Translates a model's `generation_config` to settings of a policy, with the meanings that transformers gives them.

Only values that the checkpoint sets are used, and none of the defaults that transformers fills in (greedy decoding,
top_k=50). This module does not depend on how models are loaded.
"""

from collections.abc import Iterable
from typing import Any

from spectr.errors import ArgumentError
from spectr.policy import Policy

__all__ = ["default_settings", "unsupported_settings"]

_SETTINGS = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty",
        "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id", "min_length",
        "min_new_tokens",
    )
} | {"bad_words_ids": "bad_words"}  # fmt: skip
"""Fields of a generation config that change the distribution of texts, and the equivalent settings of a policy."""

_OFF: dict[str, Any] = {"num_beams": 1, "guidance_scale": 1, "encoder_repetition_penalty": 1,
                        "encoder_no_repeat_ngram_size": 0}  # fmt: skip
"""Values other than None that have no effect."""

_UNSUPPORTED = {
    "num_beams": "there is no beam search, so texts are sampled, or greedy with temperature=0",
    "guidance_scale": "there is no classifier-free guidance; use transformers for it",
    "encoder_repetition_penalty": "use repetition_penalty, or processors",
    "encoder_no_repeat_ngram_size": "use no_repeat_ngram_size, or processors",
    "exponential_decay_length_penalty": "use processors",
    "sequence_bias": "use logit_bias for single tokens, else processors",
    "top_h": "use top_p or min_p",
    "watermarking_config": "give its processor as processors",
    "penalty_alpha": "there is no contrastive search; use transformers for it",
    "dola_layers": "there is no decoding by contrasting layers; use transformers for it",
    "constraints": "give a function as allowed",
    "force_words_ids": "give a function as allowed",
    "forced_bos_token_id": "end the prompt with it",
    "stop_strings": "give them as stop",
}
"""Fields without an equivalent setting, and what to do instead."""


def _ids(value: Any) -> list[int]:
    return list(value) if isinstance(value, Iterable) else [] if value is None else [int(value)]


def _effective(name: str, value: Any, config: Any) -> Any:
    """Return a value with the meaning that transformers gives it, None if transformers ignores it."""
    if name in ("epsilon_cutoff", "eta_cutoff"):
        return value if 0 < value < 1 else None
    if name in ("top_p", "typical_p"):
        return value if value < 1 else None
    if name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
        return value if value > 0 else None
    if name == "bad_words_ids":  # a bad word that is an end of text is ignored
        ends = _ids(config.eos_token_id)
        return [list(word) for word in value if not (len(word) == 1 and word[0] in ends)] or None
    return value


def _named(value: Any) -> list[int]:
    """Return all token ids in the value of a setting that names tokens."""
    parts = _ids(value)
    return [token for part in parts for token in (part if isinstance(part, Iterable) else [part])]


def _complaint(name: str, value: Any, vocabulary: int) -> str | None:
    """Return why a policy cannot have this value, or None if it can."""
    try:
        Policy(**{name: value})
    except ArgumentError as error:
        return str(error)
    if name in ("bad_words", "forced_eos_token_id") and max(_named(value)) >= vocabulary:
        return f"{name} must name tokens below {vocabulary}, the size of the vocabulary, got {value!r}"
    return None


def _translate(net: Any, vocabulary: int) -> tuple[dict[str, Any], list[str]]:
    """Return the settings equivalent to a model's generation config, and the errors of those that a policy refuses."""
    config = net.generation_config
    if config is None:
        return {}, []
    found, complaints = dict[str, Any](), list[str]()
    for name, setting in _SETTINGS.items():
        value = getattr(config, name, None)
        value = None if value is None else _effective(name, value, config)
        if setting in ("suppress_tokens", "begin_suppress_tokens"):  # ids that have no logit are ignored
            value = tuple(token for token in _ids(value) if 0 <= token < vocabulary) or None
        if value is None:
            continue
        if complaint := _complaint(setting, value, vocabulary):
            complaints.append(complaint)
        else:
            found[setting] = value
    if config.do_sample is False:
        found["temperature"] = 0.0
    return _as_counted(found, net), complaints


def _as_counted(found: dict[str, Any], net: Any) -> dict[str, Any]:
    """Adjust minimum lengths. `min_new_tokens` replaces `min_length`. transformers counts the token that is forced at
    the beginning of an encoder-decoder model's answers as new; here it is part of the prompt."""
    least = found.get("min_new_tokens")
    if least is None:
        return found
    is_forced = net.config.is_encoder_decoder and net.generation_config.forced_bos_token_id is not None
    kept = {name: value for name, value in found.items() if name != "min_length"}
    return {**kept, "min_new_tokens": least - 1 if is_forced else least}


def default_settings(net: Any, vocabulary: int) -> dict[str, Any]:
    """Return the settings of `Policy` that are equivalent to a model's generation config.

    `do_sample=False` means temperature 0. If the config does not say whether to sample, texts are sampled.
    """
    return _translate(net, vocabulary)[0]


def unsupported_settings(net: Any, vocabulary: int) -> str | None:
    """Return a sentence that lists the fields of a model's generation config that have no effect here, or None."""
    config = net.generation_config
    if config is None:
        return None
    names = [name for name in _UNSUPPORTED if getattr(config, name, None) not in (None, _OFF.get(name))]
    if net.config.is_encoder_decoder:  # here that token is part of the prompt
        names = [name for name in names if name != "forced_bos_token_id"]
    reasons = [f"{name} ({_UNSUPPORTED[name]})" for name in names]
    reasons += [f"an invalid value ({complaint})" for complaint in _translate(net, vocabulary)[1]]
    if not reasons:
        return None
    return f"the model's generation_config also sets the following, which is not used: {', '.join(reasons)}"
