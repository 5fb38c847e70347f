"""The two directions of a client's socket: a buffered reader that blocks its greenlet, and a writer that never does.

Both go over the bare socket until ``through`` puts TLS or compression between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from struct import Struct
from typing import Any

import gevent
from gevent import get_hub
from gevent.event import Event
from gevent.socket import socket, wait_read

from framework.alarm import Alarm
from framework.errors import ProtocolError
from framework.nsqd.slices import Slices
from framework.nsqd.underway import FREE_BYTES, Share
from framework.transports.nsq.stream import Socket

_INT32 = Struct(">i")
_READ_BYTES = 256 << 10
MAX_LINE = 16 << 10
"""nsqd's read buffer: a longer line ends the connection without a word."""
HIGH_WATER = 1 << 20
"""Bytes that wait to be sent, above which a client gets no messages and its commands are not read."""
_ENCODED_BYTES = 4 << 10
"""Read at once of what is compressed: it may grow a thousandfold."""
_WRITE = 2


class EndOfStream(Exception):
    """The client closed its side, or the connection broke."""


def _nothing(size: int) -> bytes:
    return b""


class Incoming:
    """Bytes from the client. ``before_blocking`` is called each time before waiting for more."""

    def __init__(self, sock: socket, before_blocking: Callable[[], None], share: Share) -> None:
        """``share`` is of the memory that bodies may take."""
        self.buffer = bytearray()
        self.position = 0
        self._receive: Callable[[int], bytes] = sock.recv
        self._before_blocking = before_blocking
        self._share = share
        self.slices = Slices()

    def through(self, stream: Socket) -> None:
        """Read from ``stream`` from now on, which must have been given what is in the buffer."""

        def receive(size: int) -> bytes:
            while True:
                try:
                    return stream.recv(_ENCODED_BYTES)
                except BlockingIOError:
                    wait_read(stream.fileno())

        self._receive = receive

    def rest(self) -> bytes:
        """Take all that has come and was not read."""
        return self.take(len(self.buffer) - self.position)

    def end(self) -> None:
        """Free all that it holds: a client that reads may stay referenced for longer."""
        self.buffer, self.position = bytearray(), 0
        self._receive = _nothing
        self._share.end()

    def more(self) -> None:
        """Wait for more bytes; those before ``position`` go. Raises EndOfStream."""
        self._before_blocking()
        del self.buffer[: self.position]
        self.position = 0
        self.slices.breathe()
        large = len(self.buffer) > FREE_BYTES or self._share.size
        if large:
            self._share.expect(len(self.buffer))
        try:
            data = self._receive(_READ_BYTES)
        except (OSError, ProtocolError) as error:
            raise EndOfStream(str(error)) from error
        if large:
            self._share.received()
        if not data:
            raise EndOfStream
        self.buffer += data

    def need(self, count: int) -> None:
        """Have at least ``count`` bytes behind ``position``. Raises EndOfStream."""
        while len(self.buffer) - self.position < count:
            self.more()

    def line(self) -> bytes:
        """Up to the next newline, without it and without one carriage return before it. Raises EndOfStream."""
        start = 0
        while (end := self.buffer.find(b"\n", self.position + start)) < 0:
            start = len(self.buffer) - self.position
            if start >= MAX_LINE:
                raise EndOfStream("line too long")
            self.more()
        if end - self.position >= MAX_LINE:
            raise EndOfStream("line too long")
        found = bytes(self.buffer[self.position : end])
        self.position = end + 1
        return found.removesuffix(b"\r")

    def int32(self) -> int:
        """A big-endian signed number. Raises EndOfStream."""
        self.need(4)
        (number,) = _INT32.unpack_from(self.buffer, self.position)
        self.position += 4
        return int(number)

    def take(self, count: int) -> bytes:
        """Exactly ``count`` bytes. Raises EndOfStream."""
        self.need(count)
        taken = bytes(memoryview(self.buffer)[self.position : self.position + count])
        self.position += count
        return taken


class Outgoing:
    """Bytes to the client: joined and sent once at the end of a turn of the hub. No method blocks but ``wait``."""

    def __init__(self, sock: socket, drained: Callable[[], None], stuck: Callable[[], None]) -> None:
        """``drained`` is called when a full buffer has emptied, ``stuck`` when the client read nothing in time."""
        fd = self._fd = sock.fileno()
        self._transmit: Callable[[memoryview], int] = lambda data: os.write(fd, data)
        self._drained = drained
        self._stuck = stuck
        self._parts: list[bytes] = []
        self._scheduled = False
        self._watcher: Any = None
        self._has_space = Event()
        self._has_space.set()
        self._alarm = Alarm(self._check)
        self._progress = 0.0
        self.size = 0
        """Bytes that wait to be sent."""
        self.closed = False
        self.patience: float | None = None
        """Seconds after which a client that takes nothing is given up; None: never."""
        self.between_layers = False
        """Nothing is sent: the stream is about to be wrapped in TLS or compression."""

    def through(self, stream: Socket) -> None:
        """Write to ``stream`` from now on; nothing must be waiting to be sent."""
        self._transmit = stream.send

    def write(self, parts: list[bytes]) -> None:
        if self.closed:
            return
        self._parts += parts
        self.size += sum(map(len, parts))
        if self.size > HIGH_WATER:
            self._has_space.clear()
        if not self._scheduled:
            self._scheduled = True
            get_hub().loop.run_callback(self.flush)

    def flush(self) -> None:
        """Send what can be sent without waiting."""
        self._scheduled = False
        if self._watcher is None and self._parts and not self.closed and not self.between_layers:
            self._send()

    def _send(self) -> None:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        try:
            sent = self._transmit(memoryview(data))
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent:
            self._progress = time.monotonic()
        self.size -= sent
        if self.size:
            self._parts = [data[sent:]]
            self._await_room()
        else:
            self._parts = []
            self._emptied()

    def _await_room(self) -> None:
        if self._watcher is None:
            self._progress = time.monotonic()
            self._watcher = get_hub().loop.io(self._fd, _WRITE)
            self._watcher.start(self._writable)
            if self.patience is not None:
                self._alarm.set(self._progress + self.patience)

    def _writable(self) -> None:
        self._stop_watching()
        self.flush()

    def _emptied(self) -> None:
        self._alarm.cancel()
        if not self._has_space.is_set():
            self._has_space.set()
            self._drained()

    def _check(self) -> None:
        if self.size and self.patience is not None:
            if time.monotonic() - self._progress >= self.patience:
                self._stuck()
            else:
                self._alarm.set(self._progress + self.patience)

    @property
    def full(self) -> bool:
        """So much waits that nothing more should be added until all of it is sent."""
        return not self._has_space.is_set()

    def wait(self) -> None:
        """Block the greenlet while too much waits to be sent."""
        self._has_space.wait()

    def linger(self, seconds: float) -> None:
        """Block up to ``seconds`` until all is sent."""
        until = time.monotonic() + seconds
        self.flush()
        while self.size and not self.closed and time.monotonic() < until:
            gevent.sleep(0.005)

    def close(self) -> None:
        """Forget what was not sent; the owner of the socket closes it."""
        self.closed = True
        self._parts = []
        self.size = 0
        self._transmit = len  # nothing is sent any more, and a layer is large
        self._stop_watching()
        self._alarm.cancel()
        self._has_space.set()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
