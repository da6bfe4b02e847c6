"""Evidence: exact laws by enumeration, of the same code that generates."""

from spectr.audit.exact import StepLaw, enumerate_steps, exact_step_law

__all__ = ["StepLaw", "enumerate_steps", "exact_step_law"]
