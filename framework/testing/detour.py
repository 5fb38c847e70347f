"""A name server of RocketMQ that sends its clients to brokers by another way: through a proxy that breaks connections.

A client learns from its name server where a broker is, so a proxy before a broker must stand in what that says.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from framework.testing.proxies import Proxies
from framework.transports.rocketmq.wire.frames import Decoder, encode


class Detour:
    """Stands before the name server at ``target``. Made running, in native threads of its own; ``stop`` ends it."""

    def __init__(self, target: str) -> None:
        self.ways: dict[str, str] = {}
        """Address of a broker -> where its clients are to go."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it is stopped
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target, 5.0) as server:
            server.settimeout(None)
            threading.Thread(target=_carry, args=(client, server), daemon=True).start()
            decoder = Decoder()
            while data := server.recv(65536):
                for frame in decoder.feed(data):
                    for broker, instead in self.ways.items():
                        frame.body = frame.body.replace(f'"{broker}"'.encode(), f'"{instead}"'.encode())
                    client.sendall(encode(frame))


def _carry(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(65536):
            server.sendall(data)
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def through(name_server: str, brokers: list[str]) -> tuple[Proxies, str, Detour]:
    """Proxies before a name server and its brokers, the address of the first, and what is to be stopped after them."""
    detour = Detour(name_server)
    proxies = Proxies([detour.address, *brokers])
    first, *others = proxies.address.split(",")
    detour.ways = dict(zip(brokers, others, strict=True))
    return proxies, first, detour
