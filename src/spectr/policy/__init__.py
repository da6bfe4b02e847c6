"""The policy turns a model's logits into the logits of the distribution that is sampled, for target and drafter alike.

Settings are functions of logits, so losslessness always refers to the distribution *after* the policy. Greedy decoding
is temperature 0, which gives a point mass, and needs no second code path. Where a setting depends on the text, each
node of a tree has its own text: the committed text of its row, then its path. The folder depends on no model, tokenizer
or rule."""

from spectr.policy.history import History, Past
from spectr.policy.policy import Policy, merge_settings
from spectr.policy.rows import PolicyRows

__all__ = ["History", "Past", "Policy", "PolicyRows", "merge_settings"]
