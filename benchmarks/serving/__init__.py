"""The server under load: `python -m benchmarks.serving`.

The same requests are run by the engine alone and over HTTP, in turn, with a fixed number in flight; the client is a
process of its own. A part of its own keeps a few clients busy for minutes, and watches errors and memory.
"""

from benchmarks.serving.run import run
from benchmarks.serving.tables import tables

__all__ = ["run", "tables"]
