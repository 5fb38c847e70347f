"""A name server of RocketMQ that sends its clients to brokers by another way: through a proxy that breaks connections.

A client learns from its name server where a broker is, so a proxy before a broker must stand in what that says.
"""

from __future__ import annotations

import socket

from framework.testing.between import Between
from framework.testing.proxies import Proxies
from framework.transports.rocketmq.wire.frames import Decoder, encode


class Detour(Between):
    """Stands before the name server at ``target``."""

    def __init__(self, target: str) -> None:
        self.ways: dict[str, str] = {}
        """Address of a broker -> where its clients are to go."""
        super().__init__(target)

    def answers(self, server: socket.socket, client: socket.socket) -> None:
        decoder = Decoder()
        while data := server.recv(65536):
            for frame in decoder.feed(data):
                for broker, instead in self.ways.items():
                    frame.body = frame.body.replace(f'"{broker}"'.encode(), f'"{instead}"'.encode())
                client.sendall(encode(frame))


def through(name_server: str, brokers: list[str]) -> tuple[Proxies, str, Detour]:
    """Proxies before a name server and its brokers, the address of the first, and what is to be stopped after them."""
    detour = Detour(name_server)
    proxies = Proxies([detour.address, *brokers])
    first, *others = proxies.address.split(",")
    detour.ways = dict(zip(brokers, others, strict=True))
    return proxies, first, detour
