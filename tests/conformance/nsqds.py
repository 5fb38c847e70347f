"""nsqd as a Subject of the conformance suite, the embedded and the real one alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from framework.testing.conformance import Node, Subject
from framework.testing.servers import Server, free_port


class NsqdNode(Node):
    def __init__(self, server: Server, end: Callable[[Server], object]) -> None:
        self._server, self._end = server, end
        self.address = server.address
        self.url = f"nsq://{server.address}"

    def up(self) -> None:
        self._server.start()

    def down(self) -> None:
        self._end(self._server)


class Nsqds(Subject):
    """``command`` starts an nsqd; ``end`` is how it goes down: ``Server.kill`` or ``Server.stop``."""

    wrong_urls = ("nsq://me:secret@host", "nsq://host/path", "nsq://host?nope=1", "nsq://host:port", "nsq://host?heartbeat=soon")
    silence = 2.0

    def __init__(self, command: Sequence[str], folder: Callable[[], Path], end: Callable[[Server], object]) -> None:
        super().__init__()
        self._command, self._folder, self._end = command, folder, end

    def make(self, *, brief: bool) -> Node:
        data, tcp = self._folder(), free_port(2)  # HTTP on the port after: there it is looked for without an option in the URL
        http = tcp + 1
        command = [
            *self._command, f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
            "--broadcast-address=127.0.0.1", f"--data-path={data}", *(["--msg-timeout=1s"] if brief else []),
        ]  # fmt: skip
        return self.node_of(Server(command, tcp_port=tcp, http_port=http, data=data))

    def node_of(self, server: Server) -> NsqdNode:
        return NsqdNode(server, self._end)

    def watchful(self, url: str) -> str:
        return f"{url}?heartbeat=1s"
