"""A TCP proxy on loopback that breaks on demand what passes through it, for tests. It knows no protocol.

It runs on a hub and in a native thread of its own, so it also works while the test's thread computes, and in a process that
gevent has patched. A fault is in force when the call that asks for it returns, for connections old and new, until ``restore``.
"""

from __future__ import annotations

import socket as _names
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent import monkey, socket
from gevent.event import Event

_CHUNK = 65536
_HELD = 0.005  # seconds between two looks at whether what is held may go on
_TURN = 0.001  # seconds: gevent closes a socket that somebody waits for in the next turn of the hub
_ANSWER = 10.0  # seconds, at most, for the proxy's thread to do what it is told
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close sends RST
# the patched ones are of a greenlet, not of a thread
_start_thread = monkey.get_original("_thread", "start_new_thread")
_lock = monkey.get_original("_thread", "allocate_lock")


class Lane:
    """One direction of all connections. Its faults are independent of the other direction's."""

    def __init__(self, on_hub: Callable[[Callable[[], None]], None]) -> None:
        self._on_hub = on_hub
        self.passed = 0
        """Bytes handed on so far, over all connections."""
        self._restore()

    def cut_after(self, count: int) -> None:
        """Hand on ``count`` more bytes, counted over all connections, then close the one they passed through. Once."""
        self._on_hub(lambda: setattr(self, "_left", count))

    def delay(self, seconds: float) -> None:
        """Hand on each piece only after ``seconds``; what follows it waits behind it."""
        self._on_hub(lambda: setattr(self, "_delay", seconds))

    def trickle(self, pause: float = 0.0) -> None:
        """Hand on one byte at a time, with ``pause`` seconds after each."""
        self._on_hub(lambda: setattr(self, "_trickle", pause))

    def hold(self) -> None:
        """Hand on nothing and read nothing until ``restore``, which lets it all through: a partition that heals."""
        self._on_hub(lambda: setattr(self, "_held", True))

    def swallow(self) -> None:
        """Read and drop everything, the end of the stream too, and tell neither side. ``restore`` cuts what lost bytes this
        way."""
        self._on_hub(lambda: setattr(self, "_swallows", True))

    def _restore(self) -> None:
        self._left: int | None = None
        self._delay = 0.0
        self._trickle: float | None = None
        self._held = self._swallows = False

    def _carry(self, data: bytes, sink: Any) -> bool:
        """Hand ``data`` on as the faults have it; False when the connection must be cut after that."""
        if self._delay:
            gevent.sleep(self._delay)
        while self._held:
            gevent.sleep(_HELD)
        last = self._left is not None and len(data) >= self._left
        if self._left is not None:
            data = data[: self._left]
            self._left = None if last else self._left - len(data)
        self._send(data, sink)
        return not last

    def _send(self, data: bytes, sink: Any) -> None:
        if self._trickle is None:
            sink.sendall(data)
            self.passed += len(data)
            return
        for i in range(len(data)):
            sink.sendall(data[i : i + 1])
            self.passed += 1
            gevent.sleep(self._trickle or 0.0)


class _Pair:
    """One connection: the client's socket and the server's."""

    def __init__(self, client: Any, server: Any) -> None:
        self.sockets = (client, server)
        self.lossy = False
        self.open_ways = 2

    def pump(self, source: Any, sink: Any, lane: Lane) -> bool:
        """Carry one direction to its end; whether the connection must be closed now."""
        try:
            while data := source.recv(_CHUNK):
                if lane._swallows:
                    self.lossy = True
                elif not lane._carry(data, sink):
                    return True
            if not lane._swallows:
                sink.shutdown(_names.SHUT_WR)
        except OSError:
            if not lane._swallows:
                return True
        self.lossy = self.lossy or lane._swallows
        self.open_ways -= 1
        return self.open_ways == 0 and not self.lossy

    def close(self, *, reset: bool = False) -> None:
        for one in self.sockets:
            if reset:
                one.setsockopt(_names.SOL_SOCKET, _names.SO_LINGER, _RESET)
            one.close()


