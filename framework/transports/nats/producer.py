"""NATS as a ``contract.Producer``: bodies checked before anything is sent, clusters tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from framework import names
from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers
from framework.transports.checked import check_bodies
from framework.transports.nats import urls
from framework.transports.nats.headers import encode
from framework.transports.nats.link import Command, Link
from framework.transports.nats.sessions import Servers
from framework.transports.nats.streams import LATER
from framework.transports.nats.urls import Options
from framework.transports.per_thread import PerThread, raise_first

DEADLINE = 30.0
MAX_DELAY = 366 * 86_400.0
"""Seconds until the first delivery, at most."""
ID = "Nats-Msg-Id"
_ID = "%s-%010d"
OVERHEAD = len(encode([(ID, _ID % ("0" * 16, 0))]))
"""Bytes that a message has beside its body, and that count against max_payload."""


class NatsProducer:
    """Publishes to any of the clusters that ``servers`` has. Safe to share between greenlets and between native threads.

    ``deadline``: the timeout of a publish that names none.
    """

    def __init__(self, servers: Mapping[str, Servers], options: Options, *, deadline: float = DEADLINE) -> None:
        self._options = options
        self._deadline = deadline
        self._name = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._publishing: PerThread[Command] = PerThread(
            servers.keys, lambda node, timeout: Link.to(servers[node], options, timeout), broker="nats-server"
        )

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """Return when JetStream has answered for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError.
        """
        raise_first(self.publish_each(topic, bodies, delay=delay, timeout=timeout, headers=headers))

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """As ``publish``, with an answer for each of ``bodies``.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        self._check(topic, bodies, delay, headers)
        commands = [self._command(topic, body, delay, headers) for body in bodies]
        return self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout)

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()

    def _command(self, topic: str, body: bytes, delay: float, headers: Headers) -> Command:
        fields = {ID: _ID % (self._name, next(self._numbers)), **headers}
        if not delay:
            return Command(topic, topic.encode(), encode(fields.items()), body, deferred=False)
        due = datetime.now(UTC) + timedelta(seconds=delay)
        fields |= {"Nats-Schedule": f"@at {due:%Y-%m-%dT%H:%M:%S.%fZ}", "Nats-Schedule-Target": topic}
        place = f"{LATER}{topic}.{secrets.token_hex(12)}"
        return Command(topic, place.encode(), encode(fields.items()), body, deferred=True)

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float, headers: Headers) -> None:
        names.check("topic", topic)
        urls.check(topic)
        if not 0 <= delay <= MAX_DELAY:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, 0 to {MAX_DELAY:g} s are taken")
        if ID in headers and len(bodies) > 1:
            raise BadMessage(
                f"topic {topic!r}: {len(bodies)} messages with one {ID} would be one to NATS: publish each by itself"
            )
        largest = self._options.max_payload - (
            len(encode({ID: headers.get(ID, _ID % ("0" * 16, 0)), **headers}.items())) if headers else OVERHEAD
        )
        limit = "beside the headers (its max_payload; max_payload= in the broker URL, if yours takes more)"
        check_bodies(topic, bodies, largest, f"NATS takes up to {largest} {limit}")
