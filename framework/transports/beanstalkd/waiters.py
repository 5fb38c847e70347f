"""The connections that wait for a job while a tube has none, and keep the job that they got until it is settled.

A blocking reserve stops everything behind it on its connection, so a waiter that holds a job does not reserve: the job can be
touched, and DEADLINE_SOON cannot come. One waiter of the pool waits while there may be one more job; the others keep the jobs
that they got, or are spare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.observe import hublog
from framework.transports.beanstalkd import reserved_job, wire
from framework.transports.beanstalkd.dial import Line, dial
from framework.transports.beanstalkd.hub_socket import HubSocket
from framework.transports.beanstalkd.rescue import Touch
from framework.transports.beanstalkd.reserved_job import ReservedJob

log = hublog.get(__name__)

WAIT = 30
"""Seconds after which a reserve without a job is answered with TIMED_OUT and sent again: so a dead peer is noticed."""
RESERVE = wire.reserve_with_timeout(WAIT)
_RESERVE = object()
"""What is awaited of a waiter: this, the answer to its reserve; that of a verb with its message; or None, for no change."""
MOST = 64
"""Connections that may each keep a job of a slow handler. With more of those, the tube is looked at every ``KNOCK`` seconds."""
KNOCK = 0.1
SPARE = 30.0
"""Seconds after which a waiter that was not needed is closed."""
_REDIAL, _REDIAL_CAP = 0.5, 15.0
"""Seconds before a waiter that broke, or could not be had, is replaced; and what they grow to while none can be had."""


class Owner(reserved_job.Owner, Protocol):
    """What the waiters tell. All of it is called on the hub."""

    def got(self, job: ReservedJob) -> None:
        """One got a job."""

    def look(self) -> None:
        """No waiter can wait, and there may be jobs: poll for them."""

    def changed(self) -> None:
        """There may be a waiter more or less: ask for one that waits, if need be."""

    def broke(self, job: ReservedJob | None, cut: list[bytes], error: Exception) -> None:
        """A waiter has ended, with its job, and with ``cut``, the commands that it could not hand over whole."""

    def failed(self, error: Exception) -> None:
        """The server makes no sense: no waiter can be had."""


class Waiter:
    """Waits for one job, and keeps it. Made from a Line that watches its tube."""

    def __init__(self, line: Line, pool: WaiterPool) -> None:
        self.job: ReservedJob | None = None
        """The job that it keeps, until it is settled or lost."""
        self.reserving = False
        self.retired = False
        """It said that it would send no more, and waits for the end of the stream."""
        self.since = monotonic()
        """When it was last told something."""
        self._pool = pool
        self.hub_socket = HubSocket(line, self._take, self._ended)

    def reserve(self) -> None:
        self.reserving = True
        self._send(RESERVE, [_RESERVE])

    def settle(self, job: ReservedJob, again: bool) -> None:
        """Say how its job ended, and in the same send, with ``again``, reserve the next."""
        assert job.message is not None
        self.job = None
        self.reserving = again
        asked = (job.verb, job.message)
        if again:
            self._send(job.command() + RESERVE, [asked, _RESERVE])
        else:
            self._send(job.command(), [asked])

    def touch(self, job: ReservedJob) -> None:
        assert job.message is not None
        self._send(wire.touch(job.number), [("touch", job.message)])

    def ping(self) -> None:
        """Say something while it keeps a job of which nothing is said any more. beanstalkd may lose the timer of a connection
        (#262, #380; on 1.12 two times in five), and then lets its jobs run out only when it hears from it again."""
        if self.job is not None and not self.hub_socket.awaited:
            self._send(wire.LIST_TUBE_USED, [None])

    def rescue(self, touches: Sequence[Touch]) -> None:
        """Keep its job, or the one that it is given just now; from another thread. Nothing may be said behind a reserve."""
        if not self.retired:
            self.hub_socket.rescue(lambda: () if self.reserving else touches)

    def retire(self) -> None:
        """End it without losing a job: the server answers a waiting reserve at once, and then closes."""
        self.retired = True
        self.since = monotonic()
        self.hub_socket.shut()

    @property
    def unanswered(self) -> int:
        """How many commands, reserves not counted, wait for their answers."""
        return len(self.hub_socket.awaited) - self.reserving

    def overdue(self, now: float) -> bool:
        """An answer of the server is overdue. (It may be unread: the hub may have been blocked.)"""
        if not (self.retired or self.hub_socket.awaited):
            return False
        waits = WAIT if self.reserving and not (self.unanswered or self.retired) else 0.0
        return now - self.since > waits + reserved_job.GRACE

    def _send(self, commands: bytes, asked: Sequence[object]) -> None:
        self.since = monotonic()
        self.hub_socket.send(commands, asked)

    def _take(self, replies: list[wire.Reply]) -> None:
        for reply in replies:
            if not self.hub_socket.awaited:
                raise ProtocolError(f"beanstalkd {self.hub_socket.node} sent {reply.word}, which nothing asked for")
            asked = self.hub_socket.awaited.popleft()
            if asked is _RESERVE:
                self.reserving = False
                if not self.retired:  # of one that has said that it goes, the job is ready again when the connection ends
                    self._reserved(reply)
            elif isinstance(asked, tuple):
                reserved_job.check(self._pool, reply, *asked)

    def _reserved(self, reply: wire.Reply) -> None:
        if reply.word == "RESERVED":
            self.job = ReservedJob(reply.number, reply.data, self, self.hub_socket.came)
            self._pool.got(self, self.job)
        elif reply.word in ("TIMED_OUT", "DEADLINE_SOON"):
            self._pool.silent(self)
        else:
            raise reserved_job.strange(reply, "reserve")

    def _ended(self, error: Exception) -> None:
        self._pool.gone(self, error)


class WaiterPool:
    """Those of the handlers of ``tube`` on ``node``."""

    def __init__(self, node: str, tube: str, owner: Owner, guarded: Callable[..., None]) -> None:
        """``guarded(work)`` runs what a timer asks for, and catches what that raises."""
        self.all: dict[Waiter, None] = {}
        self.waiting: Waiter | None = None
        """The one in reserve."""
        self.dialling: Any = None
        self.open = True
        self._spare: list[Waiter] = []
        self._redial = _REDIAL
        self._dial_at = 0.0
        """When one may be dialled (monotonic seconds): after a failure, not at once."""
        self._node = node
        self._tube = tube
        self._owner = owner
        self._guarded = guarded
        self._knock = Countdown(get_hub().loop, KNOCK)

    def add(self, line: Line) -> None:
        """One more, on a line that watches the tube."""
        waiter = Waiter(line, self)
        self.all[waiter] = None
        self._spare.append(waiter)

    # --- waiting -------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Have one wait for a job, or soon; where no more can be had, the tube is looked at now and then."""
        if self.promised:
            return
        if self._spare:
            self.waiting = self._spare.pop()
            self.waiting.reserve()
            return
        if self.dialling is None and len(self.all) < MOST and monotonic() >= self._dial_at:
            self._dial()
        if not (self.promised or self._knock.active):
            self._knock.start(self._guarded, self._owner.look)

    @property
    def promised(self) -> bool:
        """A waiter waits for a job, or will in a moment. After a failure the next one that is dialled does not count."""
        return self.waiting is not None or (self.dialling is not None and self._redial == _REDIAL)

    def wait_no_more(self) -> None:
        """Whatever it got by now is heard before."""
        if self.waiting is not None:
            self.waiting.hub_socket.poll()
        if self.waiting is not None:
            self.waiting.retire()
            self.waiting = None

    def settle(self, waiter: Waiter, job: ReservedJob, *, again: bool) -> bool:
        """Say how the job of ``waiter`` ended, and if none waits have it wait ``again``; returns whether it does."""
        again = again and self.waiting is None
        waiter.settle(job, again)
        if again:
            self.waiting = waiter
        else:
            self._spare.append(waiter)
        return again

    def free(self, job: ReservedJob) -> None:
        """If a waiter keeps ``job``, which is no longer ours, that one can wait again."""
        waiter = job.keeper
        if isinstance(waiter, Waiter) and waiter.job is job:
            waiter.job = None
            self._spare.append(waiter)
            self._owner.changed()

    @property
    def unsent(self) -> int:
        return sum(waiter.unanswered + waiter.hub_socket.unsent for waiter in self.all)

    @property
    def silent_for_good(self) -> bool:
        """None can get a job any more, unless it is told to wait."""
        return not (self.waiting or self.dialling or any(waiter.retired for waiter in self.all))

    # --- what a waiter tells ---------------------------------------------------------------------------------

    def got(self, waiter: Waiter, job: ReservedJob) -> None:
        self.waiting = None
        self._owner.got(job)

    def silent(self, waiter: Waiter) -> None:
        self.waiting = None
        self._spare.append(waiter)
        self._owner.changed()

    def refused(self, verb: str, message: Message) -> None:
        self._owner.refused(verb, message)

    def buried(self, message: Message) -> None:
        self._owner.buried(message)

    def stranded(self, verb: str, message: Message) -> None:
        self._owner.stranded(verb, message)

    def gone(self, waiter: Waiter, error: Exception) -> None:
        del self.all[waiter]
        if self.waiting is waiter:
            self.waiting = None
        if waiter in self._spare:
            self._spare.remove(waiter)
        self._owner.broke(waiter.job, waiter.hub_socket.cut(), error)
        if not isinstance(error, BrokerUnreachable):
            self._owner.failed(error)
        elif self.open and not (waiter.retired or self.dialling):
            self._dial(_REDIAL)
        self._owner.changed()

    # --- they come and go ----------------------------------------------------------------------------------

    def _dial(self, pause: float = 0.0) -> None:
        self.dialling = gevent.spawn(self._dial_one, pause)

    def _dial_one(self, pause: float) -> None:
        try:
            gevent.sleep(pause)
            with dial(self._node) as line:
                line.subscribe(self._tube)
                if self.open:
                    self.add(line)
                    self._redial = _REDIAL
        except BrokerUnreachable as error:
            self.postpone(error)
        except FrameworkError as error:
            self._owner.failed(error)
        self.dialling = None
        self._owner.changed()

    def postpone(self, error: BrokerUnreachable) -> None:
        """One could not be dialled: those that stand go on. Where the server is away, they find so themselves."""
        self._dial_at = monotonic() + self._redial
        if self._redial == _REDIAL:
            log.warning(
                "no connection more to beanstalkd can be had, so a tube without jobs is looked at every %g s; where open files "
                "are few, raise `ulimit -n`: %s", KNOCK, error,
            )  # fmt: skip
        self._redial = min(self._redial * 2, _REDIAL_CAP)

    def add_no_more(self) -> None:
        """Not even the one that is being dialled, which a network that is gone could hold up for seconds."""
        self.open = False
        if self.dialling is not None:
            self.dialling.kill(block=False)
            self.dialling = None

    def check(self, now: float) -> None:
        """End those whose server owes an answer for too long, and those that are not needed; ping those that keep a job."""
        for waiter in [waiter for waiter in self.all if waiter.overdue(now)]:
            waiter.hub_socket.poll()
            if waiter.hub_socket.open and waiter.overdue(now):
                self._drop(waiter, f"beanstalkd {self._node} gave no answer for {reserved_job.GRACE:g} s")
        for waiter in self.all:
            waiter.ping()
        for waiter in [waiter for waiter in self._spare if now - waiter.since > SPARE and not waiter.unanswered][:-1]:
            self._spare.remove(waiter)
            waiter.retire()

    def drop_retired(self) -> None:
        """WaiterPool that announced their end, and whose server has not closed: the server is away, or it would have answered."""
        for waiter in [waiter for waiter in self.all if waiter.retired]:
            self._drop(waiter, f"beanstalkd {self._node} did not close a connection")

    def _drop(self, waiter: Waiter, why: str) -> None:
        waiter.hub_socket.close()
        self.gone(waiter, BrokerUnreachable(why))

    def close(self) -> list[bytes]:
        """End them all; returns the commands that could not be handed over whole."""
        cut = [line for waiter in self.all for line in waiter.hub_socket.cut()]
        self._end(HubSocket.close)
        return cut

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._end(HubSocket.forget)

    def _end(self, how: Callable[[HubSocket], None]) -> None:
        self.add_no_more()
        self._knock.close()
        for waiter in self.all:
            how(waiter.hub_socket)
        self.all.clear()
        self._spare.clear()
        self.waiting = None
