"""One handler on one beanstalkd: a desk that takes many jobs at once, and a bell that waits while the tube is empty.

RESERVED shows a job's id and body only. How often it was reserved, which priority a release must give back, when it was put and
how long its lease is must be asked for, at half the price of the job itself. So of the jobs that one poll got, the first is asked
for, before any is delivered. If that was never reserved before, and never delayed, neither were those behind it with higher ids:
the server hands out the lowest id first, so whoever had one of them before would have had the first one before that. (Between two
answers of one poll another worker may take one of them and die; the count of that one is then one too low, once.) Otherwise all
are asked for; and so is every job that is still in flight when its handlers have had their turn, and what a bell got.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

import gevent
from gevent.hub import get_hub

from framework.errors import AlreadySettled, BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.bell import Bell
from framework.transports.beanstalkd.desk import Desk, Poll
from framework.transports.beanstalkd.dial import Line, dial
from framework.transports.beanstalkd.hold import GRACE, Hold, whole_seconds
from framework.transports.contract import Limits, Receiver

log = logging.getLogger(__name__)

CLOSE_FLUSH = 1.0
MAX_DEFER = float(wire.MAX_NUMBER)
MAX_GRANT = 1000
"""Jobs that one desk may hold: the server looks through all of them when the oldest is settled."""
MOST_BELLS = 64
"""Connections that may each keep a job of a slow handler. With more of those, the tube is looked at every ``_KNOCK`` seconds."""
_KNOCK = 0.1
SPARE = 30.0
"""Seconds after which a bell that was not needed is closed."""
_PULSE = 5.0
_REDIAL = 0.5  # seconds before a bell that broke is replaced
_SLICE = 32  # jobs delivered at once: the server works on how they ended, and on the next, while handlers work on the others
_FIRST_REACH, _REACH = 8, 512  # reserves in one poll: few where the tube may be empty soon


def connect(node: str, topic: str, channel: str, tube: str, receiver: Receiver, *, ttr: float) -> BeanstalkdConnection:
    """Dial the desk and the first bell; blocks. ``ttr``: the lease that is likely, until a job shows what it is.

    Raises BrokerUnreachable, BrokerError, ProtocolError."""
    with dial(node) as desk, dial(node) as bell:
        desk.subscribe(tube)
        bell.subscribe(tube)
        instance = wire.stats(desk.ask(wire.STATS, "OK").data).get("id", "")
        connection = BeanstalkdConnection(desk, topic, channel, receiver, tube=tube, ttr=ttr, instance=instance)
        connection.add(bell)
        return connection


class BeanstalkdConnection:
    """``contract.Connection`` on beanstalkd. Made by ``connect``, on the hub that it will live on."""

    def __init__(self, desk: Line, topic: str, channel: str, receiver: Receiver, *, tube: str, ttr: float, instance: str) -> None:
        self.node = desk.node
        self.topic = topic
        self.channel = channel
        self.limits = Limits(lease=ttr, max_lease=math.inf, max_grant=MAX_GRANT)
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._tube = tube
        self._receiver = receiver
        self._tally = receiver.tally
        self._suffix = f"@{instance[:8]}".encode()  # ids begin again when a server loses its log
        self._loop = get_hub().loop
        self._desk = Desk(desk, self)
        self._holds: dict[Message, Hold] = {}
        self._asking: list[Hold] = []
        """Jobs to ask for in the next send."""
        self._arrived: list[Hold] = []
        """Jobs to deliver at the end of this read."""
        self._undelivered = 0
        """Jobs that are ours, and of which something is to be known before they are delivered."""
        self._settled: list[Hold] = []
        self._late: dict[Hold, None] = {}
        """Jobs to release as soon as their priority is known."""
        self._bells: dict[Bell, None] = {}
        self._spare: list[Bell] = []
        self._waiting: Bell | None = None
        """The bell in reserve."""
        self._dialling: Any = None
        self._dry = True
        """The last poll got less than it asked for; only a bell tells when there is more."""
        self._reach = _FIRST_REACH
        self._turn_due = False
        self._draining = self._drained = self._closing = self._closed = False
        self._pulse = self._loop.timer(_PULSE, _PULSE)
        self._pulse.start(self._guarded, self._check_pulse)
        self._deadline = self._loop.timer(CLOSE_FLUSH)
        self._knock = self._loop.timer(_KNOCK)

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
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        hold = self._holds.pop(message)
        hold.verb = "delete"
        self._settled.append(hold)
        if not self._turn_due:
            self._schedule()

    def requeue(self, message: Message, delay: float) -> None:
        """In whole seconds, rounded up, and 1 at least: at once, a job would come back ahead of all others, and beanstalkd
        logs only releases that have a delay. Only what is given back at the end goes without one."""
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        hold = self._holds.pop(message)
        hold.verb, hold.delay = "release", whole_seconds(delay, 0 if self._draining else 1)
        self._settle_when_known(hold)

    def bury(self, message: Message) -> None:
        """Set it aside in its tube, to be kicked by a human: as far as this app is concerned it is finished.

        Raises AlreadySettled."""
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        hold = self._holds.pop(message)
        hold.verb = "bury"
        self._settle_when_known(hold)

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise _settled(message)
        self.in_flight[message] = monotonic()
        hold = self._holds[message]
        hold.keeper.touch(hold)
        self._schedule()

    def drain(self) -> None:
        if not (self._draining or self._closed):
            self._draining = True
            self.granted = 0
            self._deadline.start(self._guarded, self._stop_waiting)
            self._schedule()

    def unsent(self) -> int:
        """What was sent and not answered counts too: an answer may still say that a lease was lost."""
        bells = sum(bell.unanswered + bell.pipe.unsent for bell in self._bells)
        return len(self._settled) + len(self._late) + self._desk.unanswered + self._desk.pipe.unsent + bells

    def close(self) -> None:
        if not (self._closing or self._closed):
            self._closing = self._draining = True
            self.granted = 0
            self._deadline.stop()
            self._deadline.start(self._guarded, self._end, None)
            self._schedule()

    def _settle_when_known(self, hold: Hold) -> None:
        if hold.priority >= 0:
            self._settled.append(hold)
        else:
            self._late[hold] = None
            if not hold.asked:
                self._asking.append(hold)
        self._schedule()

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
        """Say how jobs ended, ask for those that came, and for more where the grant has room; all in one send."""
        self._turn_due = False
        if self._settled:
            self._tell()
        if self._asking:
            self._desk.ask([hold for hold in self._asking if not hold.asked])
            self._asking.clear()
        self._follow_grant()
        self._desk.flush()
        if self._draining:
            self._check_end()

    def _tell(self) -> None:
        room = self._room
        done = [hold for hold in self._settled if hold.keeper is self._desk and hold.verb == "delete"]
        if done:
            self._desk.finish(done)
        for hold in self._settled if len(done) < len(self._settled) else ():
            if isinstance(hold.keeper, Bell):
                self._tell_bell(hold.keeper, hold, again=room > 0 and self._waiting is None)
            elif hold.verb != "delete":
                self._desk.settle(hold)
        released = sum(hold.verb == "release" for hold in self._settled) if len(done) < len(self._settled) else 0
        self._tally.requeued += released
        self._tally.finished += len(self._settled) - released
        self._settled.clear()

    def _tell_bell(self, bell: Bell, hold: Hold, *, again: bool) -> None:
        bell.settle(hold, again)
        if again:
            self._waiting = bell
        else:
            self._spare.append(bell)

    @property
    def _room(self) -> int:
        """How many more jobs may be asked for."""
        waiting = self._waiting is not None or self._dialling is not None
        return self.granted - len(self.in_flight) - self._undelivered - self._desk.polling - waiting

    def _follow_grant(self) -> None:
        room = self._room
        if room < 0 and self._waiting is not None:
            self._waiting.retire()
            self._waiting = None
        if room > 0 and self._waiting is None and self._dialling is None:
            room -= self._wait()
        if room > 0 and not self._dry:
            self._desk.poll(min(room, self._reach))

    def _wait(self) -> bool:
        """Have a bell wait for a job, if there may be one more."""
        if self._spare:
            self._waiting = self._spare.pop()
            self._waiting.reserve()
        elif len(self._bells) < MOST_BELLS:
            self._dial()
        else:
            if not self._knock.active:
                self._knock.start(self._guarded, self._look)
            return False
        return True

    def _look(self) -> None:
        self._dry = False
        self._flush()

    def _check_end(self) -> None:
        away = self._desk.polling or self._undelivered or self._waiting or self._dialling
        if not (away or self._drained or any(bell.retired for bell in self._bells)):
            self._drained = True
            self._receiver.drained(self)
        if self._closing and not self._closed and not self.unsent():
            self._end(None)

    def _stop_waiting(self) -> None:
        """A bell that said that it goes, and was not let go: the server is away, or it would have answered."""
        for bell in [bell for bell in self._bells if bell.retired]:
            bell.pipe.close()
            self.gone(bell, BrokerUnreachable(f"beanstalkd {self.node} did not close a connection"))

    # --- jobs arrive -------------------------------------------------------------------------------------

    def reserved(self, poll: Poll, hold: Hold) -> None:
        self._undelivered += 1
        if poll.left == 0:
            self._reach = min(self._reach * 4, _REACH)
        if not poll.top:
            poll.top = hold.job
            hold.poll = poll
            self._asking.append(hold)
        elif poll.fresh is None:
            poll.waiting.append(hold)
        else:
            self._judge(poll, hold)

    def dry(self) -> None:
        self._dry = True
        self._reach = _FIRST_REACH

    def rang(self, bell: Bell, hold: Hold) -> None:
        self._waiting = None
        self._dry = False
        self._undelivered += 1
        self._asking.append(hold)
        self._schedule()

    def silent(self, bell: Bell) -> None:
        self._waiting = None
        self._spare.append(bell)
        self._schedule()

    def _judge(self, poll: Poll, hold: Hold) -> None:
        """``hold`` came behind the first of ``poll``, of which everything is known."""
        if poll.fresh and hold.job > poll.top:
            self._arrive(hold, 1, poll.born)
        else:
            self._asking.append(hold)

    def known(self, hold: Hold, state: wire.JobState | None) -> None:
        if hold.verb == "lost":
            self._undelivered -= 1
            return
        born = 0
        if state is not None:
            born = time_ns() - state.age * 1_000_000_000
            hold.priority = state.priority
            self._learn(state.ttr)
        if hold.message is None:
            self._meet(hold, state, born)
        elif state is not None:
            hold.message.attempts, hold.message.timestamp = state.reserves, born
        if hold in self._late:
            self._release_late(hold, known=state is not None)

    def _meet(self, hold: Hold, state: wire.JobState | None, born: int) -> None:
        """``hold`` can be delivered now, and perhaps what came behind it."""
        if state is not None:
            self._arrive(hold, state.reserves, born)
        else:  # its time ran out, and somebody deleted it
            self._undelivered -= 1
            self._free(hold)
        poll = hold.poll
        if isinstance(poll, Poll):
            poll.born = born
            poll.fresh = state is not None and state.reserves == 1 and state.delay == 0
            for other in poll.waiting:
                self._judge(poll, other)
            poll.waiting.clear()

    def _release_late(self, hold: Hold, *, known: bool) -> None:
        del self._late[hold]
        if known:
            self._settled.append(hold)
        elif hold.message is not None:
            self._free(hold)
            self._lose(hold.message, f"beanstalkd does not know job {hold.job} any more")

    def _arrive(self, hold: Hold, attempts: int, born: int) -> None:
        self._undelivered -= 1
        hold.message = Message(b"%d%b" % (hold.job, self._suffix), born, attempts, hold.body, self)
        hold.body = b""
        self._arrived.append(hold)

    def _learn(self, ttr: int) -> None:
        """Leases of one connection count as equal: as the shortest of those in flight."""
        if ttr < self.limits.lease or (ttr != self.limits.lease and not self.in_flight and not self._arrived):
            self.limits = Limits(float(ttr), math.inf, MAX_GRANT)

    def read(self) -> None:
        while self._arrived and not self._closing:
            holds, self._arrived = self._arrived[:_SLICE], self._arrived[_SLICE:]
            self._deliver(holds)
            self._flush()
        self._flush()

    def _deliver(self, holds: list[Hold]) -> None:
        batch: list[Message] = []
        for hold in holds:
            message = hold.message
            assert message is not None
            self._holds[message] = hold
            self.in_flight[message] = hold.at
            batch.append(message)
        self._tally.received += len(batch)
        self._turn_due = True  # the flush after this: what is settled until then schedules none
        self._receiver.deliver(self, batch)
        if self.in_flight:
            self._asking += [hold for hold in holds if not hold.asked and hold.message in self.in_flight]

    # --- what the server says of a settlement --------------------------------------------------------------

    def refused(self, verb: str, message: Message) -> None:
        if verb == "touch":
            if self.in_flight.pop(message, None) is None:
                return  # settled meanwhile; that is refused as well
            self._free(self._holds.pop(message))
        elif verb == "release":
            self._tally.requeued -= 1
        else:
            self._tally.finished -= 1
        self._lose(message, f"beanstalkd answered {verb} {_job(message)} with NOT_FOUND")

    def buried(self, message: Message) -> None:
        log.error(
            "beanstalkd %s had no memory to release job %s: it is buried in tube %s, kick it there",
            self.node, _job(message), self._tube,
        )  # fmt: skip

    def _lose(self, message: Message, words: str) -> None:
        self._tally.lease_lost += 1
        self._receiver.lost(self, message, words)

    def _free(self, hold: Hold) -> None:
        """The job is nobody's here any more: if a bell kept it, that can wait again."""
        if isinstance(hold.keeper, Bell) and hold.keeper.hold is hold:
            hold.keeper.hold = None
            self._spare.append(hold.keeper)
            self._schedule()

    # --- bells come and go ---------------------------------------------------------------------------------

    def add(self, line: Line) -> None:
        """A bell more, on a line that watches the tube."""
        bell = Bell(line, self)
        self._bells[bell] = None
        self._spare.append(bell)

    def _dial(self, pause: float = 0.0) -> None:
        self._dialling = gevent.spawn(self._dial_one, pause)

    def _dial_one(self, pause: float) -> None:
        error: FrameworkError | None = None
        try:
            gevent.sleep(pause)
            with dial(self.node) as line:
                line.subscribe(self._tube)
                if not (self._draining or self._closed):
                    self.add(line)
        except FrameworkError as failure:
            error = failure
        self._dialling = None
        if error is not None:
            self._loop.run_callback(self._guarded, self._end, error)
        self._schedule()

    def gone(self, bell: Bell, error: Exception) -> None:
        del self._bells[bell]
        if self._waiting is bell:
            self._waiting = None
        if bell in self._spare:
            self._spare.remove(bell)
        self._take_back(bell.pipe.cut())
        if bell.hold is not None:
            self._lose_hold(bell.hold, error)
        if not isinstance(error, BrokerUnreachable):
            self._loop.run_callback(self._guarded, self._end, error)
        elif not (bell.retired or self._draining or self._dialling):
            self._dial(_REDIAL)
        self._schedule()

    def _lose_hold(self, hold: Hold, error: Exception) -> None:
        message = hold.message
        if message is None:
            hold.verb = "lost"
        elif self.in_flight.pop(message, None) is not None:
            del self._holds[message]
            self._lose(message, str(error))
        elif hold in self._settled:
            self._settled.remove(hold)
            self._tally.lease_lost += 1
        elif self._late.pop(hold, self) is None:
            self._tally.lease_lost += 1

    def desk_gone(self, error: Exception) -> None:
        self._end(error)

    def _take_back(self, cut: list[bytes]) -> None:
        """What was counted when it was handed over, and the socket did not take whole."""
        released = sum(line.startswith(b"release ") for line in cut)
        finished = sum(line.startswith((b"delete ", b"bury ")) for line in cut)
        self._tally.requeued -= released
        self._tally.finished -= finished
        self._tally.lease_lost += released + finished

    def _check_pulse(self) -> None:
        now = monotonic()
        for bell in [bell for bell in self._bells if bell.overdue(now)]:
            bell.pipe.poll()
            if bell.pipe.open and bell.overdue(now):
                bell.pipe.close()
                self.gone(bell, BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {GRACE:g} s"))
        if self._desk.overdue(now):
            self._desk.pipe.poll()
        if self._desk.overdue(now):
            self._end(BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {GRACE:g} s: the connection is dead"))
            return
        self._desk.ping()
        for bell in self._bells:
            bell.ping()
        for bell in [bell for bell in self._spare if now - bell.since > SPARE and not bell.unanswered][:-1]:
            self._spare.remove(bell)
            bell.retire()
        self._flush()

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        for timer in (self._pulse, self._deadline, self._knock):
            timer.stop()
            timer.close()
        if self._dialling is not None:
            self._dialling.kill(block=False)
        self._tally.lease_lost += len(self.in_flight) + len(self._settled) + len(self._late)
        for pipe in (self._desk.pipe, *(bell.pipe for bell in self._bells)):
            self._take_back(pipe.cut())
            pipe.close()
        for pool in (
            self.in_flight,
            self._holds,
            self._settled,
            self._late,
            self._asking,
            self._arrived,
            self._bells,
            self._spare,
        ):
            pool.clear()
        self._waiting = None
        self.granted = 0
        self._receiver.closed(self, error)


def _job(message: Message) -> str:
    return message.id.decode().partition("@")[0]


def _settled(message: Message) -> AlreadySettled:
    return AlreadySettled(f"message {message.id.decode()} was finished or requeued before, or its lease was lost")
