"""A socket to a beanstalkd on the hub: replies read by a watcher, commands sent at once. What they mean is its owner's to say."""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic

from gevent.hub import get_hub

from framework.errors import BrokerUnreachable
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import RECV_SIZE, Line

_READ, _WRITE = 1, 2


class Pipe:
    """``take(replies)`` is called with what was read, ``ended(error)`` once when the connection has ended; both on the hub.

    After ``close`` neither is called.
    """

    __slots__ = ("_at", "_decoder", "_ended", "_reader", "_sock", "_tail", "_take", "_writer", "heard", "node", "open", "sent")

    def __init__(self, line: Line, take: Callable[[list[wire.Reply]], None], ended: Callable[[Exception], None]) -> None:
        self.node = line.node
        self.open = True
        self.heard = monotonic()
        """When something was read last."""
        self.sent = 0
        """Bytes that the socket has taken."""
        self._take = take
        self._ended = ended
        self._decoder = line.decoder
        self._sock = line.release()
        self._tail = b""  # what the socket did not take, and from where
        self._at = 0
        loop = get_hub().loop
        self._reader = loop.io(self._sock.fileno(), _READ)
        self._writer = loop.io(self._sock.fileno(), _WRITE)
        self._reader.start(self._read)

    def send(self, data: bytes) -> None:
        """Hand ``data`` to the socket, or keep it until that takes it."""
        if self._tail:
            self._tail += data
            return
        try:
            taken = self._sock.send(data)
        except OSError:  # it is full, or broken: then the watchers will find so, and not in the middle of the caller's work
            taken = 0
        self.sent += taken
        if taken < len(data):
            self._tail, self._at = data, taken
            self._writer.start(self._write)

    @property
    def unsent(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._tail) - self._at

    def cut(self) -> list[bytes]:
        """The lines that the socket has not taken whole: what the server cannot have read."""
        return self._tail[self._tail.rfind(b"\n", 0, self._at) + 1 :].splitlines()

    def shut(self) -> None:
        """Say that no more will be sent. From any thread."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended; the watcher sees it

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        self._sock.close()

    def poll(self) -> None:
        """Read what has come, where the hub does not run between two uses (a plain thread)."""
        heard = -1.0
        while self.open and heard != self.heard:
            heard = self.heard
            self._read()

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        try:
            data = self._sock.recv(RECV_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(str(error))
            return
        if not data:
            self._broken("the server closed it")
            return
        self.heard = monotonic()
        try:
            self._take(self._decoder.feed(data))
        except Exception as error:  # the hub would print it, and whoever waits here would wait for ever
            self._end(error)

    def _write(self) -> None:
        try:
            taken = self._sock.send(memoryview(self._tail)[self._at :])
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(str(error))
            return
        self._at += taken
        self.sent += taken
        if self._at == len(self._tail):
            self._tail, self._at = b"", 0
            self._writer.stop()

    def _broken(self, why: str) -> None:
        self._end(BrokerUnreachable(f"the connection to beanstalkd {self.node} broke: {why}"))

    def _end(self, error: Exception) -> None:
        if self.open:
            self.close()
            self._ended(error)
