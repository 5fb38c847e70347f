"""How much of an answer by HTTP is read: of one without an end only the beginning. It asks for nothing, and limits no time."""

from __future__ import annotations

from typing import Any

MOST = 64 << 10
"""Bytes, unpacked: a server says in fewer what it did not take."""


def beginning_of(raw: Any) -> bytes:
    """Of ``raw``, an answer of urllib3 that was not read yet. Its connection is used again only if that is all."""
    content: bytes = raw.read(MOST, decode_content=True)
    if raw.closed:
        raw.release_conn()
    else:
        raw.close()
    return content
