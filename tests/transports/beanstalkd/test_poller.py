"""The poller by itself: what it asks in one send, what each answer changes, and when an answer is overdue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BrokerUnreachable, ProtocolError
from framework.message import Message
from framework.transports.beanstalkd import poller, reserved_job, wire
from framework.transports.beanstalkd.poller import Poll, Poller
from framework.transports.beanstalkd.reserved_job import ReservedJob
from tests.transports.beanstalkd.sockets import Owner, Socket

MESSAGE = Message(b"7@a", 0, 1, b"body", SimpleNamespace())


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def learned() -> Owner:
    """What its jobs are given to."""
    return Owner()


@pytest.fixture
def one(owner: Owner, learned: Owner, monkeypatch: pytest.MonkeyPatch) -> Poller:
    monkeypatch.setattr(poller, "HubSocket", Socket)
    return Poller(None, owner, learned)  # type: ignore[arg-type]


def job_of(one: Poller, number: int = 7, verb: str = "delete") -> ReservedJob:
    job = ReservedJob(number, b"body", one, 5.0)
    job.message, job.verb, job.priority, job.delay = MESSAGE, verb, 3, 2
    return job


def said(one: Poller) -> bytes:
    """What was sent since the last time."""
    one.flush()
    socket: Any = one.hub_socket
    found, socket.said = b"".join(socket.said), []
    return found


def answer(one: Poller, *replies: tuple[Any, ...]) -> None:
    one.hub_socket.take([wire.Reply(*(*reply, 0, b"")[:3]) for reply in replies])  # type: ignore[attr-defined]


def test_many_are_asked_for_at_once_and_more_the_next_time_where_all_came(one: Poller, learned: Owner) -> None:
    reaches = [one.reach]
    for _ in range(5):
        count = one.reach
        one.poll(count)
        assert said(one) == b"reserve-with-timeout 0\r\n" * count
        assert (one.polling, one.unanswered) == (count, count)
        answer(one, *[("RESERVED", number, b"body") for number in range(count - 1)])
        assert (one.reach, one.polling) == (count, 1)
        answer(one, ("RESERVED", 9, b"last"))
        reaches.append(one.reach)
        assert (one.polling, one.unanswered) == (0, 0)
    assert reaches == [8, 32, 128, 512, 512, 512]
    _, poll, job = learned.told[-1]
    assert (poll.left, job.number, job.body, job.keeper, job.at) == (0, 9, b"last", one, 5.0)
    assert learned.told[-2][1] is poll


@pytest.mark.parametrize("word", ["TIMED_OUT", "DEADLINE_SOON"])
def test_where_fewer_came_it_is_dry_and_begins_with_few(one: Poller, learned: Owner, owner: Owner, word: str) -> None:
    one.dry, one.reach = False, 512
    one.poll(2)
    said(one)
    answer(one, ("RESERVED", 1, b"body"), (word,))
    assert (one.dry, one.reach, one.polling, learned.heard(), owner.heard()) == (True, 8, 0, ["reserved"], ["read"])


def test_all_of_a_turn_goes_in_one_send_and_each_answer_is_that_of_its_command(one: Poller, owner: Owner, learned: Owner) -> None:
    asked, back, buried, touched = (
        ReservedJob(1, b"", one, 0.0),
        job_of(one, 2, "release"),
        job_of(one, 3, "bury"),
        job_of(one, 4),
    )
    one.ask([asked])
    one.finish([job_of(one, 5), job_of(one, 6)])
    one.settle(back)
    one.settle(buried)
    one.touch(touched)
    assert asked.asked
    assert one.unanswered == 6
    one.flush()
    assert one.hub_socket.said == [  # type: ignore[attr-defined]
        b"stats-job 1\r\ndelete 5\r\ndelete 6\r\nrelease 2 3 2\r\nbury 3 3\r\ntouch 4\r\n"
    ]
    one.flush()
    assert len(one.hub_socket.said) == 1  # type: ignore[attr-defined]
    answer(one, ("NOT_FOUND",), ("DELETED",), ("NOT_FOUND",), ("RELEASED",), ("BURIED",), ("NOT_FOUND",))
    assert learned.told == [("known", asked, None)]
    assert owner.told == [("refused", "delete", MESSAGE), ("refused", "touch", MESSAGE), ("read",)]
    assert one.unanswered == 0


@pytest.mark.parametrize(
    ("say", "words"),
    [
        (lambda one: one.poll(1), "answer to reserve-with-timeout"),
        (lambda one: one.ask([job_of(one)]), "answer to stats-job"),
        (lambda one: one.finish([job_of(one)]), "answer to delete"),
        (lambda one: None, "which nothing asked for"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(one: Poller, say: Any, words: str) -> None:
    say(one)
    said(one)
    with pytest.raises(ProtocolError, match=words):
        answer(one, ("KICKED",))


def test_whether_the_server_is_there_is_asked_where_it_owes_no_answer(one: Poller, owner: Owner) -> None:
    for _ in range(2):
        one.ping()
    assert said(one) == wire.LIST_TUBE_USED
    one.ping()
    assert said(one) == b""
    answer(one, ("USING",))
    one.ping()
    assert said(one) == wire.LIST_TUBE_USED
    assert owner.told == [("read",)]


@pytest.mark.parametrize(
    ("word", "roomy", "deleted"),
    [("INSERTED", True, True), ("BURIED", False, True), ("DRAINING", True, False), ("OUT_OF_MEMORY", False, False)],
)
def test_whether_its_log_has_room_is_asked_by_a_job_that_is_nobodys(
    one: Poller, owner: Owner, word: str, roomy: bool, deleted: bool
) -> None:
    one.probe()
    assert said(one) == b"put 4294967295 4294967295 1 0\r\n\r\n"
    answer(one, (word, 12))
    assert ("roomy" in owner.heard()) is roomy
    assert said(one) == b"delete 12\r\n" * deleted
    one.hub_socket.lost = [b"delete 12", b"delete 13"]  # type: ignore[attr-defined]
    assert one.cut() == ([b"delete 13"] if deleted else [b"delete 12", b"delete 13"])


def test_an_answer_is_overdue_when_the_server_was_silent_since_it_owes_one(one: Poller, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(poller, "monotonic", lambda: clock.now)
    socket: Any = one.hub_socket
    one.check(1e9)
    one.ping()
    one.flush()
    clock.now += 5.0  # what is asked while it owes an answer begins nothing anew
    one.poll(2)
    one.flush()
    one.check(100.0 + reserved_job.GRACE)
    assert socket.polls == 0
    with pytest.raises(BrokerUnreachable, match="beanstalkd a:1 gave no answer for 10 s: the connection is dead"):
        one.check(100.1 + reserved_job.GRACE)
    socket.found = [wire.Reply("USING", 0, b"")]  # the hub was blocked
    one.check(100.1 + reserved_job.GRACE)
    assert (one.since, one.unanswered) == (105.0, 2)
    answer(one, ("TIMED_OUT",), ("TIMED_OUT",))
    clock.now = 200.0
    one.ping()
    one.flush()
    assert one.since == 200.0


def test_what_is_ours_and_not_delivered_is_known_from_any_thread(one: Poller) -> None:
    first, behind = ReservedJob(1, b"", one, 0.0), ReservedJob(2, b"", one, 0.0)
    poll = Poll(3)
    first.poll = poll
    poll.waiting.append(behind)
    one._asked += [poll, poll]
    one.ask([first])
    one.flush()
    assert one.undelivered() == [first, behind]
    one.hub_socket.awaited.clear()
    assert one.undelivered() == []
