"""Data that ships with spectr: prompts, and the papers behind the rules."""
