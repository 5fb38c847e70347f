"""One subscription of one handler to a queue group: what came waits here until the engine grants it, and its room is its weight.

A server sends without being asked, keeps nothing and hears no settlement. So what came is in this process alone, whichever route
brought it, and outlives that. Source: the cluster protocol of the NATS documentation.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from time import monotonic

from gevent.hub import get_hub

from framework.errors import AlreadySettled
from framework.headers import NONE
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import Limits, Receiver
from framework.transports.nats import headers
from framework.transports.nats.route_wire import Routed
from framework.transports.nats_route.peer import Peer
from framework.transports.nats_route.weights import weight

log = hublog.get(__name__)

MAX_GRANT = 1_000_000
LIMITS = Limits(math.inf, math.inf, MAX_GRANT, 0.0, 0.0)


class Came(Message, gc=False, eq=False):
    """A message as it came, to be handed on as it is."""

    block: bytes = b""
    """Its headers."""
    reply: bytes = b""


class RouteConnection:
    """``contract.Connection`` on a route of a NATS cluster. Made on the hub of its peer, which has a route."""

    lasting_ids = False
    """An id is made from our clock and a count."""

    def __init__(
        self, peer: Peer, topic: str, channel: str, receiver: Receiver, *, backlog: int
    ) -> None:  # fmt: skip
        self.node, self.topic, self.channel = peer.node, topic, channel
        self.limits = LIMITS
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._peer = peer
        self._receiver = receiver
        self._tally = receiver.tally
        self._most = backlog
        self._waiting: deque[Came] = deque()
        self._ids = itertools.count(1)
        self._prefix = b"%x-" % time.time_ns()
        self._busy = self._draining = self._closed = False
        self._begun = False
        """Something was granted: from then on a grant of 0 is a pause."""
        self._full = False
        self._alone: Exception | None = None
        self._again = get_hub().loop.timer(0.0)
        self._one = peer.join(topic.encode(), channel.encode(), self)

    @property
    def rescuable(self) -> Peer:
        """All routes, which it shares."""
        return self._peer

    @property
    def exposed(self) -> int:
        return max(self.granted, len(self.in_flight))

    # --- what the engine says ------------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, MAX_GRANT)
        if n != self.granted and not (self._draining or self._closed):
            paused, self.granted, self._begun = not self.granted, n, True
            if paused or not n:
                self._peer.reweigh(self._one)
            self._look_again()

    def finish(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:  # as ``_settle``, without a call for each message
            raise AlreadySettled.of(message.id)
        if not self._busy:
            self._peer.wants_to_turn(self)
        self._tally.finished += 1

    def requeue(self, message: Message, delay: float) -> None:
        """Nothing takes it back: it is lost. ``hand_on`` is for what has not started."""
        self._settle(message)
        self._tally.lost += 1

    def hand_on(self, message: Message) -> bool:
        """``contract.HandsOn``."""
        if message not in self.in_flight:
            raise AlreadySettled.of(message.id)
        if not self._passed(message):
            return False
        self._settle(message)
        self._tally.requeued += 1
        return True

    def _passed(self, message: Message) -> bool:
        assert isinstance(message, Came)
        subject, queue = self._one.subject, self._one.queue
        return self._peer.hand_on(subject, queue, Routed(b"", subject, message.reply, (queue,), message.block, message.body))

    def touch(self, message: Message) -> None:
        """There is no lease."""
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self.in_flight[message] = monotonic()

    def _settle(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        if not self._busy:
            self._peer.wants_to_turn(self)

    def drain(self) -> None:
        if not (self._draining or self._closed):
            self._draining, self.granted = True, 0
            self._peer.leave(self._one, self._left)

    def _left(self) -> None:
        """No server sends more. What others do not take of what waits here is the receiver's, whatever was granted."""
        if self._closed:
            return
        waiting, self._waiting = self._waiting, deque()
        mine = [message for message in waiting if not self._passed(message)]
        if mine:
            self._deliver(mine)
        self._receiver.drained(self)

    def unsent(self) -> int:
        """What is settled is settled: there is nothing to send."""
        return 0

    def close(self) -> None:
        self._end(None)

    # --- peer.Member ---------------------------------------------------------------------------------------

    def heard(self, messages: list[Routed]) -> None:
        if self._closed:
            self._forward(messages)
            return
        now = time.time_ns()
        room = self._most - len(self._waiting)
        if len(messages) > room:
            self._overflow(len(messages) - max(0, room))
            messages = messages[: max(0, room)]
        self._waiting.extend(self._messages(messages, now))
        self._take()
        self._peer.reweigh(self._one)

    def _messages(self, messages: list[Routed], now: int) -> list[Came]:
        prefix, shown = self._prefix, headers.for_handlers
        return [
            Came(
                b"%b%d" % (prefix, number),
                now,
                1,
                one.body,
                self,
                shown(block) if (block := one.headers) else NONE,
                block,
                one.reply,
            )
            for one, number in zip(messages, self._ids, strict=False)
        ]

    def _forward(self, messages: list[Routed]) -> None:
        """They came between the end and its answer."""
        for one in messages:
            if not self._peer.hand_on(self._one.subject, self._one.queue, one):
                self._tally.received += 1
                self._tally.lost += 1

    def _overflow(self, count: int) -> None:
        """Every message that is refused here is one that nobody else has."""
        self._tally.received += count
        self._tally.lost += count
        if not self._full:
            self._full = True
            log.warning(
                "%s/%s: %d messages wait already, and what comes beyond them is lost: add workers, or raise backlog= in the "
                "broker URL", self.topic, self.channel, self._most,
            )  # fmt: skip

    def weight(self, members: int) -> int:
        """Room for messages that would start at once; paused, none."""
        if self._begun and not self.granted:
            return 1
        return weight(self._receiver.capacity, len(self.in_flight) + len(self._waiting), members)

    def turn(self) -> None:
        if self._closed:
            return
        self._receiver.settled(self)
        self._take()
        self._peer.reweigh(self._one)

    def lonely(self, error: Exception) -> None:
        """With what is in flight nothing is wrong: it is handled, and then a new connection waits for a route."""
        self._alone = error
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._alone is not None and not (self.in_flight or self._waiting or self._draining):
            if self._peer.routes:
                self._alone = None
            else:
                self._end(self._alone)

    # --- from the backlog to the engine --------------------------------------------------------------------

    def _take(self) -> None:
        """As many as were granted. What is granted meanwhile is looked at in the next turn, so that the hub turns."""
        if self._closed or self._draining:
            return
        if self._alone is not None:
            self._end_if_idle()
        waiting, room = self._waiting, self.granted - len(self.in_flight)
        if room > 0 and waiting and not self._busy:
            if room >= len(waiting):
                batch = list(waiting)
                waiting.clear()
            else:
                batch = [waiting.popleft() for _ in range(room)]
            self._deliver(batch)
            self._full = self._full and len(waiting) > self._most // 2
            self._look_again()

    def _deliver(self, batch: list[Came]) -> None:
        self.in_flight.update(dict.fromkeys(batch, monotonic()))
        self._tally.received += len(batch)
        self._busy = True
        try:
            self._receiver.deliver(self, list(batch))
        finally:
            self._busy = False

    def _look_again(self) -> None:
        if self._waiting and self.granted > len(self.in_flight) and not self._again.active:
            self._again.start(self._next)

    def _next(self) -> None:
        self._take()
        self._peer.reweigh(self._one)

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self.granted = 0
        self._again.stop()
        self._again.close()
        self._peer.drop(self._one)
        waiting, self._waiting = self._waiting, deque()
        left = sum(not self._passed(message) for message in waiting)
        self._tally.received += left
        self._tally.lost += left + len(self.in_flight)
        self.in_flight.clear()
        self._receiver.closed(self, error)
