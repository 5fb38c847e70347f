"""The requests by which messages are stored: one by one, and many of one topic in one request. No I/O here.

All messages of one request lie in one queue. It carries no delay: a broker would pass that over without a word. Source:
SendMessageProcessor and MessageExtEncoder of RocketMQ 5.3.3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from time import time

import msgspec

from framework.bodies import Bodies
from framework.headers import Headers
from framework.transports.message_ids import MessageIds
from framework.transports.rocketmq.pulled import level_of
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.codes import Request

_GROUP = "CLIENT_INNER_PRODUCER"
"""The group that we publish as. No broker looks at it."""
LEAST, MOST, SHARES = 100, properties.MOST_ALIKE, 4
"""Messages are divided among so many requests as long as each has LEAST; none has more than MOST. All of one request lie in one
queue, which is one reader's by PULL: the others are to have some as well."""
_WAIT = properties.encode([("WAIT", "true")])
_STORED = 100
"""Bytes of a stored message beside its body, its topic and its properties."""
_ADDED = 200
"""Bytes of properties that every message has: its id, and what the broker adds, such as the name of its cluster."""


class Command(msgspec.Struct):
    """A request that stores ``count`` messages of ``topic``, as the framework calls it."""

    topic: str
    code: int
    fields: dict[str, str]
    body: bytes
    count: int = 1
    due: float = 0.0
    """When it is to be delivered, in seconds since 1970; 0: at once."""
    share: float | None = None
    """Which of the queues that there are, from 0 to 1; None: the broker chooses one."""

    def timed(self) -> dict[str, str]:
        """Its fields, for a broker with timers. It counts from when it stores the message: the two clocks may be far apart."""
        return self._with(properties.TIMER_DELAY_MS, max(0, round((self.due - time()) * 1000))) if self.due else self.fields

    def levelled(self) -> dict[str, str]:
        """Its fields, for a broker that keeps only some delays: the one that is as long or longer."""
        return self._with(properties.DELAY, level_of(self.due - time())) if self.due else self.fields

    def to_queue(self, queues: int) -> dict[str, str]:
        """Its fields, for a topic with so many ``queues``; 0: it is not known."""
        return self.fields | {"e": str(int(self.share * queues))} if self.share is not None and queues else self.fields

    def _with(self, name: str, value: int) -> dict[str, str]:
        return self.fields | {"i": self.fields["i"] + properties.encode([(name, str(value))])}


class Commands:
    """Those of one producer, each of whose messages has an id of its own (UNIQ_KEY): the producer's name, the number of the
    request and the place in it, 16, 12 and 4 hexadecimal digits."""

    def __init__(self, largest: int) -> None:
        """``largest``: maxMessageSize of the brokers, in bytes."""
        self._largest = largest
        self._ids = MessageIds()

    def singles(self, topic: str, name: str, bodies: Sequence[bytes], headers: Headers, delay: float = 0.0) -> list[Command]:
        """One for each of ``bodies``. ``name``: what RocketMQ calls ``topic``. ``delay``: seconds from now."""
        now = time()
        due = now + delay if delay else 0.0
        first = f"{properties.UNIQ_KEY}\x01{self._ids.name}"
        more = f"\x02{_WAIT}{properties.encode(properties.of_headers(headers))}"
        fields = _fields(name, now, "", batch=False)
        return [
            Command(topic, Request.SEND_MESSAGE_V2, {**fields, "i": f"{first}{number:012X}0000{more}"}, body, 1, due)
            for body, number in zip(bodies, self._ids.numbers)  # noqa: B905 - there are more numbers
        ]

    def together(self, topic: str, name: str, bodies: Sequence[bytes], headers: Headers) -> list[Command]:
        """As ``_together``, with a queue for each."""
        found = list(self._together(topic, name, bodies, headers))
        first = random.random()
        for number, command in enumerate(found):
            command.share = (first + number / len(found)) % 1.0
        return found

    def _together(self, topic: str, name: str, bodies: Sequence[bytes], headers: Headers) -> Iterator[Command]:
        """Those that hold all of ``bodies``, in their order: some, so that queues that are far apart have about as many each."""
        most = min(MOST, max(LEAST, -(-len(bodies) // SHARES)))
        fields = _fields(name, time(), _WAIT, batch=True)
        more = properties.encode(properties.of_headers(headers)) if headers else ""
        beside = _STORED + len(name) + len(more.encode()) + _ADDED
        sizes = bodies.sizes if isinstance(bodies, Bodies) else list(map(len, bodies))
        if sum(sizes) + beside * len(bodies) <= self._largest:
            for at in range(0, len(bodies), most):
                yield self._some(topic, bodies[at : at + most], sizes[at : at + most], headers=headers, fields=fields, more=more)
            return
        first, size = 0, 0
        for at, one in enumerate(sizes):
            if size and (size + one + beside > self._largest or at - first == most):
                yield self._some(topic, bodies[first:at], sizes[first:at], headers=headers, fields=fields, more=more)
                first, size = at, 0
            size += one + beside
        yield self._some(topic, bodies[first:], sizes[first:], headers=headers, fields=fields, more=more)

    def _some(
        self, topic: str, bodies: Sequence[bytes], sizes: Sequence[int], *, headers: Headers, fields: dict[str, str], more: str
    ) -> Command:
        if len(bodies) == 1:  # as large as a message may be, it would be too large for a batch
            return self.singles(topic, fields["b"], bodies, headers)[0]
        before = f"{properties.UNIQ_KEY}\x01{self._ids.name}{next(self._ids.numbers):012X}"
        body = properties.encode_alike(bodies, sizes, before, f"\x02{more}")
        return Command(topic, Request.SEND_BATCH_MESSAGE, fields, body, len(bodies))


def _fields(name: str, now: float, given: str, *, batch: bool) -> dict[str, str]:
    return {
        "a": _GROUP, "b": name, "c": "", "d": "4", "e": "-1", "f": "0", "g": str(round(now * 1000)), "h": "0", "i": given,
        "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip
