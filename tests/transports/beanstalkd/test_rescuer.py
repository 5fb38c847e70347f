"""What is touched in the hub's place, on which connection, and what the hub knows of it afterwards. Nothing is sent here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from framework.message import Message
from framework.transports.beanstalkd.rescuer import Rescuer
from framework.transports.beanstalkd.reserved_job import ReservedJob


class Keeper:
    """A connection that holds jobs, and notes what it is told to touch."""

    def __init__(self, *undelivered: ReservedJob) -> None:
        self.touched: list[Any] = []
        self.resumed = 0
        self.job: ReservedJob | None = None
        self.hub_socket = SimpleNamespace(resume=self._resume)
        self.undelivered = lambda: list(undelivered)

    def _resume(self) -> None:
        self.resumed += 1

    def rescue(self, touches: Any) -> None:
        self.touched.append(list(touches))


class Case:
    """One connection with three messages in flight since 100, each of a lease of 3 s."""

    def __init__(self) -> None:
        self.poller: Any = Keeper()
        self.waiter: Any = Keeper()
        self.works: list[Any] = []
        self.messages = [Message(b"%d" % number, 0, 1, b"", SimpleNamespace()) for number in range(3)]
        self.jobs = {message: self.job(number, self.poller, message) for number, message in enumerate(self.messages)}
        self.in_flight = dict.fromkeys(self.messages, 100.0)
        self.attempts: Any = SimpleNamespace(asking=[], arrived=[])
        self.settling: Any = SimpleNamespace(settled=[], late={})
        self.rescuer = Rescuer(
            self.in_flight, self.jobs, poller=self.poller, waiters=SimpleNamespace(all={self.waiter: None}),  # type: ignore[arg-type]
            attempts=self.attempts, settling=self.settling, lease=lambda: 3.0, guarded=self._guarded,
        )  # fmt: skip

    @staticmethod
    def job(number: int, keeper: Any, message: Message | None = None) -> ReservedJob:
        made = ReservedJob(number, b"", keeper, 100.0)
        made.priority, made.message = 5, message
        return made

    def _guarded(self, work: Any) -> None:
        self.works.append(work)
        work()


def test_the_hub_knows_when_its_jobs_were_touched_and_what_it_settled_meanwhile_stays_settled() -> None:
    case = Case()
    first, second, expired = case.messages
    case.rescuer.rescue(110.0, [expired])
    assert case.poller.touched == [[(0, ("touch", first)), (1, ("touch", second))]]
    assert (case.waiter.touched, set(case.in_flight.values())) == ([[]], {100.0})
    case.rescuer.rescue(110.1, [expired])
    assert case.poller.touched[1:] == [[]], "not again so soon"
    del case.in_flight[second]
    case.rescuer.rescued()
    assert list(case.in_flight.items()) == [(expired, 100.0), (first, 110.0)]
    assert (case.poller.resumed, case.waiter.resumed, len(case.works)) == (1, 1, 1)
    case.rescuer.rescued()
    case.rescuer.take()
    assert (case.poller.resumed, len(case.works)) == (1, 1)


def test_jobs_that_are_on_their_way_or_settled_and_not_sent_are_touched_by_whoever_keeps_them() -> None:
    case = Case()
    case.in_flight.clear()
    case.poller.undelivered = lambda: [case.job(10, case.poller)]
    case.attempts.asking.append(case.job(11, case.poller))
    case.attempts.arrived.append(case.job(12, case.poller))
    case.settling.settled.append(case.job(13, case.waiter, case.messages[0]))
    case.settling.late[case.job(14, case.poller, case.messages[1])] = None
    case.waiter.job = case.job(15, case.waiter)
    case.rescuer.rescue(100.0, ())
    assert sorted(number for number, _ in case.poller.touched[0]) == [10, 11, 12, 14]
    assert case.waiter.touched == [[(13, None), (15, None)]]
    case.waiter.job.message = case.messages[2]  # it is in flight now, and touched as such
    case.rescuer.rescue(100.0, ())
    assert case.waiter.touched[1:] == [[(13, None)]]
