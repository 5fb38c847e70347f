"""Stands between a worker and RocketMQ, and sees each request pass: for tests of what happens at the moment of one."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Collection

from framework.testing.between import Between
from framework.testing.detour import Detour
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode


class Gate(Between):
    """Before one server."""

    def __init__(self, target: str) -> None:
        self.holds: Collection[Request] = ()
        """What is not let through any more: it is never answered."""
        self.held: Counter[int] = Counter()
        self.before: Callable[[Frame], object] = lambda _: None
        self.after: Callable[[Frame], object] = lambda _: None
        """Called with each other request, before it is let through and after. What ``before`` says something of is not."""
        super().__init__(target)

    def requests(self, client: socket.socket, server: socket.socket) -> None:
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
