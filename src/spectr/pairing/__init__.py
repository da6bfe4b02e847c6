"""Makes a drafter for a target: `fit` sizes its tree, `kinds` makes each kind of drafter, `pair` chooses one."""

from spectr.pairing.pair import as_rule, auto_drafter, chooses_while_running, drafters_for, pair, planned_rule

__all__ = ["as_rule", "auto_drafter", "chooses_while_running", "drafters_for", "pair", "planned_rule"]
