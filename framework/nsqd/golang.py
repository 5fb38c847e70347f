"""The few habits of Go that show in nsqd's flags and answers: durations, quoted strings, base 10."""

from __future__ import annotations

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def duration(text: str) -> float:
    """``1h2m3.5s`` in seconds. Raises ValueError."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        raise ValueError(f"{text!r} is not a duration such as 250ms, 60s or 1h30m")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in parts)


def quote(raw: bytes) -> str:
    """``raw`` as Go's %q writes it: printable text as it is, the rest escaped."""
    return '"' + "".join(map(_quoted, raw.decode("utf-8", "surrogateescape"))) + '"'


def _quoted(char: str) -> str:
    code = ord(char)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable():
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def base10(digits: bytes) -> int | None:
    """As nsqd reads numbers: digits only, nothing is 0, too much wraps at 64 bits; None for anything else."""
    if not digits:
        return 0
    # isdigit of bytes is ASCII only.
    return int(digits) & 0xFFFFFFFFFFFFFFFF if digits.isdigit() and len(digits) < 4000 else None


def signed(number: int) -> int:
    """An unsigned 64 bit number as Go converts it to int64."""
    return number - (1 << 64) if number >= 1 << 63 else number
