"""What stands between a client and a server, and sees or changes what passes: the part that is the same for all who do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Between:
    """Before the server at ``target``. Made running, in native threads of its own; after ``stop`` it accepts no connection.

    As it is here it changes nothing: a subclass says how what a client asks is passed on, or what the server answers.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def requests(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what the client says until it says no more. An OSError ends the connection."""
        _carry(client, server)

    def answers(self, server: socket.socket, client: socket.socket) -> None:
        """Pass on what the server says until it says no more. An OSError ends the connection."""
        _carry(server, client)

    def _accept(self) -> None:
        with suppress(OSError):  # it is stopped
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target, 5.0) as server:
            server.settimeout(None)
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            self.requests(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            self.answers(server, client)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65536):
        sink.sendall(data)
