"""How a dead letter looks: a row of a table, a page, a line of JSON. It prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from framework.deadletters import Letter, as_dict

__all__ = ["HEAD", "as_dict", "json_line", "page", "printable", "row"]

HEAD = f"{'ID':<16}  {'DIED':<20}  {'ATTEMPTS':>8}  REASON"
_TEXT_CONTROLS = "\n\r\t"


def row(letter: Letter) -> str:
    """A row below HEAD."""
    return f"{letter.id:<16}  {_time(letter.dead):<20}  {letter.attempts or '?':>8}  {printable(letter.reason)}"


def page(letter: Letter, dead_topic: str) -> Iterator[str]:
    """Everything that is known, a line at a time."""
    yield f"id         {letter.id}"
    yield f"topic      {letter.topic or '?'}"
    yield f"channel    {letter.channel or '?'}"
    yield f"node       {letter.node or '?'}"
    yield f"attempts   {letter.attempts or '?'}"
    yield f"published  {_time(letter.published, exact=True)}"
    yield f"died       {_time(letter.dead, exact=True)}"
    yield f"letter in  {dead_topic} ({letter.message.node})"
    yield f"reason     {printable(letter.reason)}"
    yield from (f"header     {printable(name)}: {printable(value)}" for name, value in letter.headers.items())
    if letter.traceback:
        yield "traceback"
        yield from (f"  {printable(line)}" for line in letter.traceback.splitlines())
    yield f"body       {len(letter.body)} bytes"
    yield from (f"  {line}" for line in _body(letter.body))


def json_line(values: Any) -> str:
    return msgspec.json.encode(values).decode()


def printable(text: str) -> str:
    """``text`` without what would move the cursor or colour the terminal: letters quote what strangers sent."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _time(time: datetime | None, *, exact: bool = False) -> str:
    if time is None:
        return "?"
    return time.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds" if exact else "seconds").replace("+00:00", "Z")


def _body(body: bytes) -> Iterator[str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _hex_dump(body)
    if all(c.isprintable() or c in _TEXT_CONTROLS for c in text):
        return iter(text.expandtabs().splitlines())
    return _hex_dump(body)


def _hex_dump(body: bytes) -> Iterator[str]:
    """``00000010  68 65 6c 6c 6f  |hello|``"""
    for at in range(0, len(body), 16):
        some = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        yield f"{at:08x}  {some.hex(' '):<47}  |{text}|"
