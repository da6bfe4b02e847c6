"""A text as it came about: its steps as data, and as a page that needs nothing else.

`tokens` the text and the bytes of single tokens
`trace`  a step as data: tokens, origins, the tree
`page`   one file with everything in it; `assets/` is what it shares with the playground
"""

from spectr.view.page import page, save_page
from spectr.view.tokens import TokenTexts
from spectr.view.trace import traced

__all__ = ["TokenTexts", "page", "save_page", "traced"]
