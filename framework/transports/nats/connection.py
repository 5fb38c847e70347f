"""One subscription of one handler to one durable consumer, on a session that it shares: pulls as granted, says what is settled.

JetStream does not say that a lease is over, and takes a settlement after that as any other: so leases are counted here, by what
the server is known to have read, and what is settled later is not sent. Source: ADR-13 of NATS; the JetStream API reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from gevent.hub import get_hub

from framework.errors import AlreadySettled, BrokerUnreachable, ProtocolError, words_of
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import Limits, Receiver, Rescuable
from framework.transports.lease_guard import CERTAIN, LeaseGuard
from framework.transports.nats import headers, wire
from framework.transports.nats.away import Away
from framework.transports.nats.carrier import Carrier
from framework.transports.nats.changes import Changes, lacks_its_body
from framework.transports.nats.deliveries import Deliveries
from framework.transports.nats.history import Mark
from framework.transports.nats.leases import Leases
from framework.transports.nats.place import Place
from framework.transports.nats.pulling import Pulling
from framework.transports.nats.settlements import NOTHING, Sent, Settlements
from framework.transports.nats.streams import COUNTS, Consumer, version_of

log = hublog.get(__name__)

CLOSE_FLUSH = 1.0
PATIENCE = 3.0
"""Seconds that a server may take to confirm what is settled while the worker stops, before it is dialled anew."""
_UNCERTAIN = "for as long as a lease is nobody has said that it is the one that it was"
_EXPIRED = "nobody has heard of it for as long as its lease is: it is delivered again"


class JetStreamConnection:
    """``contract.Connection`` on JetStream. Made on the hub that it will live on, for a consumer that exists."""

    lasting_ids = False
    """A stream that is made anew counts from 1 again."""

    def __init__(
        self, session: Carrier, place: Place, limits: Limits, receiver: Receiver, *, ended: Callable[[], None],
        renew: Callable[[], Carrier] | None = None,
    ) -> None:  # fmt: skip
        """``ended()``: the session is not used here any more. ``renew()``: another in place of one that has ended."""
        self.node, self.topic, self.channel = place.node, place.topic, place.channel
        self._ended = ended
        self._renew = renew
        self._away: Away | None = None
        """While calls run and there is no session."""
        self._say_by = math.inf
        """Until when to say what was settled while it was not sure to whom: then the first lease of these ends."""
        self._place = place
        self.limits = limits
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._session = session
        self._receiver = receiver
        self._tally = receiver.tally
        self._pulling = Pulling(session, self, place)
        self._leases = Leases(session, limits.lease)
        self._deliveries = Deliveries(self, self._leases, counts=version_of(session.info) >= COUNTS)
        self._replies = self._deliveries.replies
        self._changes = Changes(session, place, self)
        self._settlements = Settlements(session, receiver.tally)
        self._draining = self._drained = self._closing = self._closed = False
        session.attend(self, place.told)
        self._guard = LeaseGuard(self, receiver, self._leases, words=_EXPIRED, regularly=self._look)
        self._deadline = get_hub().loop.timer(CLOSE_FLUSH)

    @property
    def rescuable(self) -> Rescuable:
        """The socket that it shares, or the sockets."""
        return self._session.rescuable

    @property
    def away(self) -> str:
        """As in ``contract.Outliving``."""
        if self._away is not None:
            return str(self._away.error)
        deaf = self._draining and self._settlements.unheard()
        unread = f"nats-server {self._session.server} has not confirmed what it was told" if deaf else ""
        return self._session.away or (self._changes.unsure if self._settlements else "") or unread

    @property
    def exposed(self) -> int:
        return max(self.granted, len(self.in_flight) + self._changes.in_doubt + self._pulling.pulls.outstanding)

    # --- what the engine says ------------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not (self._draining or self._closing or self._closed):
            self.granted = n
            self._session.wants_to_speak(self)

    def finish(self, message: Message) -> None:
        self._settlements.acks.append(self._settle(message))
        self._session.wants_to_speak(self)

    def terminate(self, message: Message) -> None:
        self._settlements.terminate(self._settle(message))
        self._session.wants_to_speak(self)

    def requeue(self, message: Message, delay: float) -> None:
        longest = self.limits.max_requeue or 0.0
        until = self._leases.end(message, self.in_flight.get(message, 0.0))
        self._settlements.give_back(self._settle(message), min(delay, longest), until)
        self._session.wants_to_speak(self)

    def _settle(self, message: Message) -> bytes:
        """Where to say what became of it. JetStream would take it as well from whoever is too late."""
        sure = self._changes.sure
        at = 0.0 if sure else self.in_flight.get(message, 0.0)
        self._guard.take(message)
        if not sure:
            self._say_by = min(self._say_by, self._leases.end(message, at))
        if self._leases.known:  # few are ever touched
            self._leases.drop(message)
        return self._replies.pop(message)

    def forget_lease(self, message: Message) -> None:
        """As the guard asks for. Another may be asked for in its place."""
        self._session.wants_to_speak(self)
        self._replies.pop(message, None)
        self._leases.drop(message)

    def touch(self, message: Message) -> None:
        before = self.in_flight.get(message, 0.0)
        self._guard.take(message)
        self.in_flight[message] = now = monotonic()
        if not self._changes.sure:  # it may be another's message
            self._leases.untouched(message, before)
            return
        self._leases.touched(message, before, now)
        self._settlements.touch(self._replies[message])
        self._session.wants_to_speak(self)

    def drain(self) -> None:
        if self._draining or self._closed:
            return
        self._draining, self.granted = True, 0
        self._session.wants_to_speak(self)
        if self._away is not None:  # nothing comes from anywhere
            get_hub().loop.run_callback(self._confirm_drain)

    def _confirm_drain(self) -> None:
        if not (self._drained or self._closed):
            self._drained = True
            self._receiver.drained(self)

    def unsent(self) -> int:
        return self._settlements.unsent(unread=self._draining)

    def close(self) -> None:
        """What is in flight is given back: another worker need not wait until its lease is over."""
        if self._closing or self._closed:
            return
        if self._away is not None:
            self._end(None)
            return
        self._closing, self.granted = True, 0
        self._give_back(list(self.in_flight))
        self._session.wants_to_speak(self)
        self._deadline.start(self._unheard)
        self._session.ping(lambda: self._end(None))

    def _unheard(self, error: Exception | None = None) -> None:
        """What no server is known to have read, or to have taken, comes again, for all that is known."""
        self._settlements.recall(self._session.leave(self))
        self._end(error)

    def _give_back(self, messages: list[Message]) -> None:
        for message in messages:
            with suppress(AlreadySettled):  # its lease is over
                self.requeue(message, 0.0)

    # --- session.Owner -------------------------------------------------------------------------------------

    def heard(self, messages: list[wire.Msg], at: float) -> None:
        """Messages and statuses, as they came."""
        batch: list[Message] = []
        gone = ""
        for each in messages:
            if each.headers and (status := headers.status(each.headers))[0]:
                busy = bool(self.in_flight) or not self._settlements.settled  # or what was done is still to be read
                gone = self._pulling.status(each.sid, *status, at, busy=busy) or gone
            elif not each.body and each.reply and lacks_its_body(each):
                self._pulling.pulls.brought(each.sid, at)
                self._changes.doubt_body(each, at)
            elif each.reply and (message := self._message(each, at)) is not None:
                self._pulling.pulls.brought(each.sid, at)
                batch.append(message)
            elif each.subject in self._place.deletions:
                gone = "it was deleted"
            elif each.subject == self._place.election:
                self._settlements.say_again()
                self._out_of_sight()
        if self._deliveries.joined(batch, self._settlements.finishing):
            self._changes.suspect()  # leases may be shorter than they were
        if gone:
            self._tally.received += len(batch)
            self.gone(self._is_gone(gone))
        elif batch:
            self._take(batch)
        self._session.wants_to_speak(self)

    def _message(self, said: wire.Msg, at: float) -> Message | None:
        """None: somebody else has published to our inbox, which is no fault of the server's."""
        try:
            return self._deliveries.message(said, at)
        except ProtocolError as error:
            self._pulling.warn("%s/%s: passed over what nats-server %s brought: %s", str(error))
            return None

    def _take(self, batch: list[Message]) -> None:
        self._tally.received += len(batch)
        self._settlements.vouch()
        if self._drained or self._closing:
            self._give_back(batch)
        elif self._deliveries.published(batch):
            self._receiver.deliver(self, batch)

    def _is_gone(self, words: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"consumer of {self.topic}/{self.channel} on {self.node} is gone ({words})")

    def turn(self) -> None:
        if self._settlements:
            self._receiver.settled(self)

    def collect(self) -> tuple[bytes, Sent | None]:
        """In the order in which it is to be read: a touch before the settlement, and a pull before what is given back: a server
        before 2.10.14 that has none for what comes again delivers its neighbour again as well (nats-server#5305)."""
        if self._closed:
            return b"", None
        stops = self._draining or self._closing or self._session.leaving
        room = 0 if stops else max(0, self.granted - len(self.in_flight) - self._changes.in_doubt)
        taken = self._settlements.take() if self._changes.sure else NOTHING
        if self._draining and not (self._drained or self._pulling.pulls):
            self._session.ping(self._confirm_drain)
        back = self._pulling.taken_back(room, wanted=bool(self.granted))
        if taken.matters:
            self._session.prove()
        # What is handled while nothing may be settled stays in flight for the server, and comes again: more with each pull.
        asked = self._pulling.asked_for(room) if self._changes.sure else ()
        return self._settlements.said(self, taken, [*back, *asked])

    def keep(self, heard: list[wire.Msg], now: float, expired: Collection[Message]) -> tuple[bytes, Sent | None]:
        """What waits to be sent, and what is to be touched: of the messages in flight, and of those that came meanwhile."""
        if not self._changes.sure:
            return b"", None
        return self._settlements.said(self, self._settlements.take(self._deliveries.due(heard, now, expired, self.limits.lease)))

    def resumed(self) -> None:
        for message, at in self._leases.kept():
            if self.in_flight.pop(message, None) is not None:  # else it has been settled since
                self.in_flight[message] = at

    def moved(self) -> tuple[bytes, Callable[[], None]]:
        """What was asked of the server that led comes no more, but for what is on its way."""
        self._out_of_sight()
        said, sids = self._pulling.moved()
        return said, lambda: self._pulling.gone(sids)

    def _out_of_sight(self) -> None:
        self._leases.carry_over(self._session)
        self._changes.out_of_sight()

    def refused(self, words: str) -> bool:
        """A pull, or a settlement, that our user may not make; or it may not be told of deletions, and looks for them."""
        settled = f'"{self._place.acks}' in words
        if mine := settled or self._pulling.is_mine(words):
            end = self._unheard if settled else self._end
            end(BrokerUnreachable(f"{self.topic}/{self.channel}: nats-server {self._session.server}: {words}"))
        return mine or any(f'"{subject.decode()}"' in words for subject in self._place.told)

    def lost(self, error: Exception) -> None:
        """The session has ended. What runs may be settled by another one, and what nobody is known to have read is said there."""
        if self._renew is None or self._closed or self._closing:
            self._end(error)
            return
        self._settlements.recall(self._session.leave(self))
        if not (self.in_flight or self._settlements):
            self._end(error)
            return
        self._say_by = min(self._say_by, monotonic() + self.limits.lease * CERTAIN) if self._settlements else self._say_by
        form = "%s/%s: %s; %d messages in flight keep their leases while it is dialled again"
        log.warning(form, self.topic, self.channel, words_of(self.node, error), len(self.in_flight))
        self._pulling.close()
        self._changes.doubt_consumer()
        self._away = Away(self._renew, error, back=self._back)
        if self._draining:
            get_hub().loop.run_callback(self._confirm_drain)

    def _back(self, session: Carrier) -> None:
        """What is in flight is settled there, once it is certain that its consumer is there."""
        self._away = None
        self._session = session
        self._pulling = Pulling(session, self, self._place)
        session.attend(self, self._place.told)
        self._leases.carry_over(session)
        self._settlements.carry_over(session)
        self._changes.ask(session)

    # --- leases --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """At leases that are over, and at pulls of which nothing is heard."""
        if self._closed:
            return
        if self._session.error is not None and self._away is None:  # it had ended before it was told to whom
            self.lost(self._session.error)
            return
        self._guard.look()
        now = monotonic()
        if now >= self._say_by or (self._away is not None and not (self.in_flight or self._settlements)):
            self._end(self._away.error if self._away is not None else self._is_gone(_UNCERTAIN))
        if self._closed or self._away is not None:
            return
        if self._draining and self._settlements.unheard() > PATIENCE:  # there is no time to wait for the pulse
            self._session.doubt(PATIENCE)
            return
        if self._pulling.look(now) or self._session.deserted(now):
            self._changes.suspect()
        self._changes.look_when_due(now)
        if self._settlements:  # as what went to a server that is gone, and is said again
            self._session.wants_to_speak(self)
        if self._session.leaving:
            self._move()

    def _move(self) -> None:
        """The server is about to end: take what it has for us no more, and go elsewhere when what is here is settled and said."""
        if self._pulling.pulls:
            self._session.wants_to_speak(self)
        elif not (self.in_flight or self.unsent()):
            self._end(BrokerUnreachable(f"nats-server {self._session.server} is about to end (lame duck mode)"))

    def go_by(self, found: Consumer) -> None:
        """Its limits, which may be others than they were."""
        self._pulling.longest = found.config.max_expires
        if found.lease != self.limits.lease and not self._closed:
            log.warning("consumer %s has a lease of %g s now (ack_wait), it had %g s", found.name, found.lease, self.limits.lease)
            self.limits = replace(self.limits, lease=found.lease)
            self._leases.change(found.lease)
            self._guard.close()
            self._guard.begin()

    def unsettled(self) -> tuple[list[Mark], list[Mark]]:
        return self._deliveries.marks([*self._settlements.finishing(), *self._settlements.given_back()])

    def sure_again(self) -> None:
        if monotonic() >= self._say_by:
            self._end(self._is_gone(_UNCERTAIN))
            return
        self._say_by = math.inf
        for message in list(self.in_flight):
            with suppress(AlreadySettled):  # its lease is over since the last look
                self.touch(message)
        self._session.wants_to_speak(self)

    def let_through(self, said: list[tuple[wire.Msg, float]]) -> None:
        now = monotonic()
        recent = [] if self._closed else [(each, at) for each, at in said if now - at < self.limits.lease / 2]
        messages = [message for each, at in recent if (message := self._message(each, at)) is not None]
        self._deliveries.joined(messages, self._settlements.finishing)
        for message in messages:
            self.touch(message)
        if messages:
            self._take(messages)

    # --- the end -------------------------------------------------------------------------------------------

    def gone(self, error: Exception) -> None:
        """As in ``changes.Affected``."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        for timer in (self._guard, self._deadline, self._pulling):
            timer.close()
        if self._away is not None:
            self._away.close()
        self._settlements.lose(self._session.leave(self))
        self._settlements.close()
        self._tally.lease_lost += len(self.in_flight)
        self._deliveries.clear()
        self.granted = 0
        self._ended()
        self._receiver.closed(self, error)
