"""One publishing connection to a broker: requests of many greenlets under way at once, each answered by itself.

It lives on one hub. The ``Failover`` decides whether to try again, and where. RocketMQ drops no doubles, so what may be
stored is not sent again. Source: SendMessageProcessor of RocketMQ 5.3.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, time
from typing import Protocol

import gevent
from gevent import getcurrent
from gevent.hub import get_hub

from framework.errors import FrameworkError, MessageRefused, PublishError, TryLater
from framework.transports.publish_link import NotStored, Refused
from framework.transports.rocketmq.commands import Command
from framework.transports.rocketmq.heartbeat import heartbeat
from framework.transports.rocketmq.pulled import LEVELS
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import STORED, Answer, Request
from framework.transports.rocketmq.wire.errors import (
    Illegal,
    NoPermission,
    NotAvailable,
    RocketError,
    TopicMissing,
    error_of,
)
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.session_link import NoPlace, Run, SessionLink

WINDOW = 256
"""Requests of one ``ask_each`` that are under way at a time."""
WINDOW_BYTES = 16 * 1024 * 1024
"""What their bodies have together, at most: a broker has all of them in its memory before it answers the first."""
ROUTED = 30.0
"""Seconds for which it is not asked again whether a topic may be written to: as Java's client."""
PATIENCE = 1.0
"""Seconds that a publish waits for that, the first time. Without a name server it goes on as before."""
_UNKNOWN = "whether the message is stored is not known"
# All of these have the code 1.
_PASSING = ("[PC_SYNCHRONIZED]", "timer message is under flow control")
"""How the words of a broker begin that has too much to do."""
_THERE = ("in-sync replicas not enough", "create mapped file failed")
"""Of one that could not store it, where another may."""
_NO_QUEUE = re.compile(r"queueId\[\d+\] is illegal")
"""There were more a moment ago."""
_UNSURE = ("UNKNOWN_ERROR", "store putMessage return null")
"""Of one that failed while it stored it."""


class Broker(Protocol):
    """The broker that a link leads to, beside what is sent there. Its methods block."""

    def make(self, topic: str) -> None:
        """Make ``topic``, where that may be done. Raises NotStored, FrameworkError."""

    def queues(self, topic: str) -> int:
        """How many queues ``topic`` has there to write to; 0: there is none. Raises FrameworkError."""

    def closed(self, topic: str) -> str:
        """Why ``topic`` may not be written to there: no broker looks at that itself; empty: it may. Raises FrameworkError."""

    def has_timers(self) -> bool:
        """Whether it keeps every delay, and not its levels alone. Raises FrameworkError."""


