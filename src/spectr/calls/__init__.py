"""Calls of functions, which OpenAI's interface calls tools: a model asks its client to run a function and to come back
with the result. In reading order:

`form`     how a model's chat template writes a call, found by letting it write one
`reader`   reads calls from a text, piece by piece
`grammar`  grammars of texts that contain valid calls, or consist of them

The folder does not depend on models or the engine.
"""

from spectr.calls.form import TEMPLATE_ERRORS, CallForm
from spectr.calls.grammar import Function, call_grammar
from spectr.calls.reader import CallPart, CallReader, Piece

__all__ = ["TEMPLATE_ERRORS", "CallForm", "CallPart", "CallReader", "Function", "Piece", "call_grammar"]
