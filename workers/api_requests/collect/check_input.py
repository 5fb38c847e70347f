"""Looks at the start of an input before anything is started for it. Reading it is ``workers publish``'s work."""

from __future__ import annotations

import zlib
from pathlib import Path

from framework import WrongUse

_START = 8192
_TEXT = bytes(range(32, 256)) + b"\t\n\r\f\x1b"


def check_input(path: Path) -> None:
    """Raises WrongUse with a sentence for a file that cannot be a log."""
    # What is read of a pipe here would be missing there, and a pipe that nobody writes to is waited for without an end.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise WrongUse(f"--input {path}: it is a pipe or a device: name an access log, plain or .gz")
    try:
        start = _start_of(path)
    except OSError as error:
        reason = "is a folder" if path.is_dir() else error.strerror or str(error)
        raise WrongUse(f"--input {path}: {reason}: name an access log, plain or .gz") from error
    if not start:
        raise WrongUse(f"--input {path}: there is nothing in it that can be read: name an access log, plain or .gz")
    if b"\0" in start or len(start.translate(None, _TEXT)) * 20 > len(start):
        raise WrongUse(f"--input {path}: it is binary, not lines of text: name an access log, plain or .gz")


def _start_of(path: Path) -> bytes:
    """The first bytes, unpacked; of a damaged gzip as much as there is."""
    with path.open("rb") as plain:
        start = plain.read(_START)
    if not start.startswith(b"\x1f\x8b"):
        return start
    member = zlib.decompressobj(wbits=31)
    try:
        return member.decompress(start, _START)
    except zlib.error:
        return b""
