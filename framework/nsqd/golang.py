"""The few habits of Go that show in NSQ's flags and answers: durations, quoted strings, base 10, JSON, queries."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar
from urllib.parse import unquote_plus

T = TypeVar("T")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_INT64 = (-(1 << 63), (1 << 63) - 1)
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


def whole(text: str, of: str = "") -> int:
    """``of``: what is counted, in the plural. Raises ValueError, whose words Python's own ``int`` would not have."""
    try:
        return int(text)
    except ValueError:
        what = f"a whole number of {of}" if of else "a whole number"
        raise ValueError(f"{text!r} is not {what}: write digits alone, such as 100000") from None


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


def query(text: str) -> dict[str, list[str]]:
    """A URL's query as net/url reads it. Raises ValueError for a semicolon and for what is no escape."""
    if ";" in text or _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} is no query")
    found: dict[str, list[str]] = {}
    for pair in filter(None, text.split("&")):
        key, _, value = pair.partition("=")
        found.setdefault(unquote_plus(key, errors="surrogateescape"), []).append(unquote_plus(value, errors="surrogateescape"))
    return found


def unmarshal(body: bytes, into: T, limits: dict[str, tuple[int, int]] | None = None) -> T:
    """Set the fields of a dataclass as encoding/json does: names in any case, null is nothing, other types are errors.

    ``limits`` are those of fields that are no int64. Raises ValueError.
    """
    found = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse)
    if found is None:
        return into
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- as all that is wrong with a body
    fields = vars(into)
    for key, value in found.items():
        name = key.lower()
        if name in fields and value is not None:
            setattr(into, name, _typed(name, value, type(fields[name]), (limits or {}).get(name, _INT64)))
    return into


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _typed(name: str, value: Any, wanted: type, limits: tuple[int, int]) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"{name} is of another type")
    if isinstance(value, int) and not limits[0] <= value <= limits[1]:
        raise ValueError(f"{name} is out of range")
    return value
