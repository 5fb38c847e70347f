"""Markdown that the code makes for pages of docs/: lists whose lines fit an editor. Knows no page."""

from __future__ import annotations

import textwrap

WIDTH = 120
"""The most characters of a line."""


def filled(text: str, *, indent: str = "", width: int = WIDTH) -> str:
    """``text`` as one paragraph; its second line and those after it begin with ``indent``."""
    return textwrap.fill(" ".join(text.split()), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """``text`` as an item of a list."""
    return filled(f"- {text}", indent="  ")
