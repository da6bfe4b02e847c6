"""Drafters that learn from their target: samples, objective, training, and the folder that comes out."""
