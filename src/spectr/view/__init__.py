"""Shows how a text was generated: its steps as data, and as a self-contained page.

`tokens` decodes single tokens to text and bytes
`trace`  turns a step into data: tokens, origins, the tree
`page`   writes one HTML file; it shares `assets/` with the playground
"""

from spectr.view.page import page, save_page
from spectr.view.tokens import TokenTexts
from spectr.view.trace import traced

__all__ = ["TokenTexts", "page", "save_page", "traced"]
