"""A socket to a server on the hub, shared by all who ask there: answers come out of order, and are handed on by their number.

While the hub is blocked another native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder
or the outbox holds the lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.observe import hublog
from framework.transports.forked import forget_in_child, let_go
from framework.transports.rocketmq import tls
from framework.transports.rocketmq.heartbeat import heartbeat
from framework.transports.rocketmq.outbox import Outbox
from framework.transports.rocketmq.owner import Asked, Owner, Then
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.urls import Options, Secrets
from framework.transports.rocketmq.wire import frames, signature
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.stream import RECV_SIZE, Socket

log = hublog.get(__name__)
_new_lock = monkey.get_original("_thread", "RLock")
"""Native; the patched one is a greenlet's. Of the kind that one thread may take twice: the garbage collector may run while it is
held, and close a producer that was dropped."""
_READ, _WRITE = 1, 2
_LOCK_PATIENCE = 0.1
"""Seconds that a rescue waits for a hub that does turn after all."""
BEAT = 30.0
"""Seconds between two heartbeats: a server closes after 120 in which nothing was said either way, a parked POP or not."""
_PULSE = 0.5
_NUMBERS = 2**31
_CLEAR = " before it said a word: where it asks for TLS, write rocketmq+tls:// in the broker URL"
"""What may be behind that, where it is spoken to in clear."""


class Session:
    """Made on the hub that it lives on. Of no more use once ``error`` is set."""

    def __init__(self, server: str, sock: Socket, options: Options, secrets: Secrets, client: str) -> None:
        self.server = server
        self.error: FrameworkError | None = None
        self.leaving = False
        """The server has said that it is about to stop."""
        self.heard_at = self._made_at = monotonic()
        """When something was read last."""
        self._sock, self._options, self._secrets, self.client = sock, options, secrets, client
        self._owners: dict[Owner, None] = {}
        self._dirty: dict[Owner, None] = {}
        self._pending: dict[int, Asked] = {}
        self._numbers = itertools.count(1)
        self._outbox = Outbox()
        self._feed = frames.Decoder().feed
        self._lock = _new_lock()
        self._stash: list[tuple[Frame, float]] = []
        self._fault: ProtocolError | None = None
        self._kept = False
        self._beaten = monotonic()
        self._flush_due = False
        self._loop = get_hub().loop
        self._start_watchers()
        forget_in_child(self)

    def _start_watchers(self) -> None:
        fd = self._sock.fileno()
        self._reader, self._writer = self._loop.io(fd, _READ), self._loop.io(fd, _WRITE)
        self._pulse = self._loop.timer(_PULSE, _PULSE, ref=False)
        self._beat = self._loop.timer(BEAT, BEAT, ref=False)
        self._reader.start(self._guarded, self._read)
        self._pulse.start(self._guarded, self._check_pulse)
        self._beat.start(self._guarded, self.beat)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Every watcher calls through here: the hub would print an exception, and all who ask stand still."""
        if self.error is not None:
            return
        self._flush_due = True  # at the end of this
        try:
            work()
            self._flush()
        except FrameworkError as error:
            self.end(error)
        except Exception as error:
            log.exception("RocketMQ at %s: a fault of this library ends the connection", self.server)
            self.end(self._broken(repr(error)))

    # --- whoever asks --------------------------------------------------------------------------------------

    def attach(self, owner: Owner) -> None:
        self._owners[owner] = None
        self.beat()

    def leave(self, owner: Owner) -> None:
        """``owner`` has ended: what is answered to it is passed over."""
        self._owners.pop(owner, None)
        self._dirty.pop(owner, None)
        self._outbox.forget(owner)
        for number in [number for number, asked in self._pending.items() if asked.owner is owner]:
            self._pending.pop(number, None)
        group = owner.subscription.group
        if all(other.subscription.group != group for other in self._owners):
            self.tell(Request.UNREGISTER_CLIENT, {"clientID": self.client, "consumerGroup": group, "producerGroup": group})

    def wants_to_speak(self, owner: Owner) -> None:
        """Collect from it in this turn of the hub."""
        self._dirty[owner] = None
        self.schedule()

    def schedule(self) -> None:
        if not self._flush_due and self.error is None:
            self._flush_due = True
            self._loop.run_callback(self._guarded, self._turn)

    def put(
        self, owner: object, code: int, fields: dict[str, str], then: Then, *, body: bytes = b"", wait: float = 0.0,
        anywhere: bool = False,
    ) -> int:  # fmt: skip
        """Queue a request for the flush that is under way, or ``schedule``d; returns the number by which ``give_up`` knows it.

        ``wait``: seconds that the server may take on purpose. ``anywhere``: ``then`` may be called in any thread."""
        number = next(self._numbers) % _NUMBERS
        due = monotonic() + wait + self._options.answer_timeout
        self._pending[number] = Asked(owner, then, due, anywhere)
        self._outbox.put(self._encoded(code, fields, body, number))
        return number

    def mark(self, owner: object, then: Callable[[], None]) -> None:
        """``then`` is called on the hub when the socket has taken all that was ``put`` by now."""
        self._outbox.put(b"", owner, then)

    def tell(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """As ``put``, with an answer that nobody waits for."""
        self.put(None, code, fields, _pass_over, body=body)
        self.schedule()

    def call(self, code: int, fields: dict[str, str], then: Then, *, body: bytes = b"") -> int:
        """As ``put``, from outside of a flush."""
        number = self.put(None, code, fields, then, body=body)
        self.schedule()
        return number

    def give_up(self, number: int) -> None:
        """Pass its answer over."""
        if (asked := self._pending.get(number)) is not None:
            asked.then = _pass_over

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"", timeout: float = 5.0) -> Frame:
        """The answer to a request; blocks its greenlet. Raises BrokerUnreachable, RocketError."""
        if self.error is not None:
            raise self.error
        return Question(self, code, fields, body).wait(timeout)

    def beat(self) -> None:
        """A heartbeat: it shows who subscribes, and keeps the socket."""
        self._beaten = monotonic()
        self.tell(Request.HEART_BEAT, {}, self.heartbeat)

    @property
    def heartbeat(self) -> bytes:
        """Its body."""
        shown = [owner.subscription for owner in self._owners if owner.shown]
        return heartbeat(self.client, shown, [owner.subscription.group for owner in self._owners if owner.holds])

    @property
    def signs(self) -> bool:
        """Whether requests say who we are."""
        return bool(self._secrets.access_key)

    def _encoded(self, code: int, fields: dict[str, str], body: bytes, number: int) -> bytes:
        if self._secrets.access_key:
            fields = signature.signed(fields, body, self._secrets.access_key, self._secrets.secret)
        return frames.encode(Frame(code, number, fields, body))

    # --- reading -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        if self._stash or self._kept or self._fault is not None:
            self._take_stash()
        try:
            with self._lock:
                data = self._sock.recv(RECV_SIZE)
                found = self._feed(data) if data else []
        except BlockingIOError:
            return
        except OSError as error:
            raise self._broken(tls.ended_by(error)) from error
        if not data:
            silent = self.heard_at == self._made_at and not self._options.tls
            raise self._broken("the server closed it" + (_CLEAR if silent else ""))
        self.heard_at = now = monotonic()
        for frame in found:
            self._take(frame, now)

    def poll(self) -> None:
        """Read what has come, where the hub does not run between two uses (a plain thread)."""
        before = -1.0
        while self.error is None and before != self.heard_at:
            before = self.heard_at
            self._guarded(self._read)

    def _take(self, frame: Frame, at: float) -> None:
        if not frame.is_answer:
            self._asked_of_us(frame)
            return
        if frame.code == Answer.GO_AWAY:
            self.leaving = True
        asked = self._pending.pop(frame.opaque, None)
        if asked is not None:
            asked.then(frame, at)

    def _asked_of_us(self, frame: Frame) -> None:
        """A server tells its clients who has come and gone, and asks after transactions, of which we have none."""
        if frame.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            for owner in list(self._owners):
                owner.others_changed(frame.fields.get("consumerGroup", ""))
        if not frame.is_oneway:
            words = f"request type {frame.code} not supported"
            refused = Frame(Answer.REQUEST_CODE_NOT_SUPPORTED, frame.opaque, flag=frames.RESPONSE, remark=words)
            self._outbox.put(frames.encode(refused))

    def _check_pulse(self) -> None:
        """A hub that was blocked has answers waiting in the socket: read before judging the peer dead."""
        late = self._overdue()
        if late:
            self._read()
            late = self._overdue() if self.error is None else []
        if late and monotonic() - self.heard_at >= self._options.answer_timeout:
            raise BrokerUnreachable(f"RocketMQ at {self.server} was silent for {self._options.answer_timeout:g} s")
        for number in late:
            self._pending.pop(number).then(BrokerUnreachable(f"RocketMQ at {self.server} does not answer"), monotonic())

    def _overdue(self) -> list[int]:
        now = monotonic()
        return [number for number, asked in list(self._pending.items()) if asked.due <= now]

    # --- sending -------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for owner in list(self._dirty):
            owner.turn()

    def _flush(self) -> None:
        self._flush_due = False
        if self.error is not None:
            return
        try:
            with self._lock:
                if not self._outbox.full:
                    dirty, self._dirty = self._dirty, {}
                    for owner in dirty:
                        owner.collect()
                self._outbox.send(self._sock)
        except OSError as error:
            raise self._broken(tls.ended_by(error)) from error
        self._outbox.tell()
        if not self._outbox.full:
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._guarded, _nothing)

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """As in ``contract.Rescuable``; ``expired`` has messages of every owner."""
        if not self._lock.acquire(timeout=_LOCK_PATIENCE):
            return
        try:
            if self.error is None and self._fault is None:
                self._read_all(now)
                self._kept = True
                for owner in list(self._owners):
                    owner.keep(now, expired)
                if now - self._beaten >= BEAT:
                    self._beaten = now
                    self.put(None, Request.HEART_BEAT, {}, _pass_over, body=self.heartbeat)
                self._outbox.send(self._sock)
        except OSError:  # the hub finds it as well
            pass
        finally:
            self._lock.release()

    def _read_all(self, now: float) -> None:
        """Until nothing is left. What an answer to a touch says counts at once: the next one needs it."""
        try:
            while data := self._sock.recv(RECV_SIZE):
                self.heard_at = now
                for frame in self._feed(data):
                    asked = self._pending.get(frame.opaque) if frame.is_answer else None
                    if asked is not None and asked.anywhere:
                        del self._pending[frame.opaque]
                        asked.then(frame, now)
                    else:
                        self._stash.append((frame, now))
        except BlockingIOError:
            pass
        except ProtocolError as error:
            self._fault = error

    def rescued(self) -> None:
        """The hub turns again, and takes what was read in its place."""
        if self._stash or self._kept or self._fault is not None or self._outbox.untold:
            self._guarded(self._take_stash)

    def _take_stash(self) -> None:
        with self._lock:
            stash, self._stash = self._stash, []
            fault, kept, self._kept = self._fault, self._kept, False
        if kept:
            for owner in list(self._owners):
                owner.resumed()
        for frame, at in stash:
            self._take(frame, at)
        if fault is not None:
            raise fault

    # --- the end -------------------------------------------------------------------------------------------

    def _broken(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection to RocketMQ at {self.server} broke: {why}")

    def close(self) -> None:
        """Nobody uses it any more."""
        self._guarded(_nothing)
        self.end(BrokerUnreachable(f"the connection to RocketMQ at {self.server} was closed"))

    def end(self, error: FrameworkError) -> None:
        """Close the socket, and tell all who ask."""
        if self.error is not None:
            return
        self.error = error
        self._stop_watchers()
        with self._lock:
            self._sock.close()
        self._outbox.tell()
        for owner in list(self._owners):
            owner.lost(error)
        pending, self._pending = list(self._pending.values()), {}
        for asked in pending:
            asked.then(error, monotonic())
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
        for watcher in (self._reader, self._writer, self._pulse, self._beat):
            watcher.close()


def _pass_over(answer: Frame | FrameworkError, at: float) -> None:
    """Nobody waits for it."""


def _nothing() -> None:
    """For callbacks that only flush."""
