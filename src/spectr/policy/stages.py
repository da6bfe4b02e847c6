"""The stages of policies: the parts of a policy's computation that some rows use and others do not."""

from spectr.policy.policy import Policy

__all__ = [
    "EDITS",
    "FLOATS",
    "HOOKS",
    "LIMITS",
    "MASKED",
    "SETS",
    "SHAPING",
    "STAGES",
    "TEXT_DEPENDENT",
    "WHOLES",
    "rounded",
    "stages_of",
]

# Settings and the values at which they are off.
FLOATS = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
# Numbers beyond these are taken for the limit: they could become 0 or infinite in float32, and logits NaN. Logits of
# models are far smaller, so the distribution is the same but for rounding, unless a temperature above a million divides
# a bias or a penalty above the limit. At 1e9 the race's noise still decides between tokens with the same bias.
LIMITS = {
    "temperature": (1e-30, 1e30), "repetition_penalty": (1e-15, 1e15), "logit_bias": (-1e9, 1e9),
    "presence_penalty": (-1e9, 1e9), "frequency_penalty": (-1e9, 1e9),
}  # fmt: skip
WHOLES = {"top_k": 0, "no_repeat_ngram_size": 0, "min_new_tokens": 0, "min_length": 0}
# Settings that are sets of tokens.
SETS = ("begin_suppress_tokens", "forced_eos_token_id")
# Stages by group; `spectr.policy.rows` has the order in which they are applied. "low_temperature" is one close to 0,
# "bias" everything that is added to tokens everywhere, "count_penalties" the presence and frequency penalties, and
# "minimum_lengths" those with and without the prompt.
SHAPING = (
    "temperature", "low_temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "greedy",
)  # fmt: skip
EDITS = ("bias", "repetition_penalty", "count_penalties", "no_repeat_ngram_size", "bad_words", "minimum_lengths", *SETS)
HOOKS = ("allowed", "processors")
STAGES = (*SHAPING, *EDITS, *HOOKS)
MASKED = "masked"
"""Not a stage of a policy but one before it: a grammar has excluded some tokens."""
TEXT_DEPENDENT = frozenset(EDITS) - {"bias"}  # stages that depend on the text
_ALWAYS = frozenset({"temperature", "low_temperature", "greedy"})
_COMMON = frozenset({"temperature", "greedy", "low_temperature", "top_k", "top_p", "min_p"})
_PENALTIES = _ALWAYS | {"bias", "repetition_penalty", "count_penalties", "minimum_lengths"}
_ALL = frozenset(SHAPING) | frozenset(EDITS)


def rounded(stages: frozenset[str]) -> frozenset[str]:
    """Round a set of stages up to one of few sets: a captured step serves all policies that use no other stages."""
    tiers = (frozenset({"temperature"}), _ALWAYS, _COMMON, _PENALTIES, _COMMON | _PENALTIES, _ALL)
    return next((tier for tier in tiers if stages <= tier), _ALL | stages)


def stages_of(policy: Policy) -> frozenset[str]:
    """Return the stages that a policy uses."""
    used = {name for name, off in (FLOATS | WHOLES).items() if getattr(policy, name) != off}
    if used & {"presence_penalty", "frequency_penalty"}:
        used.add("count_penalties")
    if used & {"min_new_tokens", "min_length"}:
        used.add("minimum_lengths")
    if policy.logit_bias or policy.suppress_tokens or any(len(word) == 1 for word in policy.bad_words):
        used.add("bias")
    if any(len(word) > 1 for word in policy.bad_words):
        used.add("bad_words")
    used |= {name for name in SETS if getattr(policy, name)}
    used |= {"allowed"} if policy.allowed is not None else set()
    used |= {"processors"} if policy.processors else set()
    if policy.temperature == 0:  # the filters would change nothing
        used = (used - set(SHAPING)) | {"greedy"}
    elif policy.temperature < 1e-3:
        used.add("low_temperature")
    return frozenset(used) & frozenset(STAGES)
