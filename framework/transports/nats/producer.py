"""NATS as a ``contract.Producer``: bodies checked before anything is sent, clusters tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framework.errors import PublishError
from framework.headers import NONE, Headers
from framework.transports.nats.outgoing import Outgoing, check, check_sizes
from framework.transports.nats.publish_link import Command, PublishLink
from framework.transports.nats.sessions import Servers
from framework.transports.nats.urls import Options
from framework.transports.one_by_one import OneByOne
from framework.transports.per_thread import PerThread, raise_first

DEADLINE = 30.0
_LARGER = "its max_payload; max_payload= in the broker URL, if yours takes more"


class NatsProducer(OneByOne):
    """Publishes to any of the clusters that ``servers`` has. Safe to share between greenlets and between native threads.

    ``deadline``: the timeout of a publish that names none.
    """

    def __init__(self, servers: Mapping[str, Servers], options: Options, *, deadline: float = DEADLINE) -> None:
        self._options = options
        self._deadline = deadline
        self._outgoing = Outgoing()
        self._publishing: PerThread[Command] = PerThread(
            servers.keys, lambda node, timeout: PublishLink.to(servers[node], options, timeout), broker="nats-server"
        )

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """Return when JetStream has answered for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        check(topic, bodies, delay, headers)
        check_sizes(topic, bodies, self._options.max_payload, headers, _LARGER)
        commands = self._outgoing.commands(topic, bodies, delay, headers)
        return self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout)

    def publish_headed(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        """``contract.HeadsEach``"""
        for number, (body, given) in enumerate(zip(bodies, headers, strict=True), 1):
            check(topic, [body], delay, given)
            check_sizes(topic, [body], self._options.max_payload, given, _LARGER, number=number, of=len(bodies))
        commands = self._outgoing.headed(topic, bodies, delay, headers)
        raise_first(self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout))

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()
