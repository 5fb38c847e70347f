"""Where messages of a handler wait when the broker alone cannot have them wait: the topic ``<topic>.<channel>.later``.

A broker can be asked for one delay at a time, which has a longest, and counts each delivery. So what shall wait for longer, or
wait without using up an attempt, is published as an envelope that says when it is due and who it was. One that comes too
early is published anew and finished (a hop); one that is due reaches the handler as the message that it was. It is published
before the message is finished, so a crash in between leaves one too many. Because the time is in the envelope, a broker that
forgets delays when it restarts changes nothing either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any, NamedTuple

import msgspec
from gevent.lock import Semaphore

from framework.errors import BadMessage, FrameworkError, PublishError
from framework.handler import HandlerSpec
from framework.headers import NONE, Headers
from framework.message import Message, Unreadable
from framework.middleware.dead_letter import topic_name
from framework.middleware.envelope import LATER, Header, header_for, header_of, opened, restored, sealed, sealed_beside
from framework.middleware.on_end import OnEnd
from framework.middleware.outcome import DEFERRED, BatchOutcome, Chain, Outcome, Requeue
from framework.middleware.retry import describe, is_for_the_process
from framework.names import EPHEMERAL
from framework.observe import hublog

log = hublog.get(__name__)

AGAIN = 60.0
"""Seconds after which an envelope that could not be stored is tried again."""
LEAST_HOP = 0.1
"""Seconds. Where the broker keeps no longer delay than this, hops would only keep it busy: nothing waits in an envelope."""
FOREVER = 366 * 86_400.0
"""Seconds. A broker that takes such delays needs no help."""
TOO_EARLY = 20
"""Times in a row that an envelope may come back at once: then the broker keeps no delay, whatever it says."""
TURN = 1.0
"""Seconds that one waits until the others that came at once are stored."""
STRANGERS_WAIT = 600.0
"""Seconds until another owner's envelope is looked at again, where that owner has a copy of its own."""
NOTICED = frozenset(10**n for n in range(1, 16))
"""How many times a message has been put off when the log says so: what its handler never lets go of must not go unnoticed."""
PASSING = 600.0
"""Seconds on end for which nothing can be stored, and what is given back in its place counts as no attempt: what lasts for longer
does not pass by itself, as a permission that is missing."""
_A_MOMENT = 0.001  # seconds, the least delay of a hop: it must never be none

Defer = Callable[[str, bytes, float, Headers], None]
"""topic, body, delay in seconds, headers: returns when it is stored."""


class Delays(NamedTuple):
    """How long the broker has a message wait, in seconds, as far as is known."""

    requeue: float
    """What comes again, on a node that does not say otherwise."""
    publish: float
    levels: tuple[float, ...] = ()
    """As in ``contract.Capabilities.delay_levels``."""

    def hop(self, seconds: float) -> float:
        """The delay of a publish that comes nearest to ``seconds`` without passing it: what is left is for the next hop."""
        if self.levels:
            return max((level for level in self.levels if level <= seconds), default=self.levels[0])
        return max(_A_MOMENT, min(seconds, self.publish))


ANY = Delays(FOREVER, FOREVER)


def later_topic(spec: HandlerSpec) -> str:
    """Where messages of a handler wait."""
    return topic_name(spec.topic, spec.channel, LATER)


def lasts(spec: HandlerSpec) -> bool:
    """Whether messages of a handler may wait there. Those of what is ephemeral wait for as long as the broker takes."""
    return not (spec.topic.endswith(EPHEMERAL) or spec.channel.endswith(EPHEMERAL))


def compile_later(spec: HandlerSpec, chain: Chain, later: LaterTopic) -> Chain:
    """The chain of what comes from a handler's ``.later`` topic: opens it, and has ``chain`` handle what is due. Its messages
    have the outcome of their envelopes. In a batch there may be messages of the handler's own topic beside them."""

    def opened_or_not(message: Message) -> Message | Outcome:
        try:
            return later.returned(message)
        except BaseException as error:  # its handler's time may be over meanwhile
            if is_for_the_process(error):
                raise
            log.exception("handler %s: a message in topic %s cannot be passed on", spec.name, later.topic)
            return Requeue(AGAIN)

    def handle(message: Message) -> Any:
        found = opened_or_not(message)
        return chain(found) if isinstance(found, Message) else found

    def handle_batch(messages: Sequence[Message]) -> BatchOutcome:
        found = {one: opened_or_not(one) if one.connection.topic == later.topic else one for one in messages}
        came_as = {one: message for message, one in found.items() if isinstance(one, Message)}
        outcomes: Any = chain(list(came_as)) if came_as else {}
        early = {message: one for message, one in found.items() if not isinstance(one, Message)}
        return early | {came_as[one]: outcome for one, outcome in outcomes.items()}

    return handle_batch if spec.batch else handle


