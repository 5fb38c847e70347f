"""The pool of waiters by itself, on sockets that note what is said: who waits, is spare, is dialled, has to go."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable, ProtocolError
from framework.transports.beanstalkd import reserved_job, waiters, wire
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.waiters import RESERVE, Waiter, WaiterPool
from tests.transports.beanstalkd.sockets import Owner, Socket


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def pool(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> WaiterPool:
    monkeypatch.setattr(waiters, "HubSocket", Socket)
    monkeypatch.setattr(waiters, "monotonic", lambda: float(int(monotonic())))  # so that sums are exact
    return WaiterPool("a:1", "orders", owner, lambda work, *of: work(*of))  # type: ignore[arg-type]


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each dial finds: None a line, or an error."""
    found: list[Any] = []

    class Line:
        def __enter__(self) -> Line:
            return self

        def __exit__(self, *_: object) -> None: ...

        def subscribe(self, tube: str) -> None:
            assert tube == "orders"

    def dial(node: str) -> Line:
        outcome = found.pop(0)
        if outcome is not None:
            raise outcome
        return Line()

    monkeypatch.setattr(waiters, "dial", dial)
    return found


def add(pool: WaiterPool) -> Waiter:
    pool.add(None)  # type: ignore[arg-type]
    return list(pool.all)[-1]


def said(waiter: Waiter) -> list[bytes]:
    """What was said on its socket since the last time."""
    socket: Any = waiter.hub_socket
    found, socket.said = socket.said, []
    return found


def answer(waiter: Waiter, word: str, number: int = 0) -> None:
    waiter.hub_socket.take([wire.Reply(word, number, b"body")])  # type: ignore[attr-defined]


def with_job(pool: WaiterPool, number: int = 7) -> tuple[Waiter, ReservedJob]:
    waiter = add(pool)
    pool.wait()
    answer(waiter, "RESERVED", number)
    assert waiter.job is not None
    waiter.job.message = SimpleNamespace(id=b"7")  # type: ignore[assignment]
    waiter.job.verb = "delete"
    said(waiter)
    return waiter, waiter.job


def test_one_waits_at_a_time_and_is_spare_again_when_nothing_came(pool: WaiterPool, owner: Owner) -> None:
    first, second = add(pool), add(pool)
    assert not pool.promised
    assert pool.silent_for_good
    for word in ("TIMED_OUT", "DEADLINE_SOON"):
        for _ in range(2):
            pool.wait()
        assert pool.promised
        assert not pool.silent_for_good
        assert (said(second), said(first)) == ([RESERVE], [])
        answer(second, word)
        assert (pool.waiting, owner.heard()) == (None, ["changed"])
    assert pool.unsent == 0


def test_one_that_got_a_job_keeps_it_until_that_is_settled(pool: WaiterPool, owner: Owner) -> None:
    waiter, job = with_job(pool)
    assert (job.number, job.body, job.keeper, job.at) == (7, b"body", waiter, 5.0)
    assert owner.heard() == ["got"]
    assert pool.waiting is None
    assert pool.settle(waiter, job, again=True)
    assert said(waiter) == [b"delete 7\r\n" + RESERVE]
    assert (pool.waiting, waiter.job, pool.unsent) == (waiter, None, 1)
    answer(waiter, "DELETED")
    assert pool.unsent == 0
    answer(waiter, "RESERVED", 8)
    assert owner.heard() == ["got"]


@pytest.mark.parametrize("again", [False, True])
def test_no_second_one_waits(pool: WaiterPool, again: bool) -> None:
    waiter, job = with_job(pool)
    if again:
        other = add(pool)
        pool.wait()
        assert pool.waiting is other
    assert not pool.settle(waiter, job, again=again)
    assert said(waiter) == [b"delete 7\r\n"]
    pool.waiting = None
    answer(waiter, "DELETED")
    pool.wait()
    assert pool.waiting is waiter, "it is spare"


@pytest.mark.parametrize("word", ["NOT_FOUND", "BURIED", "OUT_OF_MEMORY"])
def test_what_the_server_says_of_a_settlement_is_told(pool: WaiterPool, owner: Owner, word: str) -> None:
    waiter, job = with_job(pool)
    job.verb, job.priority = "release", 0
    pool.settle(waiter, job, again=False)
    owner.heard()
    answer(waiter, word)
    (told,) = owner.told
    assert told[1:] in [("release", job.message), (job.message,)]
    assert told[0] == {"NOT_FOUND": "refused", "BURIED": "buried", "OUT_OF_MEMORY": "stranded"}[word]


