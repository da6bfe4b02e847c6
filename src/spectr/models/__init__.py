"""Hugging Face models, driven unmodified: the only folder that imports transformers.

A target is scored on whole token trees with our cache and an explicit mask; nothing here knows rules or drafters.
"""
