"""One subscription on one nsqd: reads on the hub, hands batches to its receiver, joins settlements into one send.

It knows no policy: its receiver decides what is granted, finished or touched, and when. While the hub is blocked another
native thread may read and send in its place (``rescue``): whoever uses the socket, the decoder or the tail holds the lock.
Source: TCP protocol specification; nsqd's protocol_v2.go for what happens after CLS and after errors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import AlreadySettled, BrokerError, BrokerUnreachable, ProtocolError
from framework.forked import forget_in_child, let_go
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import Limits, Receiver
from framework.transports.enveloped import opening
from framework.transports.nsq import wire
from framework.transports.nsq.delays import MAX_DEFER
from framework.transports.nsq.dial import Line, dial
from framework.transports.nsq.outbox import Outbox
from framework.transports.nsq.rescuer import Rescuer
from framework.transports.nsq.urls import Options
from framework.transports.stream import RECV_SIZE

log = hublog.get(__name__)
_allocate_lock = monkey.get_original("_thread", "allocate_lock")

CLOSE_FLUSH = 1.0
RENEWAL = 1.0
"""Seconds between a refused settlement and the CLS of a connection whose count is in doubt, and between CLS and its end."""
_READ, _WRITE = 1, 2
_LAST_WORDS = 16  # reads of 64 KiB in search of the error frame that explains a broken connection


def connect(
    node: str,
    topic: str,
    channel: str,
    receiver: Receiver,
    options: Options,
    *,
    max_defer: float = MAX_DEFER,
) -> NsqConnection:
    """Dial, negotiate, SUB; blocks. ``max_defer``: the longest delay that ``node`` keeps, in seconds.

    Raises BrokerUnreachable, TlsFailed, BrokerError, ProtocolError, BadSetting."""
    with dial(node, options) as line:
        line.expect_ok("SUB", wire.sub(topic, channel))
        return NsqConnection(line, topic, channel, receiver, options.heartbeat, max_defer=max_defer, opens=options.headers)


class NsqConnection:
    """``contract.Connection`` on NSQ. Made by ``connect``, on the hub that it will live on. ``opens``: envelopes of headers."""

    lasting_ids = False
    """An id is made from nsqd's clock (guid.go), which may be set back."""

    def __init__(
        self, line: Line, topic: str, channel: str, receiver: Receiver, heartbeat: float, *, max_defer: float = MAX_DEFER,
        opens: bool = False,
    ) -> None:  # fmt: skip
        self.node = line.node
        self.topic = topic
        self.channel = channel
        self.limits: Limits = line.identity.limits(max_defer, line.quickest)
        self._max_requeue = max_defer
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._receiver = receiver
        self._tally = receiver.tally
        self._decoder = line.decoder.bind(self)
        feed = self._decoder.feed
        self.feed = opening(feed) if opens else feed
        self.sock = line.release()
        self._loop = get_hub().loop
        self._heartbeat = heartbeat
        self.last_read = monotonic()
        self._busy = False  # in a callback that flushes at its end
        self._flush_due = False
        self.draining = self._drained = self._renewing = self.closing = self.closed = False
        self._why: Exception | None = None  # it is closed from here, and not from outside
        self.outbox = Outbox()
        self._fins = self.outbox.fins
        self.lock = _allocate_lock()
        self.rescuable = Rescuer(self, self._tally, self._guarded)
        self._start_watchers()
        self._loop.run_callback(self._guarded, self.take_frames, line.events)
        forget_in_child(self)

    def _start_watchers(self) -> None:
        fd = self.sock.fileno()
        self._reader = self._loop.io(fd, _READ)
        self._writer = self._loop.io(fd, _WRITE)
        self._pulse = self._loop.timer(self._heartbeat, self._heartbeat)
        self._deadline = self._loop.timer(CLOSE_FLUSH)
        self._renewal = self._loop.timer(RENEWAL, RENEWAL)
        self._reader.start(self._guarded, self._read)
        self._pulse.start(self._guarded, self._check_pulse)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Every watcher calls through here: the hub would print an exception, and the connection stand still."""
        self._busy = True
        try:
            work(*arguments)
            self._flush()
        except Exception as error:
            self._end(error)
        finally:
            self._busy = False
        if self.closing and not (self.closed or self.unsent() or self._came_meanwhile()):
            self._end(self._why)

    @property
    def exposed(self) -> int:
        """What is on its way under an older grant is not known here."""
        return max(self.granted, len(self.in_flight))

    # --- what the engine says ----------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not (self.draining or self.closing):
            self.granted = self.outbox.rdy = n
            self._schedule()

    def finish(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self._fins.append(message.id)
        if not self._flush_due:
            self._schedule()

    def requeue(self, message: Message, delay: float) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        if self.rescuable.gave_back(message):
            self._tally.requeued += 1
            return
        self.outbox.reqs.append(wire.req(message.id, min(delay, self._max_requeue)))
        self._schedule()

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self.in_flight[message] = monotonic()
        self.outbox.touches.append(message.id)
        self._schedule()

    def drain(self) -> None:
        with self.lock:  # or it could be said twice, which nsqd does not forgive: see ``release``
            if self.draining:
                return
            self.draining = True
        self.granted = 0
        self.outbox.rdy = None
        self.outbox.others.append(wire.rdy(0) + wire.CLS)
        self._schedule()

    def unsent(self) -> int:
        return self.outbox.size()

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        if self.granted:  # ahead of the settlements, or each would invite one more message
            self.granted, self.outbox.rdy, self.outbox.first = 0, None, wire.rdy(0)
        self._deadline.start(self._end, None)
        if not self._busy:
            self._guarded(_nothing)

    # --- reading -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """One recv a turn: the watcher is level-triggered, so the hub turns between two of them."""
        if self.rescuable.rescue_made is not None:
            self.rescuable.take()
        try:
            with self.lock:
                data = self.sock.recv(RECV_SIZE)
                messages, others = self.feed(data) if data else ([], [])
        except BlockingIOError:
            return
        except OSError as error:
            self._end(self._broken(error))
            return
        self.last_read = now = monotonic()
        if not data:
            self._eof()
            return
        self._flush_due = True  # the flush at the end of this callback: settlements until then schedule none
        if messages:
            self._receive(messages, now)
        self.take_frames(others)

    def _receive(self, messages: list[Message], now: float) -> None:
        self.in_flight.update(dict.fromkeys(messages, now))
        self._tally.received += len(messages)
        self.hand_over(messages)

    def hand_over(self, messages: list[Message]) -> None:
        if self._drained or self._renewing or self.closing:
            self._give_back(messages)
        else:
            self._receiver.deliver(self, messages)

    def _give_back(self, messages: list[Message]) -> None:
        """nsqd may send a message that it had picked already after CLOSE_WAIT (a race in its code)."""
        for message in messages:
            self.requeue(message, 0)

    def _came_meanwhile(self) -> bool:
        """Whether messages came that the hub has not read yet: they go back, or they would wait at nsqd until their timeout."""
        try:
            if self.rescuable.rescue_made is not None:
                self.rescuable.take()
            with self.lock:
                messages, others = self.feed(self.sock.recv(RECV_SIZE))
            if messages:
                self._receive(messages, monotonic())
            self.take_frames(others)
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            return False
        if self.unsent():
            self._schedule()
        return bool(self.unsent() or self._decoder.unfinished)

    def take_frames(self, frames: list[bytes | BrokerError]) -> None:
        by_id: dict[bytes, deque[Message]] = {}
        for frame in frames:
            if self.closed:
                return
            if frame == wire.HEARTBEAT:
                self.outbox.others.append(wire.NOP)
            elif isinstance(frame, BrokerError):
                self._error(frame, by_id)
            elif frame == wire.CLOSE_WAIT:
                self._confirm_drain()
            else:
                log.debug("nsqd %s sent a response that nothing asked for: %r", self.node, frame[:80])

    def _confirm_drain(self) -> None:
        if not self._drained:
            self._drained = True
            self._receiver.drained(self)

    def _eof(self) -> None:
        if self.draining:
            self._confirm_drain()
            self._end(None)
        else:
            self._end(BrokerUnreachable(f"nsqd {self.node} closed the connection"))

    # --- in the hub's place, from another native thread: see ``Rescuer`` -----------------------------------

    def release(self, kept: Container[Message]) -> None:
        self.rescuable.release(kept)

    def write_off(self) -> None:
        self.rescuable.write_off()

    # --- errors of nsqd ----------------------------------------------------------------------------------

    def _error(self, error: BrokerError, by_id: dict[bytes, deque[Message]]) -> None:
        if error.fatal:
            self._end(error)
            return
        self._renewal.start(self._guarded, self._renew)  # one that runs goes on as it was
        if error.code == "E_TOUCH_FAILED":
            self._touch_failed(error, by_id)
        else:
            self._take_back("finished" if error.code == "E_FIN_FAILED" else "requeued")
            self._receiver.lost(self, None, str(error), settled=wire.refused_id(error) or b"")

    def _touch_failed(self, error: BrokerError, by_id: dict[bytes, deque[Message]]) -> None:
        """The lease of a message that is still being handled is gone. One that was settled since is spoken
        of by the error of its FIN or REQ. Of two deliveries of one id the older is meant: frames are in order.

        ``by_id``: what is in flight, made for the first of many that come at once."""
        if not by_id:
            for one in self.in_flight:
                by_id.setdefault(one.id, deque()).append(one)
        same = by_id.get(wire.refused_id(error) or b"")
        message = same.popleft() if same else None
        if message is not None and self.in_flight.pop(message, None) is not None:
            self._tally.lease_lost += 1
            self._receiver.lost(self, message, str(error))

    def _renew(self) -> None:
        """nsqd's count of what this connection has may be too high for ever, and a grant of 1 then be none: subscribe anew.

        After a crash it may have a message twice. While both copies are in flight it knows of one and counts two, and refuses
        to settle the other (it passes over the error of StartInFlightTimeout, in protocol_v2.go). A lease that was over is
        refused in the same words, with the count right; whatever it was, it can wait until nothing is in flight."""
        if self._renewing and self._drained:
            self._why = BrokerUnreachable(f"nsqd {self.node} may count messages as in flight that are not: subscribing anew")
            self.close()
        elif not (self.in_flight or self.draining):
            self._renewing = True
            self.drain()

    def _take_back(self, count: str, n: int = 1) -> None:
        setattr(self._tally, count, getattr(self._tally, count) - n)
        self._tally.lease_lost += n

    def _check_pulse(self) -> None:
        """A hub that was blocked has heartbeats waiting in the socket: read before judging the peer dead."""
        limit = 2 * self._heartbeat
        if monotonic() - self.last_read > limit:
            self._read()
        if monotonic() - self.last_read > limit:
            self._end(BrokerUnreachable(f"nsqd {self.node} was silent for {limit:g} s, two heartbeats: the connection is dead"))

    # --- sending -----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not (self._flush_due or self.closed):
            self._flush_due = True
            self._loop.run_callback(self._guarded, self._turn)

    def _turn(self) -> None:
        if self._fins or self.outbox.reqs:
            self._receiver.settled(self)

    def _flush(self) -> None:
        self._flush_due = False
        if self.closed:
            return
        try:
            with self.lock:
                sent = self.outbox.send(self.sock, self._tally)
        except OSError as error:
            self._end(self._last_words() or self._broken(error))
            return
        if sent:
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._guarded, _nothing)

    def _last_words(self) -> BrokerError | None:
        """The fatal error that nsqd sent before it closed, if it can still be read: it says more than EPIPE."""
        try:
            for _ in range(_LAST_WORDS):
                with self.lock:
                    frames = self.feed(self.sock.recv(RECV_SIZE))[1]
                for frame in frames:
                    if isinstance(frame, BrokerError):
                        if frame.fatal:
                            return frame
                        self._error(frame, {})
        except (OSError, ProtocolError):
            pass
        return None

    def _broken(self, error: OSError) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection to nsqd {self.node} broke: {error}")

    # --- the end -----------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.draining = self.closing = self.closed = True
        self._stop_watchers()
        with self.lock:
            self.sock.close()
        self.rescuable.learn()
        self.count_losses()
        self._receiver.closed(self, error)

    def _stop_watchers(self) -> None:
        for watcher in (self._reader, self._writer, self._pulse, self._deadline, self._renewal):
            watcher.close()

    def forget(self) -> None:
        """In a forked child: it is the parent's, whose messages would be read here. Nobody is told, or it would be made anew."""
        if not self.closed:
            self.closed = True
            self._stop_watchers()
            let_go(self.sock.fileno())

    def count_losses(self) -> None:
        """What nsqd will deliver again: all in flight, and every settlement that it cannot have read whole."""
        self._tally.lease_lost += len(self.in_flight) + len(self._fins) + len(self.outbox.reqs)
        finished, requeued = self.outbox.cut_off()
        self._take_back("finished", finished)
        self._take_back("requeued", requeued)
        self.in_flight.clear()
        self.outbox.clear()
        self.granted = 0


def _nothing() -> None:
    """For callbacks that only flush."""
