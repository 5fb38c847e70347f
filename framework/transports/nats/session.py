"""A socket to a nats-server on the hub, shared by all who subscribe there: what comes is handed on by its SID.

While the hub is blocked another native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder
or what is on its way holds the lock.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection
from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable, ProtocolError
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import RESCUE_PATIENCE
from framework.transports.forked import forget_in_child, let_go
from framework.transports.nats import wire
from framework.transports.nats.commands import OF_CLIENTS
from framework.transports.nats.dial import Line, refusal
from framework.transports.nats.outbox import Outbox, Owner, Said
from framework.transports.nats.question import ask
from framework.transports.stream import RECV_SIZE

log = hublog.get(__name__)
_new_lock = monkey.get_original("_thread", "RLock")
"""Native; the patched one is a greenlet's. Of the kind that one thread may take twice: the garbage collector may run while it is
held, and close a producer that was dropped."""
_READ, _WRITE = 1, 2
POLL = 0.1
"""Seconds after which a look at the socket ends although there is more to read."""


class Session:
    """``carrier.Carrier`` of a client. Made on the hub that it lives on. Of no more use once ``error`` is set."""

    commands = OF_CLIENTS

    def __init__(self, line: Line, ping_interval: float) -> None:
        self.server = line.server
        self.info = line.info
        self.error: Exception | None = None
        self.leaving = False
        """The server is in lame duck mode: whoever can shall go elsewhere."""
        self.inbox = b"_INBOX." + secrets.token_hex(11).encode()
        self.acks = self.inbox + b".acks"
        """Below it publishes are answered."""
        self.heard_at = monotonic()
        """When something was read last."""
        self.proven = 0.0
        """The server has read all that was sent before this moment."""
        self._owners: dict[int, Owner] = {}
        self._sids = itertools.count(1)
        self._outbox = Outbox()
        self._lock = _new_lock()
        self._stash: list[tuple[list[wire.ClientEvent], float]] = []
        self._kept = False
        """Owners have been kept in the hub's place, and do not know it yet."""
        self._fault: ProtocolError | None = None
        self._flush_due = False
        self._interval = ping_interval
        self._feed = line.decoder.feed
        self._first = line.events
        self._sock = line.release()
        self._loop = get_hub().loop
        self._start_watchers()
        forget_in_child(self)

    def _start_watchers(self) -> None:
        fd = self._sock.fileno()
        self._reader = self._loop.io(fd, _READ)
        self._writer = self._loop.io(fd, _WRITE)
        self._pulse = self._loop.timer(self._interval, self._interval, ref=False)
        self._reader.start(self._guarded, self._read)
        self._pulse.start(self._guarded, self._check_pulse)
        self._loop.run_callback(self._guarded, lambda: self._take(self._first, self.heard_at))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Every watcher calls through here: the hub would print an exception, and all who subscribe stand still."""
        if self.error is not None:
            return
        self._flush_due = True  # at the end of this
        try:
            work()
            self._flush()
        except Exception as error:
            self.end(error)

    @property
    def rescuable(self) -> Session:
        """The socket is its own."""
        return self

    # --- whoever subscribes, or says something -------------------------------------------------------------

    def sid(self, owner: Owner) -> int:
        """A number for a subscription of ``owner``, until ``drop``."""
        sid = next(self._sids)
        self._owners[sid] = owner
        return sid

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

    def schedule(self) -> None:
        if not self._flush_due and self.error is None:
            self._flush_due = True
            self._loop.run_callback(self._guarded, self._turn)

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

    def withdraw(self, sid: int) -> None:
        self.drop(sid)
        if self.error is None:
            self.say(wire.unsub(sid))

    # --- reading -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        if self._stash or self._kept:
            self._take_stash()
        try:
            with self._lock:
                data = self._sock.recv(RECV_SIZE)
                events = self._feed(data) if data else []
        except BlockingIOError:
            return
        except OSError as error:
            self.end(self._broken(str(error)))
            return
        if not data:
            self.end(self._broken("the server closed it"))
            return
        self.heard_at = now = monotonic()
        self._take(events, now)

    def poll(self) -> None:
        """Read what has come, where the hub does not run between two uses (a plain thread)."""
        before, until = -1.0, monotonic() + POLL
        while self.error is None and before != self.heard_at and monotonic() < until:
            before = self.heard_at
            self._guarded(self._read)

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
        owners = list(dict.fromkeys(self._owners.values()))
        if not sum(owner.refused(words) for owner in owners):
            log.warning("nats-server %s: %s", self.server, words)

    def _check_pulse(self) -> None:
        """A hub that was blocked has answers waiting in the socket: read before judging the peer dead. One that was asked nothing
        owes no answer."""
        limit = 2 * self._interval
        if self._owed() > limit:
            self._read()
        if self._owed() > limit and self.error is None:
            self.end(BrokerUnreachable(f"nats-server {self.server} was silent for {limit:g} s: the connection is dead"))
        elif not self._outbox.pings:
            self.ping()

    def _owed(self) -> float:
        """Seconds for which the server has said nothing although it was asked."""
        pings = self._outbox.pings
        return monotonic() - max(self.heard_at, pings[0][0]) if pings else 0.0

    # --- sending -------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for owner in list(self._outbox.dirty):
            owner.turn()

    def _flush(self) -> None:
        self._flush_due = False
        if self.error is not None:
            return
        try:
            with self._lock:
                self._outbox.send(self._sock)
        except OSError as error:
            self._last_words()
            self.end(self._broken(str(error)))
            return
        self._outbox.tell()
        if not self._outbox.waiting:
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._guarded, _nothing)

    def _last_words(self) -> None:
        """The -ERR that the server sent before it closed says more than EPIPE."""
        try:
            for _ in range(16):
                events = self._feed(self._sock.recv(RECV_SIZE))
                for event in events:
                    if isinstance(event, wire.Err):
                        self.end(refusal(event.words))
        except (OSError, ProtocolError):
            pass

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """As in ``contract.Rescuable``; ``expired`` has messages of every owner."""
        if not self._lock.acquire(timeout=RESCUE_PATIENCE):
            return
        try:
            if self.error is None and self._fault is None:
                self._keep_all(now, expired, self._read_all(now))
        except OSError:  # the hub finds it as well
            pass
        finally:
            self._lock.release()

    def _read_all(self, now: float) -> int:
        """Until nothing is left: a server gives up a client whose socket stays full. How many PINGs there were."""
        pings = 0
        try:
            while data := self._sock.recv(RECV_SIZE):
                self.heard_at = now
                events = self._feed(data)
                pings += events.count(wire.Word.PING)
                self._stash.append(([event for event in events if event is not wire.Word.PING], now))
        except BlockingIOError:
            pass
        except ProtocolError as error:
            self._fault = error
        pongs = sum(events.count(wire.Word.PONG) for events, _ in self._stash)
        for asked_at, _ in list(self._outbox.pings)[:pongs]:
            self.proven = max(self.proven, asked_at)
        return pings

    def _keep_all(self, now: float, expired: Collection[Message], pings: int) -> None:
        heard: dict[Owner, list[wire.Msg]] = {owner: [] for owner in list(self._owners.values())}
        for events, _ in self._stash:
            for event in events:
                if type(event) is wire.Msg and (owner := self._owners.get(event.sid)) in heard:
                    heard[owner].append(event)
        self._kept = True
        said = (owner.keep(some, now, expired) for owner, some in heard.items())
        self._outbox.send_in_its_place(self._sock, pings, said, now)

    def rescued(self) -> None:
        """The hub turns again, and takes what was read in its place."""
        if self._stash or self._kept or self._fault is not None or self._outbox.untold:
            self._guarded(self._take_stash)

    def _take_stash(self) -> None:
        with self._lock:
            stash, self._stash = self._stash, []
            fault, kept = self._fault, self._kept
            self._kept = False
        if kept:
            for owner in list(dict.fromkeys(self._owners.values())):
                owner.resumed()
        for events, at in stash:
            self._take(events, at)
        if fault is not None:
            raise fault

    # --- the end -------------------------------------------------------------------------------------------

    def _broken(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection to nats-server {self.server} broke: {why}")

    def close(self) -> None:
        """Nobody uses it any more."""
        self._guarded(_nothing)
        self.end(BrokerUnreachable(f"the connection to nats-server {self.server} was closed"))

    def end(self, error: Exception) -> None:
        """Close the socket, and tell all who subscribe."""
        if self.error is not None:
            return
        self.error = error
        self._stop_watchers()
        with self._lock:
            self._sock.close()
        self._outbox.tell()
        for owner in list(dict.fromkeys(self._owners.values())):
            owner.lost(error)
        self._owners.clear()

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""
        try:
            self._sock.shutdown(2)
        except OSError:
            pass

    def fileno(self) -> int:
        return self._sock.fileno()

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and so is what it brings. Nobody is told."""
        if self.error is None:
            self.error = BrokerUnreachable("it is the parent process's")
            self._stop_watchers()
            let_go(self._sock.fileno())

    def _stop_watchers(self) -> None:
        for watcher in (self._reader, self._writer, self._pulse):
            watcher.close()


def _nothing() -> None:
    """For callbacks that only flush."""
