"""Benchmarks: commands with JSON results, which include the command that produced them. Tests are never timed."""
