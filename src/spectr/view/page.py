"""Writes a traced text as one HTML file, which needs no server and no network. Its content security policy allows only
its own script."""

import base64
import html
import json
import re
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from spectr.engine import Step
from spectr.errors import ArgumentError
from spectr.view.tokens import TokenTexts
from spectr.view.trace import traced

__all__ = ["page", "save_page"]

_SCRIPTS = ("trace.js", "tree.js", "steps.js", "offline.js")
_MODULE_LINE = re.compile(r'^import .* from "\./.*";\n', re.MULTILINE)
_BODY = """<header class="bar"><span class="brand">spectr</span><span class="muted">{about}</span></header>
<main><section class="view chat"><div class="talk card"><div class="card-head"><h2>The text</h2></div>
<ul id="legend" class="legend"></ul><p id="text" class="prose"></p></div>
<div class="think card"><div class="card-head"><h2>The tree of step <span id="step-number">–</span></h2>
<span class="grow"></span><span id="step-gain" class="muted"></span></div>
<div class="scrub"><button id="play" type="button" aria-label="Play the steps">▶</button>
<input id="slider" type="range" min="0" max="0" value="0" aria-label="Step"></div>
<div id="tree" class="tree"></div><p id="why" class="why" role="status"></p></div></section></main>
"""


def _asset(name: str) -> str:
    return files("spectr.view").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """Join the modules into one script."""
    parts = [_MODULE_LINE.sub("", _asset(name)) for name in _SCRIPTS]
    return "".join(re.sub(r"^export ", "", part, flags=re.MULTILINE) for part in parts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def page(steps: Sequence[Step], texts: TokenTexts, about: str = "") -> str:
    """Return the page of a traced text."""
    if not steps or all(step.tree is None for step in steps):
        raise ArgumentError("a page needs a traced text, and this one was not traced; use generate(…, trace=True)")
    data: Any = {"steps": [traced(step, texts) for step in steps]}
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # no text can end the script element
    script, style = _script(), _asset("style.css")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>spectr trace</title>'
        f"<style>{style}</style></head><body>{_BODY.format(about=html.escape(about))}"
        f'<script type="application/json" id="data">{embedded}</script><script>{script}</script></body></html>\n'
    )


def save_page(path: str | Path, steps: Sequence[Step], texts: TokenTexts, about: str = "") -> None:
    """Write the page of a traced text."""
    Path(path).write_text(page(steps, texts, about), encoding="utf-8")
