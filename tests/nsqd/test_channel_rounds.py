"""What a channel gives to whom and in which turn, and what it has saved of it: on paper, without a disk or sockets."""

from __future__ import annotations

from typing import Any

import pytest

from framework.nsqd import backlog, retries
from framework.nsqd import channel as channels
from framework.nsqd.channel import Channel, ChannelChanged
from framework.nsqd.store import Correction, Retry
from framework.nsqd.store.index import FINISHED
from tests.nsqd.taking import Taker
from tests.nsqd.test_topic import Case, turn

NOW = 1_000_000
"""By the clock of the case's port, in ms."""


def started(*bodies: bytes, name: str = "c") -> tuple[Case, Channel]:
    """A channel to which these were published, one by one; the first has number 100."""
    case = Case()
    channel = case.channel(name)
    for body in bodies:
        case.publish(body)
    return case, channel


def numbers(taker: Taker) -> list[int]:
    """What it has in flight."""
    return [int(one, 16) for one in taker.leases.messages]


def named(number: int) -> bytes:
    return b"%016x" % number


def test_messages_go_out_in_their_order_as_far_as_a_client_has_room() -> None:
    _, channel = started(b"a", b"b", b"c")
    taker = Taker(channel, ready=2)
    channel.serve()
    assert (taker.bodies, numbers(taker), channel.depth, channel.in_flight_count) == ([b"a", b"b"], [100, 101], 1, 2)
    assert [one.attempts for one in taker.leases.messages.values()] == [1, 1]
    assert channel.cursor == 102
    save = channel.snapshot()
    assert (save.cursor, list(save.inflight), save.put, save.drop) == (102, [100, 101], {}, set())
    taker.finish()
    channel.serve()
    assert (taker.bodies[2:], channel.depth) == ([b"c"], 0)


def test_clients_share_what_there_is_and_another_begins_each_time() -> None:
    case, channel = started(*[b"%d" % n for n in range(6)])
    first, second, full = Taker(channel), Taker(channel), Taker(channel, ready=0)
    channel.serve()
    turn()
    assert sorted([len(first.bodies), len(second.bodies)]) == [3, 3]
    assert full.bodies == []
    begun = []
    for _ in range(3):
        before = len(first.bodies)
        case.publish(b"x")
        channel.serve()
        begun.append(len(first.bodies) > before)
    assert True in begun
    assert False in begun


@pytest.mark.parametrize("times", [1, 2])
def test_clients_get_what_comes_one_by_one_in_turns_also_where_nothing_is_there_between(times: int) -> None:
    case, channel = started()
    takers = [Taker(channel), Taker(channel)]
    for _ in range(4):
        case.publish(b"x")
        for _ in range(times):  # as after each FIN
            channel.serve()
    assert [len(one.bodies) for one in takers] == [2, 2]


def test_what_is_not_at_hand_is_fetched_in_the_middle_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    channel = case.channel()
    weight = case.publish(b"0").weight
    monkeypatch.setattr(backlog, "WINDOW_BYTES", 2 * weight + 1)  # which is three of them
    for n in range(1, 8):
        case.publish(b"%d" % n)
    assert channel.backlog.loaded == 3
    takers = [Taker(channel), Taker(channel)]  # two for each is one more
    channel.serve()
    assert sorted(body for one in takers for body in one.bodies) == [b"%d" % n for n in range(8)]
    assert case.port.failures == []


def test_what_was_given_and_what_was_finished_is_to_be_saved() -> None:
    case, channel = started(b"a", b"b")
    channel.snapshot()
    taker = Taker(channel, ready=1)
    for act in (channel.serve, taker.finish):
        assert not channel.dirty
        case.port.events.clear()
        act()
        assert channel.dirty
        assert ChannelChanged(channel) in case.port.events
        channel.snapshot()


@pytest.mark.parametrize("ready", [0, 5])
def test_a_channel_with_nothing_to_give_or_nobody_to_give_it_to_asks_for_no_more_turns(ready: int) -> None:
    _, channel = started(*[b"x"] * (0 if ready else 5))
    taker = Taker(channel, ready=ready)
    channel.serve()
    assert not channel._serving._awaited
    assert taker.bodies == []


def test_nothing_goes_out_while_a_channel_is_paused_or_not_declared() -> None:
    _, channel = started(b"a")
    taker = Taker(channel)
    channel.pause(True)
    channel.serve()
    assert taker.bodies == []
    channel.pause(False)
    assert taker.bodies == [b"a"]
    case = Case()
    case.publish(b"a")
    undeclared = case.topic.channel("new")
    taker = Taker(undeclared)
    undeclared.serve()
    assert taker.bodies == []
    case.declare()
    turn()
    assert taker.bodies == [b"a"]


def test_what_is_requeued_comes_behind_what_waits_there_with_an_attempt_more() -> None:
    _, channel = started(b"a", b"b", b"c")
    taker = Taker(channel, ready=1)
    channel.serve()
    assert channel.requeue(taker, named(100), 0.0) is None  # type: ignore[arg-type]
    assert (channel.requeue_count, channel.depth, channel.in_flight_count) == (1, 3, 0)
    assert channel.snapshot().put == {100: Retry(0, 1)}
    for number in (101, 102, 100):
        channel.serve()
        assert channel.finish(taker, named(number)) is None  # type: ignore[arg-type]
    assert taker.bodies == [b"a", b"b", b"c", b"a"]
    assert channel.requeue(taker, named(100), 0.0) == "ID not in flight"  # type: ignore[arg-type]
    assert channel.snapshot().drop == {100}


@pytest.mark.parametrize("together", [True, False])
def test_behind_a_long_backlog_it_comes_when_as_many_have_gone_as_memory_would_hold(together: bool) -> None:
    case, channel = started()  # --mem-queue-size=5
    bodies = [b"%d" % n for n in range(12)]
    for some in [bodies] if together else [[one] for one in bodies]:
        case.publish(*some)
    taker = Taker(channel, ready=1)
    channel.serve()
    channel.requeue(taker, named(100), 0.0)  # type: ignore[arg-type]
    taker.ready = 1000
    channel.serve()
    turn()
    assert taker.bodies.index(b"0", 1) == 6
    assert len(taker.bodies) == 13
    assert [one.attempts for one in taker.leases.messages.values() if one.seq == 100] == [2]


def test_of_several_that_wait_behind_a_long_backlog_the_first_comes_first() -> None:
    _, channel = started(*[b"%d" % n for n in range(10)])  # --mem-queue-size=5
    taker = Taker(channel, ready=1)
    for number in (100, 101):
        channel.serve()
        channel.requeue(taker, named(number), 0.0)  # type: ignore[arg-type]
    for _ in range(10):
        channel.serve()
        for one in numbers(taker):
            channel.finish(taker, named(one))  # type: ignore[arg-type]
    assert taker.bodies == [b"0", b"1", b"2", b"3", b"4", b"5", b"0", b"6", b"1", b"7", b"8", b"9"]


@pytest.mark.parametrize(("rate", "sampled", "bodies"), [(0, False, [b"a", b"a"]), (50, True, [b"a", b"a"]), (50, False, [b"a"])])
def test_another_try_comes_unless_it_is_not_in_the_sample(rate: int, sampled: bool, bodies: list[bytes]) -> None:
    """Of a client that asks for a sample, what is not in it is finished."""
    _, channel = started(b"a")
    taker = Taker(channel)
    channel.serve()
    channel.requeue(taker, named(100), 0.0)  # type: ignore[arg-type]
    taker.sample_rate = rate
    taker.sampled = lambda: sampled  # type: ignore[method-assign]
    channel.serve()
    assert taker.bodies == bodies
    assert (channel.depth, channel.in_flight_count) == (0, len(bodies) - 1)


@pytest.mark.parametrize(("delay", "due"), [(None, 0), (0.0, 0), (5.0, NOW + 5_000)])
def test_what_goes_back_is_saved(delay: float | None, due: int) -> None:
    """Its attempts and its time are known after a kill, also where nothing else happens; None: it timed out."""
    _, channel = started(b"a")
    taker = Taker(channel)
    channel.serve()
    assert channel.snapshot().put == {}
    assert not channel.dirty
    if delay is None:
        channel._timed_out(taker.leases, taker.leases.messages.pop(named(100)))
    else:
        channel.requeue(taker, named(100), delay)  # type: ignore[arg-type]
    assert channel.dirty
    assert channel.snapshot().put == {100: Retry(due, 1)}


