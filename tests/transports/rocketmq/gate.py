"""Stands between a worker and RocketMQ, and sees each request pass: for tests of what happens at the moment of one."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from framework.testing.detour import Detour
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode


class Gate:
    """Before one server. Made running, in native threads of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.holds: Collection[Request] = ()
        """What is not let through any more: it is never answered."""
        self.held: Counter[int] = Counter()
        self.before: Callable[[Frame], object] = lambda _: None
        self.after: Callable[[Frame], object] = lambda _: None
        """Called with each other request, before it is let through and after. What ``before`` says something of is not."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target, 5.0) as server:
            server.settimeout(None)
            threading.Thread(target=_carry, args=(server, client), daemon=True).start()
            decoder = Decoder()
            while data := client.recv(65536):
                for frame in decoder.feed(data):
                    if not frame.is_answer and frame.code in self.holds:
                        self.held[frame.code] += 1
                    elif not self.before(frame):
                        server.sendall(encode(frame))
                        self.after(frame)


class Gates:
    """Before a name server and its broker."""

    def __init__(self, name_server: str, broker: str) -> None:
        self.broker = Gate(broker)
        self._detour = Detour(name_server)
        self._detour.ways = {broker: self.broker.address}
        self.name_server = Gate(self._detour.address)

    def hold(self, *codes: Request) -> None:
        self.broker.holds = self.name_server.holds = codes

    @property
    def held(self) -> Counter[int]:
        return self.broker.held + self.name_server.held

    def stop(self) -> None:
        for one in (self.name_server, self._detour, self.broker):
            one.stop()


def _carry(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(65536):
            client.sendall(data)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