class PublishLink(SessionLink[Command, Session]):
    """``publish_link.PublishLink``."""

    def __init__(self, node: str, session: Session, broker: Broker) -> None:
        super().__init__(node, session)
        self._broker = broker
        self._timers: bool | None = None
        """None: not asked yet. Few publishers delay anything."""
        self._queues: dict[str, int] = {}
        """Topic -> how many it has there, as far as it was asked for."""
        self._closed: dict[str, str] = {}
        """Topic -> why it may not be written to."""
        self._looked: dict[str, float] = {}
        """Topic -> when that was asked for, in seconds of ``monotonic``."""
        self._owed = 0

    @property
    def error(self) -> FrameworkError | None:
        """Why it is of no more use."""
        return self._session.error

    # --- publishers ----------------------------------------------------------------------------------------

    def _run(self, commands: Sequence[Command], timeout: float) -> list[Exception | None]:
        for topic in {command.topic for command in commands}:
            self._look_at(topic)
        try:
            if self._timers is None and any(command.due for command in commands):
                self._timers = self._broker.has_timers()
            for topic in {command.topic for command in commands if command.share is not None} - self._queues.keys():
                if found := self._broker.queues(topic):
                    self._queues[topic] = found
        except FrameworkError as error:
            return [NotStored(str(error))] * len(commands)
        if self._session.error is not None:
            return [NotStored(str(self._session.error))] * len(commands)
        return _Run(self, commands, timeout).wait()

    def _look_at(self, topic: str) -> None:
        now = monotonic()
        if (last := self._looked.get(topic)) is not None and now - last < ROUTED:
            return
        self._looked[topic] = now
        asking = gevent.spawn(self._ask_whether_closed, topic)
        if last is None:
            asking.join(PATIENCE)

    def _ask_whether_closed(self, topic: str) -> None:
        with suppress(FrameworkError):
            self._closed[topic] = self._broker.closed(topic)

    def _make(self, topics: Collection[str], timeout: float) -> Exception | None:
        try:
            for topic in topics:
                self._broker.make(topic)
        except NotStored as error:
            return error
        except FrameworkError as error:
            return PublishError(str(error), stored=False)
        return None

    def send(self, command: Command, then: Callable[[Exception | None], None]) -> int:
        self._owed += 1
        if command.due:
            fields = command.timed() if self._timers else command.levelled()
        else:
            fields = command.to_queue(self._queues.get(command.topic, 0))
        return self._session.call(command.code, fields, partial(self._answered, command, then), body=command.body)

    def refusal(self, command: Command) -> Exception | None:
        """Why it cannot be sent there."""
        if self._session.error is not None:
            return NotStored(str(self._session.error))
        if words := self._closed.get(command.topic):
            return Refused(words)
        if command.due and not self._timers and (delay := command.due - time()) > LEVELS[-1]:
            words = f"RocketMQ's {self.node} has no timers, and keeps a delay of {LEVELS[-1]:g} s at most"
            return PublishError(f"topic {command.topic!r}: {words}, and this is one of {delay:.0f} s: lower it", stored=False)
        return None

    def _answered(
        self, command: Command, then: Callable[[Exception | None], None], answer: Frame | FrameworkError, at: float
    ) -> None:
        self._owed -= 1
        then(self._verdict(command, answer))

    def _verdict(self, command: Command, answer: Frame | FrameworkError) -> Exception | None:
        if isinstance(answer, FrameworkError):
            return PublishError(f"{answer}; {_UNKNOWN}", stored=None)
        if answer.code in STORED:
            return None
        error = error_of(answer)
        words = f"topic {command.topic!r}, RocketMQ at {self._session.server}: {error}"
        if isinstance(error, TopicMissing):
            return NoPlace(words)
        if answer.code == Answer.GO_AWAY:
            return NotStored(words)
        if isinstance(error, NotAvailable | NoPermission):
            return Refused(words)
        if isinstance(error, TryLater) or error.words.startswith(_PASSING):
            return NotStored(words)
        if _NO_QUEUE.search(error.words) and self._queues.pop(command.topic, 0):
            return NotStored(words)
        if error.words.startswith(_UNSURE):
            return PublishError(f"{words}; {_UNKNOWN}", stored=None)
        if error.words.startswith(_THERE):
            return Refused(words)
        return (MessageRefused if isinstance(error, Illegal) else PublishError)(words, stored=False)

    @property
    def _owes(self) -> bool:
        return self._owed > 0

    def prove(self, until: float) -> Exception | None:
        """As ``publish_link.PublishLink``: a heartbeat is answered, and stores nothing."""
        try:
            self._session.ask(Request.HEART_BEAT, {}, heartbeat("prove", []), timeout=max(0.0, until - monotonic()))
        except RocketError:
            return None
        except FrameworkError as error:
            return error
        return None

    def give_up(self, number: int) -> None:
        self._session.give_up(number)


class _Run(Run[Command]):
    """Of messages, by requests of the session."""

    def __init__(self, link: PublishLink, commands: Sequence[Command], timeout: float) -> None:
        super().__init__(commands, timeout)
        self._link = link
        self._size = 0
        """Bytes of the bodies that are under way."""

    def _give_up(self, question: int) -> None:
        self._link.give_up(question)

    def _fill(self) -> None:
        while self._next < len(self._commands) and len(self._under_way) < WINDOW:
            number, command = self._next, self._commands[self._next]
            if self._under_way and self._size + len(command.body) > WINDOW_BYTES:
                return
            self._next += 1
            if (refusal := self._link.refusal(command)) is not None:
                self._answers[number] = refusal
                continue
            self._size += len(command.body)
            self._under_way[number] = self._link.send(command, partial(self._answered, number)), monotonic()

    def _answered(self, number: int, outcome: Exception | None) -> None:
        """Also from a greenlet: whoever closes a producer tells all who wait."""
        if self._over or self._under_way.pop(number, None) is None:
            return
        self._answers[number] = outcome
        self._size -= len(self._commands[number].body)
        if len(self._under_way) <= WINDOW // 2 and self._next < len(self._commands):
            self._fill()
        if len(self._answers) == len(self._commands):
            self._over = True
            hub = get_hub()  # a Waiter is switched to from the hub only
            if getcurrent() is hub:  # what its greenlet publishes next leaves at the end of this turn
                self._waiter.switch(None)
            else:
                hub.loop.run_callback(self._waiter.switch, None)

    def _look_at(self, under_way: list[tuple[int, tuple[int, float]]], now: float) -> None:
        self._link.look(under_way[0][1][1])
        for number, (request, since) in under_way:
            if now - since >= self._timeout:
                self._link.give_up(request)
                words = f"RocketMQ's {self._link.node} gave no answer for {self._timeout:.1f} s; {_UNKNOWN}"
                self._answered(number, PublishError(words, stored=None))
