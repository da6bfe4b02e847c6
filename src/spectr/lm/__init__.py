"""What users call: `load` gives an `LM`, an `LM` gives texts.

Read in this order: `loading` (a model, a drafter and a rule by name), `model` (prompts and settings become requests),
`settings` (what can be said of a request), `output` (text as it comes, and at its end), `chat` (a conversation).
"""

from spectr.lm.chat import Chat
from spectr.lm.loading import load
from spectr.lm.model import LM
from spectr.lm.output import Output, TextHandle

__all__ = ["LM", "Chat", "Output", "TextHandle", "load"]
