"""What is asked of the admin endpoint, and what it answers: values only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from framework.decoding import UNREADABLE

log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = "text/event-stream"
WORKER = "Workers-Version"
"""A header of all answers, by which a client knows a worker from any other server."""


@dataclass(frozen=True, slots=True)
class Request:
    """``headers``: by their names in lower case. ``remote``: the client's address, for the log."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remote: str = ""

    @property
    def reads(self) -> bool:
        """It changes nothing."""
        return self.method in ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """``body``: all of it, or pieces as they come, for as long as the client reads."""

    status: int
    kind: str
    body: bytes | Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """Answered with ``status``, and the words as its one line, or as ``error`` of a JSON object below ``/api``."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(status, JSON, msgspec.json.encode(value) + b"\n")


def as_text(words: str, status: int = 200) -> Answer:
    return Answer(status, TEXT, f"{words}\n".encode())


def read(request: Request) -> object:
    """The JSON of its body. Raises Refused."""
    try:
        return msgspec.json.decode(request.body or b"{}")
    except UNREADABLE as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def tell(request: Request, words: str) -> None:
    """Have the log say who has done what."""
    log.info("admin: %s: %s", request.remote, words)
