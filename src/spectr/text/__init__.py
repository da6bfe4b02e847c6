"""Tokens to text as they come, the bytes of tokens, and what a prompt may be."""
