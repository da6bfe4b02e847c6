"""The `spectr` command: it parses flags, calls the library, and prints results on stdout and messages on stderr."""

from spectr.cli.app import app, main

__all__ = ["app", "main"]
