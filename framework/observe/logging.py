"""How log lines look, as text or as JSON, on stderr, with no secrets in them; no policy on what is logged."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from framework.observe import logfile, stderr
from framework.observe.call import bind_records
from framework.observe.tracebacks import own_frames

_USER_INFO = re.compile(r"(?<=://)[^/\s'\"]+@")
_SECRET_OPTION = re.compile(r"(?i)(?<=[?&])([\w.-]*(?:secret|passw(?:or)?d|token|api[_-]?key|signature)=)[^&#\s'\"]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys, but for the tab: it would clear the screen, set a title, or turn the words around."""
_OF_ALL = {*vars(logging.makeLogRecord({})), "message", "asctime", "call"}
LONGEST = 65_536
"""Characters of a record's words and traceback: what collectors of logs take, and several times what anybody reads."""
_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def scrub(text: str) -> str:
    """``text`` with the user, the password and the options that hold secrets of every URL taken out."""
    return _SECRET_OPTION.sub(r"\1…", _USER_INFO.sub("", text))


def written_out(text: str) -> str:
    """``text`` for a terminal: with control characters as ``\\x1b``, but for tabs and ends of lines."""
    return _CONTROL.sub(_escaped, text)


def encodable(text: str) -> str:
    """``text`` with lone surrogates escaped: names of files and what was decoded with surrogateescape have them."""
    return text.encode(errors="backslashreplace").decode()


def scrubbed(value: Any) -> Any:
    """``value`` with ``scrub`` done to each text in it, however deep in dicts, lists and tuples."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {scrubbed(name): scrubbed(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one) for one in value]
    return value


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given by ``extra=``: all that not every record has."""
    return {name: value for name, value in vars(record).items() if name not in _OF_ALL}


class _Formatter(logging.Formatter):
    """``frames``: "own" leaves the framework's out of tracebacks, "all" does not."""

    def __init__(self, *, frames: str = "own") -> None:
        super().__init__("%(message)s")
        self._all = frames == "all"

    def trace_of(self, record: logging.LogRecord) -> str:
        """Empty where it has none. Not kept in the record, which another handler may want to show otherwise."""
        text = record.exc_text or (self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else "")
        if not self._all:
            text = own_frames(text)
        if record.stack_info:
            text += ("\n" if text else "") + self.formatStack(record.stack_info)
        return text


class LineFormatter(_Formatter):
    """``INFO framework.engine ready``; ``timed`` puts the time in UTC and the process before it.

    A record that is made in a call names the handler, the message and the attempt. One that spans lines (a traceback) repeats its
    prefix on each, so that a line can be read on its own and a message's content can never pass for a log line. Control
    characters are written as ``\\x1b``: who reads the log in a terminal is not to have it do what a message says.
    """

    def __init__(self, *, timed: bool = False, frames: str = "own", coloured: bool = False) -> None:
        super().__init__(frames=frames)
        self._timed = timed
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        text, trace = record.getMessage(), self.trace_of(record)
        lines = _shortened(scrub(f"{text}\n{trace}" if trace else text)).splitlines() or [""]
        prefix = self._prefix(record)
        return "\n".join(prefix + written_out(line) for line in lines)

    def _prefix(self, record: logging.LogRecord) -> str:
        when = f"{_time_of(record)} {record.process} " if self._timed else ""
        level = record.levelname
        if self._coloured and level in _COLOURS:
            level = f"\x1b[{_COLOURS[level]}m{level}\x1b[0m"
        return f"{when}{level} {record.name} {_words_of(getattr(record, 'call', None))}"


class JsonFormatter(_Formatter):
    """One object a line: time, level, process, logger, message, what is known of the call, ``extra=``, exception."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": _time_of(record), "level": record.levelname, "process": record.process, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        made |= getattr(record, "call", None) or {}
        made |= {name: value for name, value in extra_of(record).items() if name not in made}
        if trace := self.trace_of(record):
            made["exception"] = trace
        short = {name: _shortened(value) if isinstance(value, str) else value for name, value in scrubbed(made).items()}
        return json.dumps(short, default=_clean_words)


def _shortened(text: str) -> str:
    """Without its middle where it is too long: an exception may say as much as a message holds, and each try says it."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}… ({len(text) - LONGEST} characters left out) …{text[-(LONGEST // 2) :]}"


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


def _clean_words(value: object) -> str:
    return scrub(str(value))


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _words_of(call: dict[str, Any] | None) -> str:
    """``[orders/billing 0a1b2c3d4e5f6a7b #2] ``: the handler, the message, its attempt."""
    if not call:
        return ""
    if "id" not in call:
        return f"[{call['handler']}] "
    more = f" and {call['messages'] - 1} more" if call.get("messages", 1) > 1 else ""
    return f"[{call['handler']} {call['id']} #{call['attempt']}{more}] "


def _on_terminal() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def setup(level: str, *, timed: bool = False, form: str = "text", frames: str = "own", file: Path | None = None) -> None:
    """Send this process's log lines from ``level`` up to stderr; replaces what was set up before.

    ``form``: "text", coloured on a terminal, or "json". ``file``: what stderr is from now on. Raises BadSetting.
    """
    if file is not None:
        logfile.write_to(file)
    stream = logging.StreamHandler(sys.stderr)
    if form == "json":
        formatter: _Formatter = JsonFormatter(frames=frames)
    else:
        formatter = LineFormatter(timed=timed, frames=frames, coloured=_on_terminal())
    stream.setFormatter(formatter)
    stderr.say_as(lambda words: _of_the_log(formatter, words))
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    bind_records()


def _of_the_log(formatter: _Formatter, words: str) -> str:
    """What is said of the log itself is a line as any other, though no logger can be asked to write it just then."""
    about = {"name": stderr.__name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": words}
    return formatter.format(logging.makeLogRecord(about)) + "\n"