def test_what_is_deferred_waits_for_its_time_and_one_of_no_time_or_less_comes_at_once() -> None:
    _, channel = started(b"a", b"b", b"c")
    taker = Taker(channel)
    channel.serve()
    for number, delay in ((100, 0.5), (101, -1.0), (102, 60.0)):
        channel.requeue(taker, named(number), delay)  # type: ignore[arg-type]
    assert [one.seq for one in channel.retries.ready] == [101]
    assert sorted(one.seq for _, _, one in channel.deferred) == [100, 102]
    assert channel.snapshot().put == {100: Retry(NOW + 500, 1), 101: Retry(0, 1), 102: Retry(NOW + 60_000, 1)}


def test_what_is_due_goes_to_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    case, channel = started(b"a")
    taker = Taker(channel)
    channel.serve()
    channel.requeue(taker, named(100), 60.0)  # type: ignore[arg-type]
    case.publish(b"b")
    channel.snapshot()
    now = retries.time.monotonic() + 61
    monkeypatch.setattr(retries, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now)}))
    channel._release()
    assert taker.bodies == [b"a", b"b", b"a"]
    assert channel.deferred == []
    assert channel.snapshot().put == {100: Retry(0, 1)}


def test_a_published_message_that_is_not_due_is_saved_as_such_and_finished_ahead_of_the_cursor() -> None:
    case, channel = started()
    case.publish(b"later", due=NOW + 5)
    case.publish(b"now")
    assert (channel.depth, len(channel.deferred)) == (1, 1)
    save = channel.snapshot()
    assert (save.cursor, save.put) == (101, {100: Retry(NOW + 5, 0)})


def test_of_what_is_finished_before_the_cursor_comes_to_it_a_row_stays_until_then() -> None:
    case, channel = started()
    case.publish(b"a")
    Taker(channel, ready=1)
    case.publish(b"later", due=NOW + 5)
    channel.serve()
    case.publish(b"b")
    late = channel.deferred[0][2]
    assert channel.cursor == 102
    channel._finished(late)
    assert channel.snapshot().drop == {101}
    before = Channel(case.topic, case.port, channels.ChannelState(8, "d", 101, retries={103: Retry(0, 1)}), declared=True)  # type: ignore[arg-type, attr-defined]
    (ahead,) = before.retries.ready
    before.snapshot()
    before._finished(ahead)
    assert before.snapshot().put == {103: Retry(FINISHED, 0)}
    assert before.backlog.finished_early == [103]


def test_words_of_refusals() -> None:
    _, channel = started(b"a")
    taker, other = Taker(channel, ready=1), Taker(channel, ready=0)
    channel.serve()
    for settle in (channel.finish, channel.touch):
        assert settle(other, named(100)) == "client does not own message"  # type: ignore[arg-type]
        assert settle(other, named(999)) == "ID not in flight"  # type: ignore[arg-type]
    assert channel.touch(taker, named(100)) is None  # type: ignore[arg-type]
    assert channel.finish(taker, named(100)) is None  # type: ignore[arg-type]
    assert channel.snapshot().drop == set()  # it never had a row


def test_what_a_client_that_is_gone_had_waits_out_its_lease_without_its_body() -> None:
    _, channel = started(b"a", b"b")
    taker, idle = Taker(channel, ready=1), Taker(channel, ready=0)
    channel.serve()
    for one in (taker, idle):
        channel.unsubscribe(one)  # type: ignore[arg-type]
        channel.unsubscribe(one)  # type: ignore[arg-type]
    assert channel.holders == [taker.leases]
    assert channel.in_flight_count == 1
    (message,) = taker.leases.messages.values()
    assert message.body is None
    taker.leases.messages.clear()
    channel._timed_out(taker.leases, message)
    assert (channel.holders, channel.timeout_count, channel.depth) == ([], 1, 2)
    assert channel.snapshot().put == {100: Retry(0, 1)}
    heir = Taker(channel)
    channel.serve()
    turn()
    turn()
    assert heir.bodies == [b"b", b"read 100"]


