"""NATS's headers as bytes <-> values, and the status that a server says in them. No I/O here.

Whoever published a message wrote its headers, and no server looks at them: what cannot be read is passed over, without an error.
Source: ADR-4 of NATS (headers), ADR-13 (pull consumers) for statuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from framework.errors import BadMessage
from framework.headers import NONE, Headers

VERSION = b"NATS/1.0"
_STATUS = re.compile(rb"NATS/1\.0[ \t]+(\d{3})[ \t]*([^\r\n]*)")
_ONLY_AN_ID = VERSION + b"\r\nNats-Msg-Id:"
_NAME = re.compile(r"[!-9;-~]+")


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """The header block of ``fields``, in their order; empty where there are none. Values are UTF-8, as other clients write them.

    Raises BadMessage for what would not come back as it is."""
    lines = [_line(name, value) for name, value in fields]
    return b"\r\n".join([VERSION, *lines, b"", b""]) if lines else b""


def _line(name: str, value: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise BadMessage(f"header {name!r}: a name is of visible ASCII characters, without a colon")
    if "\r" in value or "\n" in value:
        raise BadMessage(f"header {name!r}: its value {value!r} has more than one line")
    try:
        return f"{name}: {value}".encode()
    except UnicodeEncodeError:
        raise BadMessage(f"header {name!r}: its value {value!r} has no UTF-8") from None


def decode(block: bytes) -> list[tuple[str, str]]:
    """The fields of a header block as it came, in order. Bytes that are no UTF-8 are kept as surrogates (PEP 383)."""
    _, _, rest = block.partition(b"\n")
    fields = []
    for line in rest.split(b"\n"):
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and name:
            fields.append((_text(name), _text(value.removeprefix(b" "))))
    return fields


def for_handlers(block: bytes) -> Headers:
    """What a handler is shown: all but what is NATS's own, whose names begin with ``Nats-``. Values of one name are joined."""
    if not block or (block.startswith(_ONLY_AN_ID) and block.find(b"\n", len(_ONLY_AN_ID)) == len(block) - 3):
        return NONE  # most messages: every one of ours has an id
    shown: dict[str, str] = {}
    for name, value in decode(block):
        if not name.startswith("Nats-"):
            shown[name] = f"{shown[name]}, {value}" if name in shown else value
    return shown or NONE


def find(block: bytes, name: bytes) -> bytes:
    """The value of the first field ``name``, in any case; empty where there is none."""
    found = re.search(rb"(?mi)^" + re.escape(name) + rb":[ \t]*([^\r\n]*)", block)
    return found[1].rstrip(b" \t") if found else b""


def status(block: bytes) -> tuple[int, str]:
    """Its code and words: ``408 Request Timeout``; 0 for the headers of a message."""
    found = _STATUS.match(block)
    return (int(found[1]), found[2].decode(errors="replace")) if found else (0, "")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
