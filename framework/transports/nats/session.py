"""A socket to a nats-server on the hub, shared by all who subscribe there: what comes is handed on by its SID."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection
from time import monotonic

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.observe import hublog
from framework.transports.nats import wire
from framework.transports.nats.commands import OF_CLIENTS
from framework.transports.nats.dial import Line, refusal
from framework.transports.nats.outbox import Outbox, Owner, Said
from framework.transports.nats.question import TIMEOUT, ask
from framework.transports.shared_session import SharedSession
from framework.transports.stream import RECV_SIZE

log = hublog.get(__name__)
DISTRUST = 5.0
"""Seconds in which a server that stops has ended: it lives on, else, and of another one of its cluster JetStream has ended."""


class Session(SharedSession[wire.ClientEvent]):
    """``carrier.Carrier`` of a client. Made on the hub that it lives on. Of no more use once ``error`` is set."""

    words = "the connection to nats-server"
    _outbox: Outbox
    commands = OF_CLIENTS
    patience = TIMEOUT

    def __init__(
        self, line: Line, ping_interval: float, told: Callable[[str, wire.Info], None] = lambda server, info: None
    ) -> None:
        """``told(server, info)``: what the server says of itself and the others has changed."""
        feed = line.decoder.feed
        super().__init__(line.server, line.release(), feed, Outbox())
        self.info = line.info
        self.inbox = b"_INBOX." + secrets.token_hex(11).encode()
        self.acks = self.inbox + b".acks"
        """Below it publishes are answered."""
        self.proven = 0.0
        """The server has read all that was sent before this moment."""
        self._heeded, self._distrusted_at = 0.0, -DISTRUST
        self._owners: dict[int, Owner] = {}
        self._sids = itertools.count(1)
        self._unanswered = 0
        """PINGs that were read in the hub's place, and not answered yet."""
        self._interval = ping_interval
        self._changed = told
        self._start_reading()
        self._every(ping_interval, self._check_pulse)
        first, at = line.events, self.heard_at
        self._loop.run_callback(self._guarded, lambda: self._take(first, at))

    @property
    def rescuable(self) -> Session:
        """The socket is its own."""
        return self

    @property
    def heeded(self) -> float:
        """As in ``carrier.Proving``."""
        return self.proven if monotonic() - self._distrusted_at > DISTRUST else self._heeded

    def distrust(self, *, ends: bool) -> None:
        now = monotonic()
        if now - self._distrusted_at > DISTRUST:
            self._heeded, self._distrusted_at = self.proven, now
        elif ends:  # one of a thousand streams ends for ten seconds; who only refuses a pull again and again lives on
            self._distrusted_at = now

    # --- whoever subscribes, or says something -------------------------------------------------------------

    def sid(self, owner: Owner) -> int:
        """A number for a subscription of ``owner``, until ``drop``."""
        sid = next(self._sids)
        self._owners[sid] = owner
        return sid

    def attend(self, owner: Owner, subjects: Collection[bytes]) -> None:
        """``owner`` hears what is published at ``subjects``, and is told of the end, until it leaves."""
        for subject in subjects:
            self.say(wire.sub(subject, self.sid(owner)))

    @property
    def relays(self) -> bool:
        return bool(self.info.cluster)

    @property
    def away(self) -> str:
        return str(self.error or "")

    def leave(self, owner: Owner) -> list[Said]:
        """``owner`` has ended: what comes for it is passed over, and the server told to send no more. Returns what it has said
        and the socket has not taken whole."""
        for sid in [sid for sid, one in self._owners.items() if one is owner]:
            del self._owners[sid]
            if self.error is None:
                self.say(wire.unsub(sid))
        return self._outbox.forget(owner)

    def drop(self, sid: int) -> None:
        """What still comes on it is passed over."""
        self._owners.pop(sid, None)

    def say(self, command: bytes) -> None:
        """With the next flush, ahead of what owners have collected then."""
        self._outbox.say(command)
        self.schedule()

    def wants_to_speak(self, owner: Owner) -> None:
        """Collect from it in this turn of the hub."""
        self._outbox.dirty[owner] = None
        self.schedule()

    def ping(self, then: Callable[[], None] | None = None) -> None:
        """``then`` is called when the server has read all that is said in this turn."""
        self._outbox.ping(then)
        self.schedule()

    def prove(self) -> None:
        """Have ``proven`` tell when the server has read what is collected in this turn."""
        self._outbox.prove()

    def listen(self, inbox: bytes, owner: Owner) -> None:
        """All that comes one word below ``inbox`` is for ``owner``."""
        self.say(wire.sub(inbox + b".*", self.sid(owner)))

    def publish(self, to: bytes, body: bytes, reply: bytes, headers: bytes) -> None:
        """To be answered at ``reply``. Nobody knows which server keeps it: ``astray`` is for those who do."""
        self.say(wire.pub(to, body, reply, headers=headers))

    def astray(self, to: bytes, went: object) -> bool:
        """Whoever was to answer a publish has gone since."""
        return False

    def deserted(self, now: float) -> bool:
        """No server leads what is pulled from, and has not for long."""
        return False

    def ask(self, to: bytes, body: bytes, timeout: float) -> wire.Msg:
        """Publish a request and wait for its answer; blocks its greenlet. Raises BrokerUnreachable, BrokerError."""
        return ask(self, to, body, timeout)

    def request(self, sid: int, to: bytes, body: bytes) -> None:
        inbox = b"%b.%d" % (self.inbox, sid)
        self.say(wire.sub(inbox, sid) + wire.pub(to, body, inbox))

    def settles(self, answer: wire.Msg) -> bool:
        """One server answers."""
        return True

    def withdraw(self, sid: int) -> None:
        self.drop(sid)
        if self.error is None:
            self.say(wire.unsub(sid))

    # --- reading -------------------------------------------------------------------------------------------

    def _take(self, events: list[wire.ClientEvent], at: float) -> None:
        owners, batches = self._owners, dict[Owner, list[wire.Msg]]()
        for event in events:
            if type(event) is wire.Msg:
                if (owner := owners.get(event.sid)) is not None:
                    if (batch := batches.get(owner)) is not None:
                        batch.append(event)
                    else:
                        batches[owner] = [event]
            elif event is wire.Word.PONG:  # it says something of all that came before it
                self._hand_over(batches, at)
                self._ponged()
            elif event is wire.Word.PING:
                self._outbox.say(wire.PONG)
            elif isinstance(event, wire.Err):
                self._told(event.words)
            elif isinstance(event, wire.Info):
                self.info = event
                self.leaving = self.leaving or event.ldm
                self._changed(self.server, event)
        self._hand_over(batches, at)

    def _hand_over(self, batches: dict[Owner, list[wire.Msg]], at: float) -> None:
        for owner, batch in batches.items():
            owner.heard(batch, at)
        batches.clear()

    def _ponged(self) -> None:
        if self._outbox.pings:
            asked_at, then = self._outbox.pings.popleft()
            self.proven = max(self.proven, asked_at)
            if then is not None:
                then()

    def _told(self, words: str) -> None:
        """Of a permission that is missing the server says so, and goes on; after all else it closes."""
        if not words.lower().startswith("permissions violation"):
            raise refusal(words)
        if not sum(owner.refused(words) for owner in self._sharers()):
            log.warning("nats-server %s: %s", self.server, words)

    def _check_pulse(self) -> None:
        """A hub that was blocked has answers waiting in the socket: read before judging the peer dead. One that was asked nothing
        owes no answer."""
        self.doubt(2 * self._interval)
        if self.error is None and not self._outbox.pings:
            self.ping()

    def doubt(self, limit: float) -> None:
        """End it where the server has owed an answer for more than ``limit`` seconds."""
        if self._owed() > limit:
            self._read()
        if self._owed() > limit and self.error is None:
            self.end(BrokerUnreachable(f"nats-server {self.server} was silent for {limit:g} s: the connection is dead"))

    def _owed(self) -> float:
        """Seconds for which the server has said nothing although it was asked."""
        pings = self._outbox.pings
        return monotonic() - max(self.heard_at, pings[0][0]) if pings else 0.0

    # --- sending -------------------------------------------------------------------------------------------

    def _speakers(self) -> dict[Owner, None]:
        return self._outbox.dirty

    def _sharers(self) -> dict[Owner, None]:
        return dict.fromkeys(list(self._owners.values()))

    def _send(self) -> None:
        self._outbox.send(self._sock)

    def _unsendable(self, error: OSError) -> Exception:
        """The -ERR that the server sent before it closed says more than EPIPE."""
        try:
            for _ in range(16):
                for event in self._feed(self._sock.recv(RECV_SIZE)):
                    if isinstance(event, wire.Err):
                        return refusal(event.words)
        except (OSError, ProtocolError):
            pass
        return self._unusable(error)

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def _sift(self, events: list[wire.ClientEvent], now: float) -> list[wire.ClientEvent]:
        """PINGs are answered there."""
        self._unanswered += events.count(wire.Word.PING)
        return [event for event in events if event is not wire.Word.PING]

    def _keep(self, now: float, expired: Collection[Message]) -> None:
        pongs = sum(events.count(wire.Word.PONG) for events, _ in self._stash)
        for asked_at, _ in list(self._outbox.pings)[:pongs]:
            self.proven = max(self.proven, asked_at)
        heard: dict[Owner, list[wire.Msg]] = {owner: [] for owner in list(self._owners.values())}
        for events, _ in self._stash:
            for event in events:
                if type(event) is wire.Msg and (owner := self._owners.get(event.sid)) in heard:
                    heard[owner].append(event)
        said = (owner.keep(some, now, expired) for owner, some in heard.items())
        if self._outbox.send_in_its_place(self._sock, self._unanswered, said, now):
            self._unanswered = 0

    def _resumed(self) -> None:
        """The server counts the PINGs that were not answered because the socket was full."""
        super()._resumed()
        with self._lock:
            unanswered, self._unanswered = self._unanswered, 0
        if unanswered:
            self.say(wire.PONG * unanswered)

    # --- the end -------------------------------------------------------------------------------------------

    def _ended(self, error: FrameworkError) -> None:
        self._outbox.tell()
        for owner in self._sharers():
            owner.lost(error)
        self._owners.clear()
