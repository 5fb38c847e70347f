"""How log lines look: one line each, level, logger, text, on stderr, with no secrets in them; no policy on what is logged."""

from __future__ import annotations

import logging
import re
import sys

_USER_INFO = re.compile(r"(?<=://)[^/\s'\"]+@")
_SECRET_OPTION = re.compile(r"(?<=[?&])((?:auth_secret|secret|password|token)=)[^&#\s'\"]+")


def scrub(text: str) -> str:
    """``text`` with the user, the password and the options that hold secrets of every URL taken out."""
    return _SECRET_OPTION.sub(r"\1…", _USER_INFO.sub("", text))


class LineFormatter(logging.Formatter):
    """``INFO framework.engine ready``. No time: the host of a Procfile, journald and Docker each add their own.

    A record that spans lines (a traceback) repeats its prefix on each, so that a line can be read on its own
    and a message's content can never pass for a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"{record.levelname} {record.name} "
        lines = scrub(super().format(record)).splitlines() or [""]
        return "\n".join(prefix + line for line in lines)


def setup(level: str) -> None:
    """Send this process's log lines from ``level`` up to stderr; replaces what was set up before."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
