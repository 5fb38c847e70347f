"""What stands on a command's line: names and message ids, refused in nsqd's words."""

from __future__ import annotations

from framework.names import is_valid
from framework.nsqd import golang
from framework.nsqd.bodies import Refused

ID_BYTES = 16
MESSAGE_ID = rb"[^\n\r ]{%d}" % ID_BYTES
"""The pattern of ids among which a line can be cut into words."""


def invalid(words: str) -> Refused:
    return Refused("E_INVALID", words)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def name(raw: bytes, code: str, what: str) -> str:
    name = raw.decode("latin-1")
    if not is_valid(name):
        raise Refused(code, f"{what} {golang.quote(raw)} is not valid")
    return name


def topic_name(command: str, words: list[bytes], least: int) -> str:
    if len(words) < least:
        raise invalid(f"{command} insufficient number of parameters")
    return name(words[1], "E_BAD_TOPIC", f"{command} topic name")


def message_id(command: str, words: list[bytes], least: int) -> bytes:
    if len(words) < least:
        raise invalid(f"{command} insufficient number of params")
    if len(words[1]) != ID_BYTES:
        raise invalid("invalid message ID")
    return words[1]


def not_fatal(command: str, message_id: bytes, words: str) -> Refused:
    return Refused(f"E_{command}_FAILED", f"{command} {text(message_id)} failed {words}", fatal=False)