def test_one_whose_body_is_to_be_read_is_neither_given_nor_asked_for_again_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, _ = started(b"a")
    channel = Channel(case.topic, case.port, channels.ChannelState(8, "d", 101, retries={100: Retry(0, 1)}), declared=True)  # type: ignore[arg-type]
    read, asked = case.port.bodies, list[list[int]]()
    monkeypatch.setattr(case.port, "bodies", lambda topic, seqs, most: asked.append(seqs) or read(topic, seqs, most))
    taker = Taker(channel)
    channel.snapshot()
    for _ in range(2):
        channel.serve()
        assert not channel.dirty
        assert not channel._serving._awaited
    turn()
    assert (taker.bodies, asked) == ([b"read 100"], [[100]])


def test_one_that_is_subscribed_keeps_its_place_when_all_that_it_had_has_timed_out() -> None:
    _, channel = started(b"a")
    taker = Taker(channel, ready=1)
    channel.serve()
    (message,) = taker.leases.messages.values()
    taker.leases.messages.clear()
    channel._timed_out(taker.leases, message)
    assert channel.holders == [taker.leases]


def test_what_is_too_old_is_dropped_where_it_waits_or_when_it_comes_back() -> None:
    case, channel = started()
    for ts in (10, 20, 30):
        case.publish(b"%d" % ts, ts=ts)
    taker = Taker(channel, ready=1)
    channel.serve()
    channel.requeue(taker, named(100), 0.0)  # type: ignore[arg-type]
    channel.snapshot()
    assert channel.expire(25) == 2
    assert (channel.expired_count, channel.depth) == (2, 1)
    save = channel.snapshot()
    assert (save.cursor, save.drop) == (102, {100})
    assert channel.expire(25) == 0
    assert not channel.dirty
    channel.serve()
    assert taker.bodies == [b"10", b"30"]
    channel.expire(35)
    channel.requeue(taker, named(102), 0.0)  # type: ignore[arg-type]
    channel.serve()
    assert (taker.bodies, channel.expired_count, channel.depth) == ([b"10", b"30"], 3, 0)


def test_what_the_log_lost_is_given_up_also_where_it_is_to_be_tried_again() -> None:
    _, channel = started(b"a", b"b", b"c")
    taker = Taker(channel, ready=2)
    channel.serve()
    channel.unsubscribe(taker)  # type: ignore[arg-type]
    for message in list(taker.leases.messages.values()):
        taker.leases.messages.clear()
        channel._timed_out(taker.leases, message)
    channel.correct(Correction(1, 100, 101))
    assert len(channel.retries.ready) == 2
    channel.correct(Correction(1, 100, 101, lost=True))
    assert [one.seq for one in channel.retries.ready] == [101]
    assert channel.snapshot().drop == {100}


def test_nothing_of_what_was_there_comes_after_it_was_emptied() -> None:
    case, channel = started(b"a", b"b", b"c", b"d")
    taker = Taker(channel, ready=3)
    channel.serve()
    channel.requeue(taker, named(100), 0.0)  # type: ignore[arg-type]
    channel.requeue(taker, named(101), 60.0)  # type: ignore[arg-type]
    gone = Taker(channel, ready=0)
    channel.unsubscribe(gone)  # type: ignore[arg-type]
    channel.empty()
    assert (channel.depth, channel.deferred, channel.in_flight_count) == (0, [], 0)
    assert channel.holders == [taker.leases]
    assert channel.finish(taker, named(102)) == "ID not in flight"  # type: ignore[arg-type]
    save = channel.snapshot()
    assert (save.cursor, list(save.inflight), save.put, save.drop, save.clear) == (104, [], {}, set(), True)
    case.publish(b"e")
    channel.serve()
    assert taker.bodies[-1] == b"e"


def test_a_save_that_failed_comes_with_the_next() -> None:
    case, channel = started(b"a", b"b")
    taker = Taker(channel)
    channel.serve()
    channel.requeue(taker, named(100), 0.0)  # type: ignore[arg-type]
    save: Any = channel.snapshot()
    assert not channel.dirty
    case.kinds()
    channel.unsaved(save)
    assert channel.dirty
    assert channel.snapshot().put == {100: Retry(0, 1)}
