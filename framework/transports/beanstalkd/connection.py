"""One handler on one beanstalkd: as many seats in reserve as are granted, and one more connection that asks what they got.

RESERVED shows a job's id and body only. How often it was reserved, which priority a release must give back, when it was put and
how long its lease is are in ``stats-job``, so every job is asked for: all that arrive in one turn of the hub in one send, at a
desk of their own. So the count is exact, before a handler runs, also for a job that killed its workers.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

import gevent
from gevent.hub import get_hub

from framework.errors import AlreadySettled, BrokerError, BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import Line, dial
from framework.transports.beanstalkd.pipe import Pipe
from framework.transports.beanstalkd.seat import GRACE, Seat
from framework.transports.contract import Limits, Receiver

log = logging.getLogger(__name__)

CLOSE_FLUSH = 1.0
MAX_DEFER = float(wire.MAX_NUMBER)
SPAN = 1.0
"""Seconds without traffic after which seats that wait are too many: a seat less now is a connection to dial later."""
FEWEST = 32
"""Seats that are worth having for handlers that are through at once, whatever their concurrency."""
SPARE = 30.0
"""Seconds after which a seat that was not needed is closed."""
_PULSE = 5.0
_DIALS = 16  # at once
_REDIAL = 0.5  # seconds before a seat that broke is replaced
_ASK = wire.LIST_TUBE_USED  # the cheapest question that has an answer


def connect(
    node: str, topic: str, channel: str, tube: str, receiver: Receiver, *, ttr: float, seats: int
) -> BeanstalkdConnection:
    """Dial the desk and the first seat; blocks. ``ttr``: the lease that is likely, until a job shows what it is.

    Raises BrokerUnreachable, BrokerError, ProtocolError."""
    with dial(node) as desk:
        instance = wire.stats(desk.ask(wire.STATS, "OK").data).get("id", "")
        with dial(node) as seat:
            seat.subscribe(tube)
            limits = Limits(lease=ttr, max_lease=math.inf, max_grant=min(seats, max(receiver.depth, FEWEST)), span=SPAN)
            if receiver.depth > seats:
                log.warning(
                    "%s/%s: its handlers could work on %d jobs at once, but get no more than %d of beanstalkd %s; give seats=%d "
                    "in the broker URL", topic, channel, receiver.depth, seats, node, receiver.depth,
                )  # fmt: skip
            connection = BeanstalkdConnection(desk, topic, channel, receiver, tube=tube, limits=limits, instance=instance[:8])
            connection.add(seat)
            return connection


class BeanstalkdConnection:
    """``contract.Connection`` on beanstalkd. Made by ``connect``, on the hub that it will live on."""

    def __init__(
        self, desk: Line, topic: str, channel: str, receiver: Receiver, *, tube: str, limits: Limits, instance: str
    ) -> None:
        self.node = desk.node
        self.topic = topic
        self.channel = channel
        self.limits = limits
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._tube = tube
        self._receiver = receiver
        self._tally = receiver.tally
        self._suffix = f"@{instance}".encode()  # ids begin again when a server loses its log
        self._loop = get_hub().loop
        self._desk = Pipe(desk, self._answers, self._end)
        self._seats: dict[Seat, None] = {}
        self._holders: dict[Message, Seat] = {}
        self._spare: list[Seat] = []
        """Seats that do not reserve."""
        self._parked: dict[Seat, None] = {}
        """Seats in reserve."""
        self._asking: list[Seat] = []
        """Seats whose new jobs are asked for in the next send."""
        self._asked: deque[Seat | None] = deque()
        """Those whose answers are awaited, in order; None: the pulse's."""
        self._expected = 0
        """How many of them are seats."""
        self._settled: list[Seat] = []
        self._dialling: set[Any] = set()
        self._desk_since = monotonic()
        self._turn_due = False
        self._draining = self._drained = self._closing = self._closed = False
        self._pulse = self._loop.timer(_PULSE, _PULSE)
        self._pulse.start(self._guarded, self._check_pulse)
        self._deadline = self._loop.timer(CLOSE_FLUSH)

    def add(self, line: Line) -> None:
        """A seat more, on a line that watches the tube."""
        seat = Seat(line, self)
        self._seats[seat] = None
        self._spare.append(seat)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """The hub would print an exception, and the connection stand still."""
        try:
            if not self._closed:
                work(*arguments)
        except Exception as error:
            self._end(error)

    # --- what the engine says ----------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not (self._draining or self._closed):
            self.granted = n
            self._schedule()

    def finish(self, message: Message) -> None:
        seat = self._unseat(message, "delete")
        seat.settling = b"delete %d\r\n" % seat.job

    def requeue(self, message: Message, delay: float) -> None:
        """In whole seconds, rounded up, and 1 at least: at once, a job would come back ahead of all others, and beanstalkd
        logs only releases that have a delay. Only what is given back at the end goes without one."""
        seat = self._unseat(message, "release")
        least = 0 if self._draining else 1
        seat.settling = wire.release(seat.job, seat.priority, max(math.ceil(min(delay, MAX_DEFER)), least))

    def bury(self, message: Message) -> None:
        """Set it aside in its tube, for a human to kick: it is done as far as this app is concerned. Raises AlreadySettled."""
        seat = self._unseat(message, "bury")
        seat.settling = wire.bury(seat.job, seat.priority)

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        self.in_flight[message] = monotonic()
        self._holders[message].touch(message)

    def drain(self) -> None:
        if not (self._draining or self._closed):
            self._draining = True
            self.granted = 0
            self._deadline.start(self._guarded, self._stop_waiting)
            self._schedule()

    def unsent(self) -> int:
        """What was sent and not answered counts too: an answer may still say that a lease was lost."""
        return len(self._settled) + sum(seat.pipe.unsent + seat.unanswered for seat in self._seats)

    def close(self) -> None:
        if not (self._closing or self._closed):
            self._closing = self._draining = True
            self.granted = 0
            self._deadline.stop()
            self._deadline.start(self._guarded, self._end, None)
            self._schedule()

    def _unseat(self, message: Message, verb: str) -> Seat:
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        seat = self._holders.pop(message)
        seat.verb = verb
        self._settled.append(seat)
        if not self._turn_due:
            self._schedule()
        return seat

    # --- one turn ----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not (self._turn_due or self._closed):
            self._turn_due = True
            self._loop.run_callback(self._guarded, self._turn)

    def _turn(self) -> None:
        if self._settled:
            self._receiver.settled(self)
        self._flush()

    def _flush(self) -> None:
        """Send how jobs ended, with the next reserve where the grant has room; ask for the jobs that came; fill the grant."""
        self._turn_due = False
        if self._settled:
            self._tell()
        if self._asking:
            self._ask()
        self._follow_grant()
        if self._draining:
            self._check_end()

    def _tell(self) -> None:
        room = self.granted - self._taken
        for seat in self._settled:
            if seat.verb == "release":
                self._tally.requeued += 1
            else:
                self._tally.finished += 1
            seat.settle(room > 0)
            if room > 0:
                self._parked[seat] = None
                room -= 1
            else:
                self._spare.append(seat)
        self._settled.clear()

    @property
    def _taken(self) -> int:
        """How many jobs may be in flight, those on their way included."""
        return len(self._parked) + len(self.in_flight) + len(self._asking) + self._expected

    def _follow_grant(self) -> None:
        room = self.granted - self._taken - len(self._dialling)
        while room > 0 and self._spare:
            seat = self._spare.pop()
            seat.reserve()
            self._parked[seat] = None
            room -= 1
        for _ in range(min(room, _DIALS - len(self._dialling))):
            self._dial()
        while room < 0 and self._parked:
            seat, _ = self._parked.popitem()
            seat.retire()
            room += 1

    def _check_end(self) -> None:
        if not (self._parked or self._asking or self._asked or self._dialling or self._retiring) and not self._drained:
            self._drained = True
            self._receiver.drained(self)
        if self._closing and not self._closed and not self.unsent():
            self._end(None)

    def _stop_waiting(self) -> None:
        """A seat that said that it goes, and was not let go: the server is away, or it would have answered."""
        for seat in [seat for seat in self._seats if seat.retired]:
            seat.pipe.close()
            self.gone(seat, BrokerUnreachable(f"beanstalkd {self.node} did not close a connection"))

    @property
    def _retiring(self) -> bool:
        return any(seat.retired for seat in self._seats)

    # --- jobs arrive -------------------------------------------------------------------------------------

    def reserved(self, seat: Seat) -> None:
        del self._parked[seat]
        self._asking.append(seat)
        self._schedule()

    def came_back(self, seat: Seat) -> None:
        del self._parked[seat]
        self._spare.append(seat)
        self._schedule()

    def _ask(self) -> None:
        now = monotonic()
        if not self._asked:
            self._desk_since = now
        for seat in self._asking:
            seat.since = now
        self._asked.extend(self._asking)
        self._expected += len(self._asking)
        self._desk.send(b"".join([b"stats-job %d\r\n" % seat.job for seat in self._asking]))
        self._asking.clear()

    def _answers(self, replies: list[wire.Reply]) -> None:
        self._desk_since = monotonic()
        wall = time_ns()
        batch: list[Message] = []
        shortest = math.inf
        for reply in replies:
            if not self._asked:
                raise ProtocolError(f"beanstalkd {self.node} sent {reply.word}, which nothing asked for")
            seat = self._asked.popleft()
            if seat is None:
                continue
            self._expected -= 1
            if not seat.pipe.open:
                continue  # the job is ready again
            if reply.word == "OK":
                state = wire.job_state(reply.data)
                shortest = min(shortest, state.ttr)
                batch.append(self._message(seat, state, wall))
            elif reply.word == "NOT_FOUND":  # its lease ran out, and somebody deleted it
                self._spare.append(seat)
            else:
                raise BrokerError(reply.word, f"from beanstalkd {self.node} to stats-job")
        if batch and not self._closing:
            self._deliver(batch, shortest)
        self._flush()

    def _message(self, seat: Seat, state: wire.JobState, now: int) -> Message:
        born = now - state.age * 1_000_000_000
        message = Message(b"%d%b" % (seat.job, self._suffix), born, state.reserves, seat.body, self)
        seat.message, seat.body, seat.priority = message, b"", state.priority
        self._holders[message] = seat
        return message

    def _deliver(self, batch: list[Message], ttr: float) -> None:
        lease = self.limits.lease
        if ttr != lease and (ttr < lease or not self.in_flight):
            self.limits = Limits(ttr, self.limits.max_lease, self.limits.max_grant, SPAN)
        for message in batch:
            self.in_flight[message] = self._holders[message].since
        self._tally.received += len(batch)
        self._turn_due = True  # the flush after this: what is settled until then schedules none
        self._receiver.deliver(self, batch)

    # --- what the server says of a settlement --------------------------------------------------------------

    def refused(self, seat: Seat, verb: str, message: Message) -> None:
        if verb == "touch":
            if self.in_flight.pop(message, None) is None:
                return  # settled meanwhile; that is refused as well
            del self._holders[message]
            seat.message = None
            self._spare.append(seat)
            self._schedule()
        elif verb == "release":
            self._tally.requeued -= 1
        else:
            self._tally.finished -= 1
        self._tally.lease_lost += 1
        self._receiver.lost(self, message, f"beanstalkd answered {verb} {_job(message)} with NOT_FOUND")

    def buried(self, seat: Seat, message: Message) -> None:
        log.error(
            "beanstalkd %s has no memory left to release job %s: it is buried in tube %s; kick it there", self.node,
            _job(message), self._tube,
        )  # fmt: skip

    # --- seats come and go ---------------------------------------------------------------------------------

    def _dial(self, pause: float = 0.0) -> None:
        self._dialling.add(gevent.spawn(self._dial_one, pause))

    def _dial_one(self, pause: float) -> None:
        try:
            gevent.sleep(pause)
            with dial(self.node) as line:
                line.subscribe(self._tube)
                self._dialling.discard(gevent.getcurrent())
                if not (self._draining or self._closed):
                    self.add(line)
        except FrameworkError as error:
            self._dialling.discard(gevent.getcurrent())
            self._loop.run_callback(self._guarded, self._end, error)
        self._schedule()

    def gone(self, seat: Seat, error: Exception) -> None:
        del self._seats[seat]
        self._parked.pop(seat, None)
        if seat in self._spare:
            self._spare.remove(seat)
        if seat in self._asking:
            self._asking.remove(seat)
        self._take_back(seat)
        if seat in self._settled:
            self._settled.remove(seat)
            self._tally.lease_lost += 1
        elif (message := seat.message) is not None and self.in_flight.pop(message, None) is not None:
            del self._holders[message]
            self._tally.lease_lost += 1
            self._receiver.lost(self, message, str(error))
        if isinstance(error, BrokerUnreachable):
            if not (seat.retired or self._draining):
                self._dial(_REDIAL)
            self._schedule()
        else:
            self._loop.run_callback(self._guarded, self._end, error)

    def _take_back(self, seat: Seat) -> None:
        """What was counted as sent, and the socket did not take whole."""
        if verb := seat.cut_short:
            if verb == "release":
                self._tally.requeued -= 1
            else:
                self._tally.finished -= 1
            self._tally.lease_lost += 1

    def _check_pulse(self) -> None:
        now = monotonic()
        for seat in list(self._seats):
            if seat.overdue(now):
                seat.pipe.poll()
                if seat.pipe.open and seat.overdue(now):
                    seat.pipe.close()
                    self.gone(seat, BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {GRACE:g} s"))
        if self._asked and now - self._desk_since > GRACE:
            self._desk.poll()
            if self._asked and now - self._desk_since > GRACE:
                self._end(BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {GRACE:g} s: the connection is dead"))
                return
        if not self._asked:
            self._asked.append(None)
            self._desk_since = now
            self._desk.send(_ASK)
        self._close_spares(now)

    def _close_spares(self, now: float) -> None:
        for seat in [seat for seat in self._spare if now - seat.since > SPARE and not seat.unanswered][:-1]:
            self._spare.remove(seat)
            seat.retire()

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        for watcher in (self._pulse, self._deadline):
            watcher.stop()
            watcher.close()
        gevent.killall(list(self._dialling), block=False)
        self._tally.lease_lost += len(self.in_flight) + len(self._settled)
        self.in_flight.clear()
        self._desk.close()
        for seat in self._seats:
            self._take_back(seat)
            seat.pipe.close()
        for pool in (self._holders, self._seats, self._spare, self._parked, self._asking, self._asked, self._settled):
            pool.clear()
        self.granted = 0
        self._receiver.closed(self, error)


def _job(message: Message) -> str:
    return message.id.decode().partition("@")[0]


def _settled(message: Message) -> AlreadySettled:
    return AlreadySettled(f"message {message.id.decode()} was finished or requeued before, or its lease was lost")
