"""The body of an HTTP request, whole or in chunks (RFC 9112, 7.1): others run while it is read, and its trailers have a bound.

It holds nothing beyond what is asked for; what a body may take of memory is the application's affair.
"""

from __future__ import annotations

import re
from typing import Any

from gevent.pywsgi import Input

from framework.nsqd.slices import Slices

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
MAX_FIELDS = 100
"""What http.client's parser takes."""
_MAX_LINE = 8192
# What a line may begin with, so that one which cannot become right is refused before its end has come.
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;[^\r\n]*)?(?:\r\n?)?")
_TRAILER = re.compile(rb"%b(?::[^\x00\r\n]*(?:\r\n?)?)?|\r\n?" % TOKEN)
_END = re.compile(rb"\r\n?")


class BadBody(ValueError):
    """The client sent what is no body. No OSError: gevent goes on with the next request behind one of these."""


class Body(Input):  # type: ignore[misc]
    """gevent's, which lets nobody run for as long as bytes are there, takes trailers without end, and goes on reading behind
    some of what is wrong with a body: until the client closes."""

    def __init__(self, made: Input, slices: Slices) -> None:
        """``made``: gevent's own. ``slices``: of the connection's greenlet."""
        super().__init__(made.rfile, made.content_length, made.socket, made.chunked_input)
        self._slices = slices
        self._broken = self._ended = False
        self._left = 0
        """Bytes of the chunk that is being read."""

    def read(self, length: int | None = None) -> bytes:
        """Raises BadBody, OSError."""
        self._slices.breathe()
        try:
            return super().read(length)  # type: ignore[no-any-return]
        except Exception:
            self._broken = True
            raise

    def _discard(self) -> None:
        """gevent's hook for what the application has left unread."""
        if not self._broken:
            super()._discard()

    def _chunked_read(self, length: int | None = None, use_readline: Any = None) -> bytes:
        """gevent's hook; nobody here reads lines."""
        self._send_100_continue()
        found = bytearray()
        while not self._ended and (length is None or len(found) < length):
            self._slices.breathe()
            if not self._left:
                self._begin_chunk()
            else:
                found += self._piece(self._left if length is None else min(self._left, length - len(found)))
        return bytes(found)

    def _begin_chunk(self) -> None:
        self._left = int(self._line(_SIZE).partition(b";")[0], 16)
        if self._left:
            return
        for _ in range(MAX_FIELDS + 1):
            self._slices.breathe()
            if self._line(_TRAILER) == b"\r\n":
                self._ended = True
                return
        raise BadBody("too many trailers")

    def _piece(self, most: int) -> bytes:
        piece: bytes = self.rfile.read(most)
        if not piece:
            raise BadBody("it ended within a chunk")
        self._left -= len(piece)
        if not self._left:
            self._line(_END)
        return piece

    def _line(self, right: re.Pattern[bytes]) -> bytes:
        """With its end."""
        line = b""
        while not line.endswith(b"\n"):
            here = self.rfile.peek()
            line += self.rfile.read(here.find(b"\n") + 1 or len(here))
            if not here or len(line) > _MAX_LINE or not right.fullmatch(line):
                raise BadBody("what is between its chunks is wrong")
        return line
