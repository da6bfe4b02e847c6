"""Serves the playground: its files, and a description of the server for them."""

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from spectr.draft.traits import DrafterTraits
from spectr.serve.errors import ApiError
from spectr.serve.service import Service
from spectr.verify import RULES
from spectr.verify import rule as named_rule

__all__ = ["add_pages"]

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_OFFERED = ("race", "optimal", "kseq", "recursive", "match")
"""Rules that the playground compares."""


def add_pages(app: FastAPI, service: Service) -> None:
    """Serve the playground."""
    folders = [files("spectr.view").joinpath("assets"), files("spectr.serve").joinpath("playground")]
    found = [path for folder in folders for path in folder.iterdir()]
    pages = {path.name: path.read_bytes() for path in found if path.name.rpartition(".")[2] in _KINDS}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(pages["index.html"], media_type=_KINDS["html"], headers=_SAFE)

    @app.get("/play/about", include_in_schema=False)
    async def about() -> dict[str, Any]:
        return {
            "model": service.name, "drafter": service.lm.engine.drafter.name, "arithmetic": service.arithmetic,
            "ready": service.is_ready, "reason": service.not_ready, "needs_key": bool(service.settings.keys),
            "rules": [_rule(name, service) for name in RULES.names()],
        }  # fmt: skip

    @app.get("/play/{name}", include_in_schema=False)
    async def page(request: Request, name: str) -> Response:
        if name not in pages:
            raise ApiError(404, f"there is no page {request.url.path[:80]!r}")
        return Response(pages[name], media_type=_KINDS[name.rpartition(".")[2]], headers=_SAFE)


def _rule(name: str, service: Service) -> dict[str, Any]:
    """A rule, and the drafter that rules are compared with: the server's own if it has distributions, else ngram."""
    card, own = named_rule(name).card, service.lm.engine.drafter
    has_laws = DrafterTraits(own).head is not None or own.gives_laws
    return {
        "name": name, "lossless": card.lossless, "offered": name in _OFFERED and card.lossless,
        "drafter": None if has_laws else "ngram", "nodes": min(own.nodes, 64) if own.nodes > 1 else None,
    }  # fmt: skip