def test_one_whose_job_is_no_longer_ours_is_spare_and_any_other_is_not(pool: WaiterPool, owner: Owner) -> None:
    waiter, job = with_job(pool)
    owner.heard()
    pool.free(ReservedJob(8, b"", waiter, 0.0))
    pool.free(ReservedJob(9, b"", SimpleNamespace(), 0.0))  # type: ignore[arg-type]
    assert (owner.heard(), waiter.job) == ([], job)
    pool.free(job)
    assert (owner.heard(), waiter.job) == (["changed"], None)
    pool.wait()
    assert pool.waiting is waiter


def test_an_answer_that_nobody_asked_for_or_that_makes_no_sense_is_an_error(pool: WaiterPool) -> None:
    waiter = add(pool)
    with pytest.raises(ProtocolError, match="which nothing asked for"):
        answer(waiter, "TIMED_OUT")
    pool.wait()
    with pytest.raises(ProtocolError, match="answer to reserve"):
        answer(waiter, "KICKED")


def test_where_none_is_spare_one_is_dialled_and_waits_when_it_is_there(
    pool: WaiterPool, owner: Owner, dials: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dials += [None]
    pauses: list[float] = []
    monkeypatch.setattr(waiters, "gevent", SimpleNamespace(spawn=gevent.spawn, sleep=pauses.append))
    for _ in range(3):
        pool.wait()
    assert pool.promised
    assert not pool.silent_for_good
    pool.dialling.join(10)
    assert (len(pool.all), pool.dialling, owner.heard(), pauses) == (1, None, ["changed"], [0.0])
    pool.wait()
    assert pool.waiting in pool.all


def test_where_none_can_be_had_the_tube_is_looked_at_and_dials_come_ever_more_seldom(
    pool: WaiterPool, owner: Owner, dials: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "_REDIAL_CAP", 1.5)
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(waiters, "monotonic", lambda: clock.now)
    pauses = []
    for _ in range(4):
        dials += [BrokerUnreachable("too many open files")]
        pool.wait()
        assert pool.dialling is not None
        pool.dialling.join(10)
        pauses.append(pool._dial_at - clock.now)
        clock.now = pool._dial_at - 0.01
        pool.wait()
        assert pool.dialling is None, "not before its time"
        clock.now = pool._dial_at
    assert pauses == [0.5, 1.0, 1.5, 1.5]
    owner.heard()
    with gevent.Timeout(10):
        while "look" not in owner.heard():
            gevent.sleep(0.01)
    dials += [None]
    pool.wait()
    assert not pool.promised, "it is not counted on"
    pool.dialling.join(10)
    dials += [BrokerUnreachable("again")]
    pool._dial()
    pool.dialling.join(10)
    assert pool._dial_at - clock.now == 0.5, "one that was had begins the pauses anew"


def test_there_are_only_so_many(pool: WaiterPool, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "MOST", 1)
    monkeypatch.setattr(waiters, "KNOCK", 0.01)
    with_job(pool)
    pool.wait()
    assert (pool.dialling, pool.promised) == (None, False)
    owner.heard()
    with gevent.Timeout(10):
        while "look" not in owner.heard():
            gevent.sleep(0.01)


def test_a_server_that_is_no_beanstalkd_is_told(pool: WaiterPool, owner: Owner, dials: list[Any]) -> None:
    dials += [ProtocolError("HTTP/1.1 400")]
    pool.wait()
    pool.dialling.join(10)
    assert owner.heard() == ["failed", "changed"]


@pytest.mark.parametrize("came", [False, True])
def test_one_that_shall_wait_no_more_is_heard_before_it_goes(pool: WaiterPool, owner: Owner, came: bool) -> None:
    pool.wait_no_more()
    waiter = add(pool)
    pool.wait()
    socket: Any = waiter.hub_socket
    socket.found = [wire.Reply("RESERVED", 7, b"body")] if came else []
    pool.wait_no_more()
    assert (pool.waiting, socket.polls, socket.shuts, waiter.retired) == (None, 1, int(not came), not came)
    assert pool.silent_for_good is came, "until the server has closed it a job may come"
    if not came:
        answer(waiter, "RESERVED", 8)
        assert (waiter.job, owner.heard()) == (None, [])
        waiter.hub_socket.ended(BrokerUnreachable("it closed"))  # type: ignore[attr-defined]
        assert (pool.silent_for_good, pool.dialling, owner.heard()) == (True, None, ["broke", "changed"])


@pytest.mark.parametrize("held", ["nothing", "a reserve", "a job"])
def test_one_that_breaks_is_replaced_after_a_while(pool: WaiterPool, owner: Owner, dials: list[Any], held: str) -> None:
    dials += [None]
    waiter, job = with_job(pool)
    if held != "a job":
        pool.settle(waiter, job, again=held == "a reserve")
    socket: Any = waiter.hub_socket
    socket.lost = [b"delete 7"]
    owner.heard()
    error = BrokerUnreachable("reset")
    socket.ended(error)
    assert owner.told == [("broke", job if held == "a job" else None, [b"delete 7"], error), ("changed",)]
    assert (pool.waiting, len(pool.all), pool._spare) == (None, 0, [])
    socket.lost = []
    assert pool.dialling is not None
    pool.add_no_more()
    assert (pool.dialling, pool.open) == (None, False)


def test_one_that_makes_no_sense_ends_it_all(pool: WaiterPool, owner: Owner) -> None:
    waiter = add(pool)
    waiter.hub_socket.ended(ProtocolError("HTTP"))  # type: ignore[attr-defined]
    assert (owner.heard(), pool.dialling) == (["broke", "failed", "changed"], None)


def test_none_is_replaced_once_no_more_are_wanted(pool: WaiterPool) -> None:
    waiter = add(pool)
    pool.add_no_more()
    waiter.hub_socket.ended(BrokerUnreachable("reset"))  # type: ignore[attr-defined]
    assert pool.dialling is None


def test_those_that_were_not_needed_for_a_while_go_but_for_the_one_that_may_be(pool: WaiterPool) -> None:
    some = [add(pool) for _ in range(3)]
    keeping, job = with_job(pool)
    for _ in range(2):
        pool.check(some[0].since + 1.0)
    assert said(keeping) == [wire.LIST_TUBE_USED], "one that keeps a job says so, once"
    answer(keeping, "USING")
    pool.check(some[0].since + waiters.SPARE)
    assert not any(one.retired for one in pool.all)
    answer(keeping, "USING")
    pool.check(some[2].since + waiters.SPARE + 0.1)
    assert [one.retired for one in some] == [True, True, False]
    assert (keeping.job, keeping.retired) == (job, False)
    pool.wait()
    assert pool.waiting is some[2]


@pytest.mark.parametrize(
    ("state", "patience"),
    [
        ("idle", None),
        ("reserving", waiters.WAIT + reserved_job.GRACE),
        ("settled", reserved_job.GRACE),
        ("retired", reserved_job.GRACE),
    ],
)
def test_one_whose_server_owes_an_answer_for_too_long_is_dropped(
    pool: WaiterPool, owner: Owner, state: str, patience: float | None
) -> None:
    waiter = add(pool)
    if state in {"reserving", "retired"}:
        pool.wait()
    if state == "retired":
        pool.wait_no_more()
    if state == "settled":
        waiter.hub_socket.send(b"delete 7\r\n", [None])
    if state != "idle":
        add(pool)  # the spare one that stays
    pool.open = False
    socket: Any = waiter.hub_socket
    pool.check(waiter.since + (patience or 10_000.0))
    assert socket.open
    pool.check(waiter.since + (patience or 20_000.0) + 0.1)
    assert (socket.open, waiter in pool.all) == (patience is None, patience is None)
    assert ("broke" in owner.heard()) is (patience is not None)


def test_an_answer_that_is_only_unread_is_not_overdue(pool: WaiterPool) -> None:
    waiter = add(pool)
    pool.wait()
    socket: Any = waiter.hub_socket
    socket.found = [wire.Reply("TIMED_OUT", 0, b"")]
    pool.check(waiter.since + waiters.WAIT + reserved_job.GRACE + 0.1)
    assert (socket.polls, socket.open) == (1, True)


def test_at_the_end_those_that_the_server_has_not_closed_are_closed_here(pool: WaiterPool, owner: Owner) -> None:
    staying, leaving = add(pool), add(pool)
    pool.wait()
    pool.wait_no_more()
    pool.drop_retired()
    assert (list(pool.all), leaving.hub_socket.open, staying.hub_socket.open) == ([staying], False, True)
    assert owner.heard() == ["broke", "changed"]
    sockets: list[Any] = [one.hub_socket for one in pool.all]
    sockets[0].lost = [b"delete 1", b"release 2"]
    assert pool.close() == [b"delete 1", b"release 2"]
    assert (pool.all, pool._spare, pool.waiting, sockets[0].open) == ({}, [], None, False)


def test_what_is_dialled_is_given_up_from_a_callback_of_the_hub_too(pool: WaiterPool, dials: list[Any]) -> None:
    pool._dial(pause=600.0)
    dialling = pool.dialling
    gevent.get_hub().loop.run_callback(pool.add_no_more)
    with gevent.Timeout(10):
        while pool.dialling is not None:
            gevent.sleep(0)
        dialling.join()


def test_what_is_closed_looks_at_its_tube_no_more(pool: WaiterPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "MOST", 0)
    pool.wait()
    assert pool._knock.active
    pool.close()
    assert not pool._knock.active
