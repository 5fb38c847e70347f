"""What the tests of streams by routes share: three servers that keep them together, and what uses and asks these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from framework.errors import BrokerUnreachable
from framework.testing import servers
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session

from .waiting import until


class Streams:
    """Three servers that keep streams together, and what uses them as peers."""

    def __init__(self, folder: Path) -> None:
        ports = [servers.free_port() for _ in range(3)]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        self.servers = []
        for port in ports:
            (data := folder / f"member-{port}").mkdir()
            block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
            self.servers.append(servers.real_nats(data, block))
        self.url = f"nats-route://{','.join(f'127.0.0.1:{port}' for port in ports)}?jetstream=true&replicas=3"
        self._closing: list[Any] = []

    def open(self, options: str = "") -> Any:
        (transport,) = open_transports([self.url + options])
        self._closing.append(transport)
        return transport

    def hold(self, transport: Any, topic: str, *, grant: int = 10) -> Held:
        (node,) = transport.discover(topic, "billing")
        held = Held(lambda receiver: transport.connect(node, topic, "billing", receiver))
        held.grant(grant)
        return held

    def client(self) -> Session:
        """Of a server, which knows nothing of peers."""
        with dial(self.servers[0].address) as line:
            session = Session(line, 30.0)
        self._closing.append(session)
        return session

    def close(self) -> None:
        while self._closing:
            self._closing.pop().close()


def end(held: Held) -> None:
    held.connection.close()
    until(lambda: held.receiver.closings)
    held.check()


def leader(session: Session, stream: str, consumer: str = "") -> str:
    """The name of the server that leads it; empty while none does."""
    what = f"CONSUMER.INFO.{stream}.{consumer}" if consumer else f"STREAM.INFO.{stream}"
    try:
        answer = msgspec.json.decode(session.ask(f"$JS.API.{what}".encode(), b"", 0.5).body)
    except BrokerUnreachable:
        return ""
    return str(answer.get("cluster", {}).get("leader", ""))


def step_down(session: Session, stream: str, consumer: str = "") -> str:
    """Have another server lead it; returns which one did."""
    before = leader(session, stream, consumer)
    what = f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}" if consumer else f"STREAM.LEADER.STEPDOWN.{stream}"
    session.ask(f"$JS.API.{what}".encode(), b"", 5.0)
    until(lambda: leader(session, stream, consumer) not in ("", before))
    return before


def asked(client: Session, what: str, **body: Any) -> dict[str, Any]:
    answer = msgspec.json.decode(client.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), 5.0).body)
    assert "error" not in answer, answer
    return answer


def changed(client: Session, topic: str, **limits: Any) -> None:
    """Set these of the consumer of ``topic``."""
    config = asked(client, f"CONSUMER.INFO.{topic}.billing")["config"] | limits
    asked(client, f"CONSUMER.CREATE.{topic}.billing.{topic}", stream_name=topic, config=config)
