"""The connection that never blocks: everything but waiting for a job is asked there, all of a turn in one send.

It reserves many jobs at once by ``reserve-with-timeout 0``, each answered at once: a job, or that there is none. So a job that it
holds can be touched and settled at any time. Where a job is about to run out of its time and none is ready, that answer is
DEADLINE_SOON; it means no more than TIMED_OUT does, because the owner decides when to ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from framework.errors import BrokerUnreachable, ProtocolError
from framework.message import Message
from framework.transports.beanstalkd import reserved_job, wire
from framework.transports.beanstalkd.dial import Line
from framework.transports.beanstalkd.hub_socket import HubSocket
from framework.transports.beanstalkd.rescue import Touch, snapshot
from framework.transports.beanstalkd.reserved_job import ReservedJob

_POLL = wire.reserve_with_timeout(0)
_FIRST_REACH, _REACH = 8, 512  # reserves in one poll: few where the tube may be empty soon
_PING = wire.LIST_TUBE_USED  # the cheapest question that has an answer
_PROBE = object()
_PROBE_PUT = wire.put(b"", wire.MAX_NUMBER, wire.MAX_NUMBER, 1)  # into the tube default, due in 136 years, and deleted at once


class Poll:
    """Reserves that were sent together. The first job that they get vouches for those behind it, see ``attempts``."""

    __slots__ = ("born", "fresh", "left", "top", "waiting")

    def __init__(self, count: int) -> None:
        self.left = count
        """Answers still to come."""
        self.top = 0
        """The id of the first job; 0 before it came."""
        self.born = 0
        """When the first job was put, in nanoseconds since 1970."""
        self.fresh: bool | None = None
        """Whether the first was never reserved before; None until that is known."""
        self.waiting: list[ReservedJob] = []
        """The jobs behind the first, until that is known."""


class Owner(reserved_job.Owner, Protocol):
    """What a poller tells. All of it is called on the hub."""

    def read(self) -> None:
        """All that came with one read has been told."""

    def poller_gone(self, error: Exception) -> None:
        """Its connection ended."""

    def roomy(self) -> None:
        """The server's log has room."""


class Attempts(Protocol):
    """What a poller gives its jobs to, and tells what it learns of them. All of it is called on the hub."""

    def reserved(self, poll: Poll, job: ReservedJob) -> None:
        """``poll`` got a job."""

    def known(self, job: ReservedJob, state: wire.JobState | None) -> None:
        """What was asked of ``job``; None: the server knows no such job."""


