"""The policies of several rows as one function of logits.

Settings are tensors, so that a step does not depend on their values. What a setting does is computed where some row
uses it, and it leaves the logits of rows that do not use it bit-identical. On a CPU only the rows that use a setting
are computed. On a GPU all rows are computed, and the others are put back: so a captured step serves any policies, as
long as they use no further stages. There, kernels compute the common stages."""

from collections.abc import Callable

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy import filters
from spectr.policy.fused import FUSED_EDITS, FUSED_SHAPING, edited, fusible, shaped
from spectr.policy.history import History, Past
from spectr.policy.hooks import process, strike_disallowed
from spectr.policy.penalties import (
    add_bias,
    force_last,
    penalise_counts,
    penalise_repetition,
    strike_first,
    strike_repeats,
    strike_stops,
    strike_words,
)
from spectr.policy.stages import HOOKS, MASKED, SHAPING, STAGES, TEXT_DEPENDENT
from spectr.policy.tables import PolicyTables, distinct

__all__ = ["PolicyRows"]


class PolicyRows(PolicyTables):
    """Computes the policies of rows."""

    def __call__(
        self,
        logits: Tensor,
        past: Past | None = None,
        *,
        ranked: bool = False,
        roughly: bool = False,
        stages: frozenset[str] | None = None,
    ) -> Tensor:
        """Return logits (B, M, V) of the distributions to sample, float32 or better; excluded tokens are −inf. A
        `past` is needed if the policy of some row depends on its text. With `ranked`, for drafting, greedy rows keep
        the ranking of their tokens. With `roughly`, kernels for top-k and top-p may keep a few tokens too many.
        `stages` are computed, by default those that some row uses."""
        stages = self.stages() if stages is None else stages
        if stages - set(SHAPING):
            raw = logits
            logits = self._apply_edits(raw, self._checked_past(raw, past, stages), stages)
            if self.may_leave_none(None if past is None else past.history, stages):
                dead = _is_dead(logits)
                if past is None and dead.any():
                    raise ArgumentError(
                        "logit_bias, bad_words and suppress_tokens must leave at least one token, and they leave none"
                    )
                logits = torch.where(dead[..., None], raw, logits)
        stages = stages - {"greedy"} if ranked else stages
        if roughly and stages & FUSED_SHAPING and fusible(logits):
            logits, stages = shaped(self, logits, stages, roughly=True), stages - FUSED_SHAPING
        return self._apply_shaping(logits, stages)

    def leave_none(self, logits: Tensor, past: Past, stages: frozenset[str] | None = None) -> Tensor:
        """(B, M) bool: where the settings exclude all tokens of logits (B, M, V), so that the raw logits were used."""
        stages = self.stages() if stages is None else stages
        return _is_dead(self._apply_edits(logits, self._checked_past(logits, past, stages), stages))

    def _apply_edits(self, logits: Tensor, past: Past | None, stages: frozenset[str]) -> Tensor:
        """Apply all settings that act before the temperature."""
        if not fusible(logits):  # otherwise the kernel of the penalties adds the bias
            logits = _promoted(logits)
            if "bias" in stages and self.bias is not None:
                logits = self._put_back("bias", add_bias(logits, self.bias), logits)
        return self._apply_text_settings(logits, past, stages)

    def _apply_text_settings(self, logits: Tensor, past: Past | None, stages: frozenset[str]) -> Tensor:
        """Apply the settings that depend on each node's text, in the order that `Policy` documents."""
        functions: list[tuple[str, Callable[..., Tensor]]] = [
            ("repetition_penalty", lambda rows, x, p: penalise_repetition(
                x, p, rows._setting("repetition_penalty", x))),
            ("count_penalties", lambda rows, x, p: penalise_counts(
                x, p, rows._setting("presence_penalty", x), rows._setting("frequency_penalty", x))),
            ("no_repeat_ngram_size", lambda rows, x, p: strike_repeats(
                x, p, rows.number("no_repeat_ngram_size"), rows.reach)),
            ("bad_words", lambda rows, x, p: strike_words(x, p, rows.last, rows.before)),
            ("minimum_lengths", lambda rows, x, p: strike_stops(
                x, p, rows.number("min_new_tokens"), rows.number("min_length"))),
            ("allowed", lambda rows, x, p: strike_disallowed(x, p, [policy.allowed for policy in rows.policies])),
            ("begin_suppress_tokens", lambda rows, x, p: strike_first(x, p, rows.sets["begin_suppress_tokens"])),
            ("forced_eos_token_id", lambda rows, x, p: force_last(x, p, rows.sets["forced_eos_token_id"])),
            ("processors", lambda rows, x, p: process(x, p, [policy.processors for policy in rows.policies])),
        ]  # fmt: skip
        if stages & FUSED_EDITS and fusible(logits):
            logits, stages = edited(self, logits, past, stages), stages - FUSED_EDITS
        logits = _promoted(logits)
        for name, apply in functions:
            if name in stages:
                logits = self._put_back(name, apply(self, logits, past), logits)
        return logits

    def _apply_shaping(self, logits: Tensor, stages: frozenset[str]) -> Tensor:
        """Apply the temperature and then the filters, or the point mass."""
        functions: list[tuple[str, Callable[..., Tensor]]] = [
            ("low_temperature", lambda _, x: x - x.amax(-1, keepdim=True)),  # otherwise the division could overflow
            ("temperature", lambda rows, x: x / rows._setting("temperature", x)),
            ("top_k", lambda rows, x: filters.keep_top_k(x, rows.number("top_k")[:, None, None])),
            ("top_p", lambda rows, x: filters.keep_top_p(x, rows._exact_setting("top_p"))),
            ("min_p", lambda rows, x: filters.keep_min_p(x, rows._setting("min_p", x))),
            ("typical_p", lambda rows, x: filters.keep_typical(x, rows._exact_setting("typical_p"))),
            ("epsilon_cutoff", lambda rows, x: filters.keep_epsilon(x, rows._setting("epsilon_cutoff", x))),
            ("eta_cutoff", lambda rows, x: filters.keep_eta(x, rows._setting("eta_cutoff", x))),
            ("greedy", lambda _, x: filters.point_mass(x)),
        ]
        if stages & FUSED_SHAPING and fusible(logits):
            logits, stages = shaped(self, logits, stages, roughly=False), stages - FUSED_SHAPING
        logits = _promoted(logits)
        for name, apply in functions:
            if name in stages:
                logits = self._where_used(name, apply, logits)
        return logits

    def _where_used(self, name: str, apply: Callable[["PolicyRows", Tensor], Tensor], logits: Tensor) -> Tensor:
        """Apply a stage to the rows that use it; on a CPU it is computed for those only."""
        rows = [row for row, used in enumerate(self.used) if name in used]
        if logits.device.type != "cpu" or len(rows) == len(self):
            return self._put_back(name, apply(self, logits), logits)
        if not rows:
            return logits
        index = torch.tensor(rows)
        return logits.index_copy(0, index, apply(self.take_rows(rows), logits[index]))

    def _put_back(self, name: str, edited: Tensor, logits: Tensor) -> Tensor:
        """Return the edited logits in the rows that use a stage, and the original logits in the others."""
        if logits.device.type == "cpu" and all(name in used for used in self.used):
            return edited
        return torch.where(self._uses[:, STAGES.index(name), None, None], edited, logits)

    def _setting(self, name: str, like: Tensor) -> Tensor:
        """(B, 1, 1): a setting in the dtype of logits."""
        return self.number(name).to(like.dtype)[:, None, None]

    def _exact_setting(self, name: str) -> Tensor:
        """(B, 1, 1): a setting in float64."""
        return self.number(name)[:, None, None]

    def _checked_past(self, logits: Tensor, past: Past | None, stages: frozenset[str]) -> Past | None:
        """Return the past if a stage needs it; raise ArgumentError if it is missing or has other shapes."""
        looking = stages & {*TEXT_DEPENDENT, *HOOKS}
        if past is None and looking:
            raise ArgumentError("this policy looks at the text and needs a past; call policy(logits, past)")
        if past is None or not looking:
            return None
        rows, vocabulary = len(past.history), past.history.vocabulary
        shape, paths = tuple(logits.shape), tuple(past.paths.shape)
        if len(shape) != 3 or shape[::2] != (rows, vocabulary) or len(paths) != 3 or paths[:2] != shape[:2]:
            raise ArgumentError(
                f"logits must be (B, M, V) and paths (B, M, D), with B = {rows} rows and V = {vocabulary} tokens as in "
                f"the history, got {shape} and {paths}"
            )
        return past

    def may_leave_none(self, history: History | None, stages: frozenset[str]) -> bool:
        """Whether the settings of some row could exclude every token, judged by the settings only: checking the logits
        would wait for the device."""
        if stages.issubset(SHAPING):
            return False
        return MASKED in stages or any(
            policy.may_leave_none(self.vocabulary, history) for policy in distinct(self.policies)
        )


def _promoted(logits: Tensor) -> Tensor:
    """The logits in float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _is_dead(logits: Tensor) -> Tensor:
    """(B, M) bool: whether no token is left; NaN counts as no token."""
    return ~(logits.amax(-1) > -torch.inf)
