"""Decodes tokens to text piece by piece, finds the bytes of tokens, and checks prompts."""
