"""Measures the server under load: `python -m benchmarks.serving`.

The same requests run on the engine alone and over HTTP, in turns, with a fixed number in flight. The client runs in a
separate process. A soak test keeps a few clients busy for minutes and records errors and memory.
"""

from benchmarks.serving.run import run
from benchmarks.serving.tables import tables

__all__ = ["run", "tables"]