class Poller:
    """Made from a Line that watches its tube."""

    def __init__(self, line: Line, owner: Owner, attempts: Attempts) -> None:
        self.dry = True
        """The last poll got less than it asked for; only a waiter tells when there is more."""
        self.reach = _FIRST_REACH
        """The most that one poll may ask for."""
        self.polling = 0
        """Reserves that wait for their answers."""
        self.since = monotonic()
        """When it last had an answer, or was asked something while the server owed none."""
        self._owing = False
        self._out: list[bytes] = []
        self._asked: list[object] = []
        """What the answers to ``_out`` will mean: a Poll's, a ReservedJob's (its statistics), a Message's (its delete), a verb's
        with its message, a probe's, or None: whatever it is, it changes nothing."""
        self._probed: bytes = b""
        """What deletes the job of the last probe."""
        self._owner = owner
        self._attempts = attempts
        self.hub_socket = HubSocket(line, self._take, owner.poller_gone)

    def poll(self, count: int) -> None:
        """Reserve up to ``count`` jobs that are ready now."""
        self._asked += [Poll(count)] * count
        self._out.append(_POLL * count)
        self.polling += count

    def ask(self, jobs: list[ReservedJob]) -> None:
        """Ask for the statistics of jobs, of any connection's."""
        for job in jobs:
            job.asked = True
        self._asked += jobs
        self._out += [b"stats-job %d\r\n" % job.number for job in jobs]

    def finish(self, jobs: list[ReservedJob]) -> None:
        """Delete jobs of its own."""
        self._asked += [job.message for job in jobs]
        self._out += [b"delete %d\r\n" % job.number for job in jobs]

    def settle(self, job: ReservedJob) -> None:
        """Release or bury a job of its own."""
        self._asked.append((job.verb, job.message))
        self._out.append(job.command())

    def touch(self, job: ReservedJob) -> None:
        self._asked.append(("touch", job.message))
        self._out.append(wire.touch(job.number))

    def ping(self) -> None:
        """Ask whether the server is there; it has no heartbeats."""
        if not self.unanswered:
            self._asked.append(None)
            self._out.append(_PING)

    def probe(self) -> None:
        """Ask whether the server's log has room."""
        self._asked.append(_PROBE)
        self._out.append(_PROBE_PUT)

    def cut(self) -> list[bytes]:
        """The commands of its owner's that could not be handed over whole."""
        return [line for line in self.hub_socket.cut() if line != self._probed]

    def flush(self) -> None:
        """Send all that was said since the last time."""
        if self._out:
            if not self._owing:
                self._owing, self.since = True, monotonic()
            self.hub_socket.send(b"".join(self._out), self._asked)
            self._out.clear()
            self._asked.clear()

    @property
    def unanswered(self) -> int:
        """How many commands, said or not, wait for their answers."""
        return len(self.hub_socket.awaited) + len(self._asked)

    def undelivered(self) -> list[ReservedJob]:
        """The jobs of which something is still to be known; from any thread. A poll may have all its answers, and its jobs wait
        for what is known of the first one."""
        awaited = snapshot(self.hub_socket.awaited)
        jobs = [one for one in awaited if type(one) is ReservedJob]
        polls = [one for one in [*awaited, *[job.poll for job in jobs]] if type(one) is Poll]
        waiting = {id(poll): poll.waiting for poll in polls}
        return jobs + [job for some in waiting.values() for job in list(some)]

    def rescue(self, touches: Sequence[Touch]) -> None:
        """Keep jobs of its own, and those that it is given just now; from another thread."""
        self.hub_socket.rescue(lambda: touches)

    def check(self, now: float) -> None:
        """Raises BrokerUnreachable where an answer is overdue, and not only unread, as when the hub was blocked."""
        if self._overdue(now):
            self.hub_socket.poll()
            if self._overdue(now):
                words = f"gave no answer for {reserved_job.GRACE:g} s: the connection is dead"
                raise BrokerUnreachable(f"beanstalkd {self.hub_socket.node} {words}")

    def _overdue(self, now: float) -> bool:
        return bool(self.hub_socket.awaited) and now - self.since > reserved_job.GRACE

    # --- answers -------------------------------------------------------------------------------------------

    def _take(self, replies: list[wire.Reply]) -> None:
        self.since = monotonic()
        awaited = self.hub_socket.awaited
        for reply in replies:
            if not awaited:
                raise ProtocolError(f"beanstalkd {self.hub_socket.node} sent {reply.word}, which nothing asked for")
            asked = awaited.popleft()
            if type(asked) is Poll:
                self._polled(asked, reply, self.hub_socket.came)
            elif type(asked) is Message:
                if reply.word != "DELETED":
                    reserved_job.check(self._owner, reply, "delete", asked)
            elif type(asked) is ReservedJob:
                self._state(asked, reply)
            elif type(asked) is tuple:
                reserved_job.check(self._owner, reply, *asked)
            elif asked is _PROBE:
                self._answered_probe(reply)
        self._owing = bool(awaited)
        self._owner.read()

    def _polled(self, poll: Poll, reply: wire.Reply, at: float) -> None:
        self.polling -= 1
        poll.left -= 1
        if reply.word == "RESERVED":
            if poll.left == 0:
                self.reach = min(self.reach * 4, _REACH)
            self._attempts.reserved(poll, ReservedJob(reply.number, reply.data, self, at))
        elif reply.word in ("TIMED_OUT", "DEADLINE_SOON"):
            self.dry = True
            self.reach = _FIRST_REACH
        else:
            raise reserved_job.strange(reply, "reserve-with-timeout")

    def _answered_probe(self, reply: wire.Reply) -> None:
        if reply.word in ("INSERTED", "BURIED"):
            self._probed = b"delete %d" % reply.number
            self._out.append(self._probed + b"\r\n")
            self._asked.append(None)
        if reply.word in ("INSERTED", "DRAINING"):  # of one that drains nothing can be known
            self._owner.roomy()

    def _state(self, job: ReservedJob, reply: wire.Reply) -> None:
        if reply.word == "OK":
            self._attempts.known(job, wire.job_state(reply.data))
        elif reply.word == "NOT_FOUND":
            self._attempts.known(job, None)
        else:
            raise reserved_job.strange(reply, "stats-job")
