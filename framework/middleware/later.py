"""Delays that are longer than the broker takes: the message waits in ``<topic>.<channel>.later``, in hops, as often as it takes.

A broker can be asked for one delay at a time, remembers nothing of a message but how often it was delivered, and counts each
hop as a delivery. So what waits longer is published as an envelope (a JSON line, a newline, the body) that says when it is due
and who it was: id, node, times and attempts. An envelope that comes too early is published anew and finished; one that is due
reaches the handler as the message that it was, and its attempts go on where they stood. It is published before the message is
finished, so a crash in between leaves one too many. Because the time is in the envelope, a broker that forgets delays when it
restarts changes nothing either.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any

import msgspec

from framework.errors import FrameworkError, PublishError
from framework.handler import HandlerSpec
from framework.message import Message, calls_of
from framework.middleware.dead_letter import LATER, UNLIMITED, topic_name
from framework.middleware.outcome import DEFERRED, Outcome, Requeue

log = logging.getLogger(__name__)

MARK = 2 * UNLIMITED
"""What a connection to a ``.later`` topic adds to the attempts of its messages. More attempts than a handler allows are looked
for before each call, so that to tell an envelope from a message costs the ordinary ones nothing."""
AGAIN = 60.0
"""Seconds after which an envelope that could not be stored is tried again."""

Defer = Callable[[str, bytes, float], None]
"""topic, body, delay in seconds: returns when it is stored."""


def later_topic(spec: HandlerSpec) -> str:
    """Where messages of a handler wait that have to wait longer than the broker takes."""
    return topic_name(spec.topic, spec.channel, LATER)


class _Envelope(msgspec.Struct):
    """The line before the body. ``due``: seconds since 1970; ``timestamp``: nanoseconds, as in Message."""

    topic: str
    channel: str
    id: str
    node: str
    timestamp: int
    attempts: int
    due: float


_envelope = msgspec.json.Decoder(_Envelope)


class WaitingRoom:
    """The waiting room of one handler. ``longest``: the longest delay that the broker takes, in seconds."""

    def __init__(self, spec: HandlerSpec, defer: Defer | None, longest: float) -> None:
        self.topic = later_topic(spec)
        self._name = spec.name
        self._defer = defer or _nowhere
        self._longest = longest if defer else math.inf

    def requeue(self, message: Message, wanted: Requeue) -> Outcome:
        """What the broker can be asked for, so that ``message`` is delivered again when it is ``wanted``."""
        if wanted.delay <= self._longest:
            return wanted
        try:
            self._store(message, time() + wanted.delay)
        except FrameworkError as error:
            log.warning(
                "handler %s: message %s cannot wait for %g s in topic %s (%s); delivered again in %g s",
                self._name, message.id.decode(errors="replace"), wanted.delay, self.topic, error, self._longest,
            )  # fmt: skip
            return replace(wanted, delay=self._longest)
        return replace(DEFERRED, fault=wanted.fault, pause=wanted.pause)

    def returned(self, message: Message) -> Message | Outcome:
        """Of an envelope what it holds, or its outcome if it is early; any other message as it is."""
        if message.connection.topic != self.topic:
            return message
        message.attempts %= MARK
        try:
            line, _, body = message.body.partition(b"\n")
            envelope = _envelope.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return message  # not ours: the handler may say what it makes of it
        if envelope.due <= time():
            return _restored(message, envelope, body)
        return self._hop(message, envelope.due)

    def _hop(self, message: Message, due: float) -> Outcome:
        left = due - time()
        try:
            self._defer(self.topic, message.body, max(0.0, min(left, self._longest)))
        except FrameworkError as error:
            log.warning("handler %s: a message in topic %s cannot be deferred again: %s", self._name, self.topic, error)
            return Requeue(max(0.0, min(left, AGAIN, self._longest)))
        return DEFERRED

    def _store(self, message: Message, due: float) -> None:
        envelope = _Envelope(
            message.topic, message.channel, message.id.decode("latin-1"), message.node, message.timestamp, message.attempts, due
        )
        self._defer(self.topic, msgspec.json.encode(envelope) + b"\n" + message.body, self._longest)


def _nowhere(topic: str, body: bytes, delay: float) -> None:
    raise PublishError("no broker is known here to defer it")


def _restored(envelope: Message, header: _Envelope, body: bytes) -> Message:
    """The message that was put into ``envelope``, to be settled by the fate of that."""
    stand = _Stand(envelope, header)
    calls_of[stand] = _Calls(envelope)
    return Message(header.id.encode("latin-1"), header.timestamp, header.attempts + envelope.attempts, body, stand)


class _Stand:
    """The connection of a message that came in an envelope: its names are those of the message, its lease is the envelope's."""

    def __init__(self, envelope: Message, header: _Envelope) -> None:
        self.topic = header.topic
        self.channel = header.channel
        self.node = header.node
        self._envelope = envelope

    @property
    def in_flight(self) -> Any:
        return self

    def __contains__(self, message: object) -> bool:
        return not self._envelope.settled

    def touch(self, message: Message) -> None:
        self._envelope.touch()


class _Calls:
    """What a handler may ask of its own message, asked of the envelope, which is what its slot holds."""

    def __init__(self, envelope: Message) -> None:
        self._envelope = envelope

    def ends_at(self, message: Message) -> float | None:
        calls = calls_of.get(self._envelope.connection)
        return calls.ends_at(self._envelope) if calls is not None else None

    def lost(self, message: Message) -> bool:
        return self._envelope.lease_lost

    def touch(self, message: Message) -> None:
        self._envelope.touch()
