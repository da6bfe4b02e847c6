"""Drivers: one file per family of models, which calls an unmodified model with explicit positions and masks."""
