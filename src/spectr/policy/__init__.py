"""The policy: from a model's logits to the logits of the law that is sampled. One for target and drafter.

Settings are maps of logits, so losslessness is always with respect to the law *after* the policy. Greedy is temperature
0, the point-mass law, and no second code path. Where a setting looks at the text, each node of a tree has its own: what
its row committed, then its path. Knows no model, no tokenizer and no rule.
"""

from spectr.policy.history import History, Past
from spectr.policy.policy import Policy, merge_settings
from spectr.policy.rows import PolicyRows

__all__ = ["History", "Past", "Policy", "PolicyRows", "merge_settings"]
