"""The files of the page at ``/``: static, and nothing in them comes from elsewhere. They say nothing of the worker."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from framework.admin.requests import Answer

_FOLDER = Path(__file__).parent / "page"
_KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_RULES = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)
PATHS = {"/": "index.html", **{f"/{name}": name for name in ("page.css", "page.js", "parts.js", "grid.js", "dead.js")}}


@cache
def asset(path: str) -> Answer:
    """One of ``PATHS``."""
    file = _FOLDER / PATHS[path]
    return Answer(200, _KINDS[file.suffix], file.read_bytes(), _RULES)
