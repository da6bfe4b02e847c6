"""Benchmarks: commands with JSON results, never timed tests. A figure stands beside the command that made it."""
