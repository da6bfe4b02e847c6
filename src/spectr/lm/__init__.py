"""The interface for users: `load` returns an `LM`, and an `LM` generates texts.

Read in this order: `loading` (loads a model, a drafter and a rule), `model` (turns prompts and settings into requests),
`settings` (the settings of a request), `output` (text as it is generated, and at its end), `chat` (a conversation).
"""

from spectr.lm.chat import Chat
from spectr.lm.loading import load
from spectr.lm.model import LM
from spectr.lm.output import Output, TextHandle

__all__ = ["LM", "Chat", "Output", "TextHandle", "load"]