class Proxy:
    """Stands before ``target`` (``host:port``) on a port of 127.0.0.1 that stays the same all its life.

    May be controlled from any thread or greenlet. Made running; ``stop`` ends it, as does the end of a ``with`` block.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = host.strip("[]"), int(port)
        self.to_server = Lane(self._on_hub)
        self.to_client = Lane(self._on_hub)
        self.accepted = 0
        """Connections so far, those included whose server could not be reached."""
        self.cuts = 0
        """Connections that a fault has ended so far."""
        self._pairs: set[_Pair] = set()
        self._holder = _bound(0)  # keeps the port ours while nobody listens on it
        self.address = f"127.0.0.1:{self._holder.getsockname()[1]}"
        self._listener: Any = None
        self._acceptor: Any = None
        self._stopped = False
        self._hub: Any = None
        started = _lock()
        started.acquire()
        _start_thread(self._live, (started,))
        started.acquire()

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._pairs)

    # -- faults

    def cut(self, *, reset: bool = False) -> int:
        """Close every connection at once, with RST if ``reset``; returns how many. New ones are taken as before."""
        count = len(self._pairs)
        self._on_hub(lambda: self._cut(list(self._pairs), reset=reset))
        return count

    def refuse(self) -> None:
        """Refuse new connections; those there are go on."""
        self._on_hub(self._deafen)

    def delay(self, seconds: float) -> None:
        """``Lane.delay`` in both directions: ``seconds`` each."""
        for lane in (self.to_server, self.to_client):
            lane.delay(seconds)

    def trickle(self, pause: float = 0.0) -> None:
        """``Lane.trickle`` in both directions."""
        for lane in (self.to_server, self.to_client):
            lane.trickle(pause)

    def hold(self) -> None:
        """``Lane.hold`` in both directions: a network that is gone for a while."""
        for lane in (self.to_server, self.to_client):
            lane.hold()

    def swallow(self) -> None:
        """``Lane.swallow`` in both directions: half-open connections, whose peers are gone without a word."""
        for lane in (self.to_server, self.to_client):
            lane.swallow()

    def restore(self) -> None:
        """End every fault. Connections that lost bytes are cut, for nothing after the gap would make sense."""
        self._on_hub(self._restore)

    def stop(self) -> None:
        """Close everything and end the thread. Idempotent."""
        if not self._stopped:
            self._on_hub(self._end)
            self._stopped = True
            self._holder.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- in its own thread

    def _live(self, started: Any) -> None:
        self._hub = gevent.get_hub()
        self._ending = Event()
        alive = self._hub.loop.async_()  # with nothing to wait for, a hub ends
        alive.start(lambda: None)
        self._listen()
        started.release()
        self._ending.wait()
        gevent.sleep(_TURN * 2)
        self._hub.destroy(destroy_loop=True)

    def _on_hub(self, work: Callable[[], None]) -> None:
        """Have ``work`` done in the proxy's thread, and return when it is."""
        if self._stopped:
            return
        done = _lock()
        done.acquire()

        def call() -> None:
            try:
                work()
                gevent.sleep(_TURN)
            finally:
                done.release()

        self._hub.loop.run_callback_threadsafe(gevent.spawn, call)
        if not done.acquire(timeout=_ANSWER):
            raise TimeoutError("the proxy's thread does not answer")

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self._holder.getsockname()[1])
            self._listener.listen(1024)
            self._acceptor = gevent.spawn(self._accept_for_ever, self._listener)

    def _deafen(self) -> None:
        if self._listener is not None:
            self._acceptor.kill(block=False)
            self._listener.close()
            self._listener = None

    def _accept_for_ever(self, listener: Any) -> None:
        while True:
            client, _ = listener.accept()
            self.accepted += 1
            gevent.spawn(self._serve, client)

    def _serve(self, client: Any) -> None:
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(_names.IPPROTO_TCP, _names.TCP_NODELAY, 1)
        pair = _Pair(client, server)
        self._pairs.add(pair)
        gevent.spawn(self._pump, pair, client, server, self.to_server)
        gevent.spawn(self._pump, pair, server, client, self.to_client)

    def _pump(self, pair: _Pair, source: Any, sink: Any, lane: Lane) -> None:
        if pair.pump(source, sink, lane):
            self._cut([pair])

    def _cut(self, pairs: list[_Pair], *, reset: bool = False) -> None:
        for pair in pairs:
            self._pairs.discard(pair)
            pair.close(reset=reset)
            self.cuts += 1

    def _restore(self) -> None:
        for lane in (self.to_server, self.to_client):
            lane._restore()
        self._cut([pair for pair in self._pairs if pair.lossy])
        self._listen()

    def _end(self) -> None:
        self._deafen()
        self._cut(list(self._pairs))
        self._ending.set()


def _bound(port: int) -> Any:
    """A socket bound to ``port`` of 127.0.0.1, which several may be as long as one of them listens."""
    made = socket.socket()
    made.setsockopt(_names.SOL_SOCKET, _names.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


@contextmanager
def proxies() -> Iterator[Callable[[str], Proxy]]:
    """For a fixture: ``start(target)`` makes a Proxy; all of them are stopped at the end of the block."""
    made: list[Proxy] = []

    def start(target: str) -> Proxy:
        made.append(Proxy(target))
        return made[-1]

    try:
        yield start
    finally:
        for one in made:
            one.stop()
