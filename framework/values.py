"""What the value of a setting may be: a parser for each kind. Each raises ValueError, with words that go behind the value."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from framework import durations

LOG_LEVELS = ("debug", "info", "warning", "error")

_BEFORE_UNIT = re.compile(r"(?<=\d)\s+(?=[a-z])")
_BETWEEN_URLS = re.compile(r"\s+|,\s*(?=[a-z][a-z+.-]*://)")


def duration(value: object) -> float:
    """Seconds, from 25, "25", "25s", "500ms", "2m" or "1h". Raises ValueError."""
    text = _BEFORE_UNIT.sub("", str(value).strip().lower())
    seconds = durations.seconds(text)
    if seconds is None:
        seconds = durations.seconds(f"{text}s")
    if isinstance(value, bool) or seconds is None:
        raise ValueError("is not a duration: write seconds as 25 or 25s, or 500ms, 2m, 1h")
    if seconds > durations.LONGEST:
        raise ValueError(f"is too long: write {durations.LONGEST / 3600:.0f}h or less")
    return seconds


def pause(value: object) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError("must be longer than 0: write 15s, for example")
    return seconds


def deadline(value: object) -> float | None:
    return None if str(value).lower() == "never" else duration(value)


def urls(value: object) -> tuple[str, ...]:
    """A URL, several with spaces or commas between them, or a list of them."""
    parts = value if isinstance(value, list | tuple) else [value]
    words = [part for part in parts if isinstance(part, str)]
    if len(words) < len(parts):
        raise ValueError("is not a URL or a list of them: write nsq://host:4150")
    if not all(map(str.strip, words)):  # --broker "$UNSET" must not start an nsqd in place of the broker that was meant
        raise ValueError("is not a URL: write nsq://host:4150")
    return tuple(url for word in words for url in _BETWEEN_URLS.split(word) if url)


def path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("is not a path")
    return Path(value)


def address(value: object) -> str:
    host, colon, port = str(value).rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise ValueError("is not an address: write host:port, as 127.0.0.1:4150")
    return str(value)


def admin(value: object) -> str:
    """A Unix socket is told from an address by its slash."""
    text = str(value)
    if "/" in text:
        return text
    try:
        return address(f"127.0.0.1:{text.removeprefix(':')}" if text.removeprefix(":").isdecimal() else text)
    except ValueError:
        raise ValueError("is not an address: write a port, host:port, or the path of a Unix socket") from None


def level(value: object) -> str:
    if str(value).lower() not in LOG_LEVELS:
        raise ValueError(f"is not a log level: write one of {', '.join(LOG_LEVELS)}")
    return str(value).lower()


def word(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if str(value).lower() not in words:
            raise ValueError(f"is not {' or '.join(words)}")
        return str(value).lower()

    return parse


def part(value: object) -> float:
    try:
        part = float(str(value))
    except ValueError:
        part = -1.0
    if isinstance(value, bool) or not 0 <= part <= 1:
        raise ValueError("is not a number from 0 to 1")
    return part


def yes_or_no(value: object) -> bool:
    word = str(value).lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("is not true or false")
    return word in ("true", "1", "yes")


def dsn(value: object) -> str:
    parts = urlsplit(str(value))
    whole = parts.username and parts.hostname and parts.path.rpartition("/")[2].isdecimal()
    if parts.scheme not in ("http", "https") or not whole:
        raise ValueError("is not a DSN: write it as Sentry shows it, https://KEY@HOST/PROJECT")
    return str(value)


def token(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{16,}", value):
        raise ValueError("is not 16 or more letters, digits and signs without a space: `openssl rand -hex 20` makes one")
    return value
