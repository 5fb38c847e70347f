"""A socket to a beanstalkd on the hub: replies read by a watcher, commands sent at once. Its owner knows what they mean.

While the hub is blocked another native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder,
the tail, the inbox, or what is awaited, holds the lock.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable, ProtocolError
from framework.forked import let_go
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import RECV_SIZE, Line
from framework.transports.contract import RESCUE_PATIENCE

_READ, _WRITE = 1, 2
_new_lock = monkey.get_original("_thread", "RLock")
"""Native; the patched one is a greenlet's. Of the kind that one thread may take twice: the garbage collector may run while it is
held, and close a producer that was dropped."""


class HubSocket:
    """``take(replies)`` is called with what was read, ``ended(error)`` once when the connection has ended; both on the hub.

    After ``close`` neither is called.
    """

    __slots__ = (
        "_at", "_decoder", "_ended", "_fault", "_inbox", "_kept", "_lock", "_reader", "_sock", "_tail", "_take", "_writer",
        "awaited", "came", "heard", "node", "open", "sent",
    )  # fmt: skip

    def __init__(self, line: Line, take: Callable[[list[wire.Reply]], None], ended: Callable[[Exception], None]) -> None:
        self.node = line.node
        self.open = True
        self.heard = monotonic()
        """When something was read last."""
        self.came = self.heard
        """From when on nothing has kept the jobs that are being taken: they came then, or were touched in the hub's place."""
        self.sent = 0
        """Bytes that the socket has taken."""
        self.awaited: deque[object] = deque()
        """What the answers still to come mean, in their order; whoever takes them takes these off."""
        self._lock = _new_lock()
        self._inbox: list[wire.Reply] = []  # what was read in the hub's place
        self._kept = 0.0  # when the jobs in there were touched
        self._fault: ProtocolError | None = None
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

    def send(self, data: bytes, asked: Iterable[object] = ()) -> None:
        """Hand ``data`` to the socket, or keep it until that takes it. ``asked``: what its answers mean."""
        with self._lock:
            self.awaited.extend(asked)
            self._push(data)
            if self._tail and not self._writer.active:
                self._writer.start(self._write)

    def _push(self, data: bytes) -> None:
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
        self._stop()
        with self._lock:
            self._sock.close()

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and so is what it brings."""
        if self.open:
            self._stop()
            let_go(self._sock.fileno())

    def _stop(self) -> None:
        self.open = False
        for watcher in (self._reader, self._writer):
            watcher.close()

    def poll(self) -> None:
        """Read what has come, where the hub does not run between two uses (a plain thread)."""
        heard = -1.0
        while self.open and heard != self.heard:
            heard = self.heard
            self._read()

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        try:
            with self._lock:
                replies, ended = self._hear()
        except OSError as error:
            self._broken(str(error))
            return
        except ProtocolError as error:
            self._end(error)
            return
        if replies:
            self._give(replies)
        if ended:
            self._broken("the server closed it")

    def _give(self, replies: list[wire.Reply]) -> None:
        try:
            self._take(replies)
        except Exception as error:  # the hub would print it, and whoever waits here would wait for ever
            self._end(error)

    def _hear(self) -> tuple[list[wire.Reply], bool]:
        """What has come, here and to the inbox; and whether it was the end. Raises OSError, ProtocolError."""
        replies, self._inbox = self._inbox, []
        if self._fault is not None:
            raise self._fault
        self.came = self._kept
        try:
            data = self._sock.recv(RECV_SIZE)
        except BlockingIOError:
            return replies, False
        if data:
            self.heard = monotonic()
            if not replies:
                self.came = self.heard
            decoded = self._decoder.feed(data)
            replies = replies + decoded if replies else decoded
        return replies, not data

    def _write(self) -> None:
        try:
            with self._lock:
                self._send_tail()
        except OSError as error:
            self._broken(str(error))
        else:
            if not self._tail:
                self._writer.stop()

    def _send_tail(self) -> None:
        """Raises OSError."""
        try:
            taken = self._sock.send(memoryview(self._tail)[self._at :])
        except BlockingIOError:
            return
        self._at += taken
        self.sent += taken
        if self._at == len(self._tail):
            self._tail, self._at = b"", 0

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, touches: Callable[[], Sequence[tuple[int, object]]]) -> None:
        """Read all that has come and keep it for the hub; touch the jobs of ``touches``, each with what its answer means, and
        those that came here meanwhile."""
        if not self._lock.acquire(timeout=RESCUE_PATIENCE):
            return
        try:
            if self.open and self._fault is None:
                self._hear_all()
                came = [(reply.number, None) for reply in self._inbox if reply.word == "RESERVED"]
                self._keep([*touches(), *came])
        except OSError:  # the hub finds it as well
            pass
        finally:
            self._lock.release()

    def _hear_all(self) -> None:
        try:
            while data := self._sock.recv(RECV_SIZE):
                self.heard = monotonic()
                if not self._inbox:
                    self._kept = self.heard
                self._inbox += self._decoder.feed(data)
        except BlockingIOError:
            pass
        except ProtocolError as error:
            self._fault = error

    def _keep(self, touches: Sequence[tuple[int, object]]) -> None:
        if self._tail:
            self._send_tail()
        if touches and not self._tail:  # else the server does not even read
            self._kept = monotonic()
            self.awaited.extend(answer for _, answer in touches)
            self._push(b"".join(wire.touch(number) for number, _ in touches))

    def resume(self) -> None:
        """The hub turns again, and takes what was read in its place."""
        if self.open:
            if self._tail and not self._writer.active:
                self._writer.start(self._write)
            self._read()

    def _broken(self, why: str) -> None:
        self._end(BrokerUnreachable(f"the connection to beanstalkd {self.node} broke: {why}"))

    def _end(self, error: Exception) -> None:
        if self.open:
            self.close()
            self._ended(error)
