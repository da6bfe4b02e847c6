"""Trains drafters on samples of their target: sampling, objective, training loop, and the resulting folder."""
