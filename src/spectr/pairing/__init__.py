"""A drafter for a target: `fit` says what it has to fit, `kinds` makes one of each kind, `pair` chooses."""

from spectr.pairing.pair import as_rule, auto_drafter, chooses_while_running, drafters_for, pair, planned_rule

__all__ = ["as_rule", "auto_drafter", "chooses_while_running", "drafters_for", "pair", "planned_rule"]
