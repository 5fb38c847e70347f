"""One handler on one beanstalkd: a poller that takes many jobs at once, and waiters that wait while the tube is empty."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gevent.hub import get_hub

from framework.alarm import Alarm, Countdown
from framework.errors import AlreadySettled
from framework.forked import forget_in_child
from framework.message import Message
from framework.transports.beanstalkd import notices, wire
from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.dial import Line
from framework.transports.beanstalkd.job_leases import JobLeases, limits_of
from framework.transports.beanstalkd.log_space import LogSpace
from framework.transports.beanstalkd.pacing import Pacing
from framework.transports.beanstalkd.poller import Poller
from framework.transports.beanstalkd.rescuer import Rescuer
from framework.transports.beanstalkd.reserved_job import ReservedJob, whole_seconds
from framework.transports.beanstalkd.settling import Settling
from framework.transports.beanstalkd.unasked import Unasked
from framework.transports.beanstalkd.waiters import WaiterPool
from framework.transports.contract import Limits, Receiver
from framework.transports.enveloped import opened

CLOSE_FLUSH = 1.0
MAX_DEFER = float(wire.MAX_NUMBER)
_PULSE = 5.0
"""Seconds from one look at answers and leases to the next; half a lease where that is shorter, since a job whose timer beanstalkd
has lost (see ``Waiter.ping``) is given out again at the first ping after its lease."""
_SLICE = 32  # jobs delivered at once: the server works on how they ended, and on the next, while handlers work on the others


class BeanstalkdConnection:
    """``contract.Connection`` on beanstalkd. Made by ``transport.connect``, on the hub that it will live on."""

    lasting_ids = True
    """An id names this life of the server (``attempts``); its time is made from an age in whole seconds."""

    def __init__(
        self,
        poller: Line,
        topic: str,
        channel: str,
        receiver: Receiver,
        *,
        tube: str,
        ttr: float,
        instance: str,
        opens: bool = False,
    ) -> None:
        self.node = poller.node
        self.topic = topic
        self.channel = channel
        self.limits = limits_of(ttr)
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._tube = tube
        self._opens = opens
        self._receiver = receiver
        self._tally = receiver.tally
        self._suffix = f"@{instance[:8]}".encode()  # ids begin again when a server loses its log
        self._loop = get_hub().loop
        self._leases = JobLeases(ttr, self.in_flight, self._limit)
        self._attempts = Attempts(self)
        self._poller = Poller(poller, self, self._attempts)
        self._jobs: dict[Message, ReservedJob] = {}
        self._unasked = Unasked(self.in_flight, self._ask_about, self._guarded)
        self.waiters = WaiterPool(self.node, tube, self, self._guarded)
        self._pacing = Pacing(self, self._poller, self.waiters, self._guarded)
        self._log_space = LogSpace(self.node, self._release_kept, self._guarded)
        self._settling = Settling(
            self._tally,
            poller=self._poller,
            waiters=self.waiters,
            attempts=self._attempts,
            pacing=self._pacing,
            log_space=self._log_space,
        )
        self.rescuable = Rescuer(
            self.in_flight, self._jobs, poller=self._poller, waiters=self.waiters, attempts=self._attempts,
            settling=self._settling, lease=lambda: self.limits.lease, guarded=self._guarded,
        )  # fmt: skip
        self._turn_due = False
        self._draining = self._drained = self._closing = self._closed = False
        self._pulse = Alarm(lambda: self._guarded(self._check_pulse))
        self._set_pulse()
        self._deadline = Countdown(self._loop, CLOSE_FLUSH)
        forget_in_child(self)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """The hub would print an exception, and the connection stand still."""
        try:
            if not self._closed:
                work(*arguments)
        except Exception as error:
            self._end(error)

    @property
    def exposed(self) -> int:
        """A reserve may get a job until its answer is here."""
        return max(self.granted, self.ours + self._poller.polling + self.waiters.promised)

    # --- what the engine says ----------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not self._draining:
            self.granted = n
            self._schedule()

    def finish(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        job = self._jobs.pop(message)
        job.verb = "delete"
        self._settling.settled.append(job)
        if not self._turn_due:
            self._schedule()

    def requeue(self, message: Message, delay: float) -> None:
        """In whole seconds, rounded up, and 1 at least: at once, a job would come back ahead of all others, and beanstalkd
        logs only releases that have a delay. Only what is given back at the end goes without one."""
        job = self._taken(message)
        job.verb, job.delay = "release", whole_seconds(delay, 0 if self._draining else 1)
        if self._log_space.full and not self._draining:
            self._log_space.keep(job, self.limits.lease)
        self._settling.when_known(job)
        self._schedule()

    def bury(self, message: Message) -> None:
        """Set it aside in its tube, to be kicked by a human: as far as this app is concerned it is finished.

        Raises AlreadySettled."""
        job = self._taken(message)
        job.verb = "bury"
        self._settling.when_known(job)
        self._schedule()

    def _taken(self, message: Message) -> ReservedJob:
        """Out of flight. Not for ``finish``, as most messages end there."""
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        return self._jobs.pop(message)

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self.in_flight[message] = monotonic()
        job = self._jobs[message]
        job.keeper.touch(job)
        self._schedule()

    def drain(self) -> None:
        if not self._draining:
            self._draining = True
            self.granted = 0
            self._log_space.release()
            self.waiters.add_no_more()
            self._deadline.start(self._guarded, self.waiters.drop_retired)
            self._schedule()

    def unsent(self) -> int:
        """What was sent and not answered counts too: an answer may still say that a lease was lost."""
        return len(self._settling) + self._poller.unanswered + self._poller.hub_socket.unsent + self.waiters.unsent

    def close(self) -> None:
        if not self._closing:
            self._closing = self._draining = True
            self.granted = 0
            self._log_space.release()
            self.waiters.add_no_more()
            self._deadline.start(self._guarded, self._end, None)
            self._schedule()

    def _release_kept(self, jobs: list[ReservedJob]) -> None:
        self._settling.kept_long_enough(jobs)
        self._schedule()

    # --- one turn ----------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not (self._turn_due or self._closed):
            self._turn_due = True
            self._loop.run_callback(self._guarded, self._turn)

    def _turn(self) -> None:
        if self._settling.settled:
            self._receiver.settled(self)
        self._flush()

    def _flush(self) -> None:
        """Say how jobs ended, ask for those that came, and for more where the grant has room; all in one send."""
        self._turn_due = False
        if self._settling.settled:
            self._settling.tell()
        if self._attempts.asking:
            self._poller.ask([job for job in self._attempts.asking if not job.asked])
            self._attempts.asking.clear()
        self._pacing.follow()
        self._poller.flush()
        if self._draining:
            self._check_end()

    @property
    def ours(self) -> int:
        """How many jobs are ours."""
        return len(self.in_flight) + self._attempts.undelivered

    def _check_end(self) -> None:
        if not (self._drained or self._poller.polling or self._attempts.undelivered) and self.waiters.silent_for_good:
            self._drained = True
            self._receiver.drained(self)
        if self._closing and not self.unsent():
            self._end(None)

    # --- jobs arrive -------------------------------------------------------------------------------------

    def got(self, job: ReservedJob) -> None:
        self._poller.dry = False
        self._attempts.got(job)
        self._schedule()

    def look(self) -> None:
        self._poller.dry = False
        self._flush()

    def asked(self, job: ReservedJob) -> None:
        if not self._settling.known(job) and job.message is not None:
            self.waiters.free(job)
            self._lose(job.message, f"beanstalkd does not know job {job.number} any more")

    def message(self, job: ReservedJob, attempts: int, born: int) -> Message:
        message = Message(b"%d%b" % (job.number, self._suffix), born, attempts, job.body, self)
        return opened(message) if self._opens else message

    def lease(self, ttr: int) -> None:
        self._leases.came(ttr, alone=not self._attempts.arrived)

    def _limit(self, limits: Limits) -> None:
        self.limits = limits
        self._set_pulse()

    def _set_pulse(self) -> None:
        self._pulse.set(monotonic() + min(_PULSE, self.limits.lease / 2))

    def free(self, job: ReservedJob) -> None:
        self.waiters.free(job)

    def read(self) -> None:
        arrived = self._attempts.arrived
        while arrived and not self._closing:
            jobs = arrived[:_SLICE]
            del arrived[:_SLICE]
            self._deliver(jobs)
            self._flush()
        self._flush()

    def _deliver(self, jobs: list[ReservedJob]) -> None:
        batch: list[Message] = []
        for job in jobs:
            message = job.message
            assert message is not None
            self._jobs[message] = job
            self.in_flight[message] = job.at
            if type(message.body) is wire.Torn:
                self.bury(message)
                notices.say_torn(self.node, self._tube, message)
            else:
                batch.append(message)
        self._tally.received += len(jobs)
        self._turn_due = True  # the flush after this: what is settled until then schedules none
        if batch:
            self._receiver.deliver(self, batch)
        if self.in_flight:
            self._unasked.add(jobs)

    def _ask_about(self, jobs: list[ReservedJob]) -> None:
        self._attempts.asking += jobs
        self._flush()

    # --- what the server says of a settlement --------------------------------------------------------------

    def refused(self, verb: str, message: Message) -> None:
        if verb == "touch":
            if self.in_flight.pop(message, None) is None:
                return  # settled meanwhile; that is refused as well
            self.waiters.free(self._jobs.pop(message))
        else:
            self._settling.refused(verb)
        settled = b"" if verb == "touch" else message.id
        self._lose(message, notices.refused(verb, message), settled)

    def buried(self, message: Message) -> None:
        notices.say_buried(self.node, self._tube, message)

    def stranded(self, verb: str, message: Message) -> None:
        self._settling.refused(verb)
        self._log_space.none(int(notices.number_of(message)))
        self._lose(message, notices.stranded(verb, message), message.id)

    def roomy(self) -> None:
        self._log_space.found()

    def _lose(self, message: Message, words: str, settled: bytes = b"") -> None:
        self._tally.lease_lost += 1
        self._receiver.lost(self, message, words, settled=settled)

    # --- what else the connections to the server say ---------------------------------------------------------

    def changed(self) -> None:
        self._schedule()

    def failed(self, error: Exception) -> None:
        self._loop.run_callback(self._guarded, self._end, error)

    def poller_gone(self, error: Exception) -> None:
        self._end(error)

    def broke(self, job: ReservedJob | None, cut: list[bytes], error: Exception) -> None:
        self._settling.cut(cut)
        if job is not None:
            self._lose_job(job, error)

    def _lose_job(self, job: ReservedJob, error: Exception) -> None:
        message = job.message
        if message is None:
            job.verb = "lost"
        elif self.in_flight.pop(message, None) is not None:
            del self._jobs[message]
            self._lose(message, str(error))
        else:
            self._settling.lose(job)

    def _check_pulse(self) -> None:
        self._set_pulse()
        now = monotonic()
        self.rescuable.take()  # of a rescue that ended after the hub had been told
        self.waiters.check(now)
        self._poller.check(now)
        self._poller.ping()
        if self._log_space.full:
            self._poller.probe()
        self._leases.look([*self._jobs.values(), *self._attempts.arrived])
        self._flush()

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._draining = self._closing = self._closed = True
        self._stop_timers()
        self._attempts.clear()
        self._tally.lease_lost += len(self.in_flight)
        self._settling.clear()
        self._settling.cut(self._poller.cut() + self.waiters.close())
        self._poller.hub_socket.close()
        self.in_flight.clear()
        self._jobs.clear()
        self.granted = 0
        self._receiver.closed(self, error)

    def _stop_timers(self) -> None:
        self._pulse.cancel()
        self._deadline.close()
        self._unasked.close()
        self._pacing.close()
        self._log_space.close()

    def forget(self) -> None:
        """In a forked child: it is the parent's, whose jobs would be read here. Nobody is told, or it would be made anew."""
        if not self._closed:
            self._closed = True
            self._stop_timers()
            self._attempts.clear()
            self._poller.hub_socket.forget()
            self.waiters.forget()