class LaterTopic:
    """That of one handler. ``defer``: None where nothing can wait. ``delays()``: those that the broker keeps.
    ``copies``: each channel of a topic has a copy of its own. ``carries()``: the broker carries headers, as far as is known.
    ``clock``: seconds since 1970.
    """

    def __init__(
        self,
        spec: HandlerSpec,
        defer: Defer | None = None,
        delays: Callable[[], Delays] = lambda: ANY,
        *,
        copies: bool = True,
        carries: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.topic = later_topic(spec)
        self._name = spec.name
        self._owner = (spec.topic, spec.channel)
        self._limit = spec.max_attempts
        self._defer = defer
        self._delays = delays
        self._copies = copies
        self._carries = carries
        self._now = clock or time
        self._strangers: set[tuple[str, str]] = set()
        self._said_that_it_counts = False
        self._one = Semaphore()
        self._failing = OnEnd()
        self._failing_for = 0.0
        """Seconds, at the last failure to store something."""

    def requeue(self, message: Message, wanted: Requeue) -> Outcome:
        """What the broker can be asked for, so that ``message`` is delivered again when it is ``wanted``."""
        if not wanted.delay or message.settled:
            return wanted
        longest = self._longest_requeue(message)
        if wanted.delay <= longest:
            return wanted
        if not self._usable or isinstance(message, Unreadable):
            return replace(wanted, delay=longest)  # as its broker will cut it; what the log says shall be true
        try:
            self._store(header_for(message, self._owner, self._now() + wanted.delay), message.body)
        except FrameworkError as error:
            log.warning(
                "handler %s: message %s cannot wait for %g s in topic %s (%s); delivered again in %g s",
                self._name, message.id.decode(errors="replace"), wanted.delay, self.topic, error, longest,
            )  # fmt: skip
            return replace(wanted, delay=longest)
        return replace(DEFERRED, fault=wanted.fault, pause=wanted.pause)

    def put_off(self, message: Message, seconds: float) -> Outcome:
        """Have ``message`` delivered again with the attempts that it has now; None where that never can be: it counts then.

        What its broker is asked to deliver again counts there. So it goes round in an envelope, however short the wait."""
        if message.settled:
            return None
        if not self._usable:
            self._say_that_it_counts()
            return None
        now = self._now()
        header = header_for(message, self._owner, now + seconds)
        header.attempts = max(0, header.attempts - 1)
        header.put_off += 1
        header.since = header.since or now
        try:
            self._store(header, message.body)
        except FrameworkError as error:
            if self._passes(error):
                log.warning(
                    "handler %s: message %s cannot wait in topic %s (%s): given back, which is an attempt for other workers",
                    self._name, message.id.decode(errors="replace"), self.topic, error,
                )  # fmt: skip
                return Requeue(min(seconds, self._longest_requeue(message)), counts=False)
            log.warning(
                "handler %s: message %s cannot wait in topic %s (%s), so this attempt counts",
                self._name, message.id.decode(errors="replace"), self.topic, error,
            )  # fmt: skip
            return None
        if header.put_off in NOTICED:
            log.warning(
                "handler %s: message %s has been put off %d times since %s, by Retry(count=False): it is never given up",
                self._name, header.id, header.put_off, datetime.fromtimestamp(header.since, UTC).isoformat(timespec="seconds"),
            )  # fmt: skip
        return DEFERRED

    def _passes(self, error: FrameworkError) -> bool:
        """Whether it can be stored in a while, as far as is known."""
        return not isinstance(error, BadMessage) and self._failing_for < PASSING

    def _say_that_it_counts(self) -> None:
        if not self._said_that_it_counts:
            self._said_that_it_counts = True
            why = (
                "this broker keeps no delays of what is published"
                if self._defer
                else "no message of an ephemeral topic or channel waits elsewhere"
            )
            log.warning("handler %s: each Retry(count=False) counts as an attempt: %s", self._name, why)

    def must_keep(self, message: Message, deliveries: int) -> bool:
        """Whether ``message``, delivered once more by its broker, would be given up where nobody knows that it only waited.

        ``deliveries``: of it, or of its envelope, as the broker counts them, this one included. May be asked from any thread."""
        if not self._limit or not self._usable or isinstance(message, Unreadable):
            return False
        if message.connection.topic == self.topic:
            found = opened(message)
            if found is None or found[0].owner != self._owner:
                return False
            deliveries += found[0].attempts
        return deliveries >= self._limit

    def keep(self, message: Message, seconds: float) -> bool:
        """Store ``message``, or the envelope that it is, with the attempts that it had before this delivery; whether it is.

        Of what has not been started."""
        found = opened(message) if message.connection.topic == self.topic else None
        if found is None:
            header, body = header_for(message, self._owner, self._now() + seconds), message.body
            header.attempts = max(0, header.attempts - 1)
        else:
            header, body = found
            header.attempts += max(0, message.attempts - 1)
        try:
            self._store(header, body, max(seconds, self._left(header)))
        except FrameworkError as error:
            log.warning(
                "handler %s: message %s cannot wait in topic %s (%s), so that it waited counts as an attempt",
                self._name, header.id, self.topic, error,
            )  # fmt: skip
            return False
        return True

    def times_put_off(self, message: Message) -> int:
        header = header_of(message)
        return header.put_off if header else 0

    def returned(self, message: Message) -> Message | Outcome:
        """Of an envelope what it holds, or its outcome if it is early; what is no envelope as it is."""
        found = opened(message)
        if found is None:
            return message  # no envelope: the handler may say what it makes of it
        header, body = found
        if header.owner != self._owner:
            return self._a_strangers(message, header)
        left = self._left(header)
        return restored(message, header, body) if left <= 0 else self._hop(message, header, body, left)

    def _hop(self, envelope: Message, header: Header, body: bytes, left: float) -> Message | Outcome:
        """It waits on. Each hop is a delay greater than none, or there is no other."""
        early = header.early + 1 if self._came_at_once(envelope, header, left) else 0
        if not self._usable or early > TOO_EARLY:
            log.warning(
                "handler %s: message %s comes %g s early: the broker keeps no delays", self._name, header.id, left
            )  # fmt: skip
            return restored(envelope, header, body)
        try:
            with self._alone(early):
                self._store(msgspec.structs.replace(header, early=early, hops=header.hops + 1), body, left)
        except FrameworkError as error:
            log.warning("handler %s: a message in topic %s cannot be deferred again: %s", self._name, self.topic, error)
            return Requeue(min(left, AGAIN, self._longest_requeue(envelope)))
        return DEFERRED

    @contextmanager
    def _alone(self, early: int) -> Iterator[None]:
        """What came at once again is stored one at a time. An nsqd with --mem-queue-size=0 keeps the delay of what is published
        only while its topic has nothing else to do (``put`` in its topic.go): of many at once most came at once once more."""
        mine = early > 1 and self._one.acquire(timeout=TURN)
        try:
            yield
        finally:
            if mine:
                self._one.release()

    def _came_at_once(self, envelope: Message, header: Header, left: float) -> bool:
        """Before half of the delay that was asked for."""
        ago = max(0.0, self._now() - (header.stored or envelope.timestamp / 1e9))
        return ago < self._delays().hop(ago + left) / 2

    def _a_strangers(self, envelope: Message, header: Header) -> Outcome:
        """The names of two handlers can make one topic (orders + eu.billing, orders.eu + billing). A message of the other is
        not handled, ended or counted down here. Where each channel has a copy, this copy waits for ever; elsewhere it is passed
        on."""
        if header.owner not in self._strangers:
            self._strangers.add(header.owner)
            log.warning(
                "handler %s: topic %s also holds messages of handler %s/%s, whose names make the same topic: they are left "
                "alone; give one of the two another topic or channel", self._name, self.topic, *header.owner,
            )  # fmt: skip
        if self._copies:
            return Requeue(STRANGERS_WAIT)
        pause = max(self._left(header), random.uniform(1, 10))
        try:  # anew: to give it back would count as an attempt of its owner's
            self._publish(envelope.body, pause, envelope.headers if self._carries() else NONE)
        except FrameworkError as error:
            log.warning("handler %s: a message in topic %s cannot be passed on: %s", self._name, self.topic, error)
            return Requeue(pause)
        return DEFERRED

    # -- storing

    @property
    def _usable(self) -> bool:
        return self._defer is not None and self._delays().publish >= LEAST_HOP

    def _longest_requeue(self, message: Message) -> float:
        of_node: float | None = message.connection.limits.max_requeue
        return self._delays().requeue if of_node is None else of_node

    def _store(self, header: Header, body: bytes, seconds: float | None = None) -> None:
        now, left, began = self._now(), self._left(header), monotonic()
        header.stored, header.due = now, now + left
        envelope, headers = sealed_beside(header, body) if self._carries() else (sealed(header, body), NONE)
        try:
            self._publish(envelope, left if seconds is None else seconds, headers)
        except FrameworkError:
            self._failing_for = self._failing.failed(began, monotonic())
            raise
        self._failing.worked()

    def _left(self, header: Header) -> float:
        """Seconds until it is due. Where the clock is behind what it was at the last hop, as many as there were then: else a
        message that was stored by a clock that is days ahead would wait for days."""
        return header.due - max(self._now(), header.stored)

    def _publish(self, body: bytes, seconds: float, headers: Headers) -> None:
        """For as long as the broker takes, which may turn out to be less than was known. Raises FrameworkError, and nothing else
        that is not for the process."""
        assert self._defer is not None
        while True:
            delays = self._delays()
            try:
                return self._defer(self.topic, body, delays.hop(seconds), headers)
            except FrameworkError:
                if not LEAST_HOP <= self._delays().publish < delays.publish:
                    raise
            except BaseException as error:  # its handler's time may be over meanwhile, or the worker's
                if is_for_the_process(error):
                    raise
                raise PublishError(f"not stored while its handler could run: {describe(error)}", stored=None) from error
