"""The `spectr` command: reads flags, prints results on stdout and talk on stderr. Computes nothing itself."""

from spectr.cli.app import app, main

__all__ = ["app", "main"]
