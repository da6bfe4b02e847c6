"""spectr: lossless multi-draft speculative decoding."""

from spectr.transport import coupling, optimal_acceptance, race_acceptance

__all__ = ["coupling", "optimal_acceptance", "race_acceptance"]
