"""A subscription on a real nsqd: what is counted, settled, drained and lost is what nsqd itself says."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.errors import AlreadySettled, BrokerError, BrokerUnreachable
from framework.testing.servers import Server, free_port
from framework.transports.nsq.urls import Options

pytestmark = pytest.mark.real


def fill(nsqd: Server, n: int) -> list[bytes]:
    bodies = [b"message %d" % i for i in range(n)]
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies))
    return bodies


def stats(nsqd: Server) -> dict:
    return nsqd.channel_stats("orders", "billing")


def test_every_message_arrives_once_and_is_finished_at_nsqd(nsqd, subscribe, tools):
    bodies = fill(nsqd, 5000)
    receiver = tools.Recorder(tools.finish_all)
    connection = subscribe(nsqd.address, receiver)
    connection.grant(500)
    tools.until(lambda: receiver.tally.finished == 5000)
    assert sorted(m.body for m in receiver.messages) == sorted(bodies)
    assert {m.attempts for m in receiver.messages} == {1}
    tools.until(lambda: stats(nsqd)["clients"][0]["finish_count"] == 5000)
    assert (stats(nsqd)["depth"], stats(nsqd)["in_flight_count"], stats(nsqd)["timeout_count"]) == (0, 0, 0)
    assert connection.in_flight == {}


def test_a_message_knows_where_it_came_from(nsqd, subscribe, tools):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    before = time.time()
    subscribe(nsqd.address, receiver).grant(1)
    (message,) = tools.until(lambda: receiver.messages)
    assert (message.topic, message.channel, message.node) == ("orders", "billing", nsqd.address)
    assert len(message.id) == 16
    assert abs(message.published.timestamp() - before) < 5
    assert not message.settled


def test_no_more_than_the_grant_is_in_flight(nsqd, subscribe, tools):
    fill(nsqd, 50)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(7)
    tools.until(lambda: len(receiver.messages) == 7)
    tools.finish_all(connection, receiver.messages[:3])
    tools.until(lambda: len(receiver.messages) == 10)
    assert stats(nsqd)["in_flight_count"] == len(connection.in_flight) == 7


def test_what_is_settled_outside_a_delivery_leaves_in_one_turn(nsqd, subscribe, tools):
    fill(nsqd, 10)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(10)
    tools.until(lambda: len(receiver.messages) == 10)
    tools.finish_all(connection, receiver.messages)
    assert receiver.tally.finished == 0
    assert connection.unsent() == 10 * 21
    gevent.sleep(0)
    assert (receiver.tally.finished, receiver.settled_calls, connection.unsent()) == (10, 1, 0)
    tools.until(lambda: stats(nsqd)["in_flight_count"] == 0)


def test_a_requeued_message_comes_again_with_its_attempts_counted(nsqd, subscribe, tools):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(1)
    (first,) = tools.until(lambda: receiver.messages)
    connection.requeue(first, 0)
    tools.until(lambda: len(receiver.messages) == 2)
    assert [m.attempts for m in receiver.messages] == [1, 2]
    assert first.settled
    assert receiver.tally.requeued == 1


@pytest.mark.parametrize("delay", [-5, 0.0015, 10**9, float("inf")])
def test_any_delay_is_one_that_nsqd_takes(nsqd, subscribe, tools, delay):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(1)
    (message,) = tools.until(lambda: receiver.messages)
    connection.requeue(message, delay)
    tools.until(lambda: stats(nsqd)["requeue_count"] == 1)
    assert receiver.ends == []


def test_nothing_is_settled_twice(nsqd, subscribe, tools):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(1)
    (message,) = tools.until(lambda: receiver.messages)
    connection.finish(message)
    for again in (lambda: connection.finish(message), lambda: connection.requeue(message, 0), lambda: connection.touch(message)):
        with pytest.raises(AlreadySettled, match=message.id.decode()):
            again()


@pytest.mark.slow  # nsqd looks for timeouts in a new channel only after up to five seconds
def test_touching_keeps_a_lease_beyond_its_length(nsqd, subscribe, tools):
    fill(nsqd, 2)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver, lease=1.0)
    assert connection.limits.lease == 1.0
    connection.grant(2)
    kept, left = tools.until(lambda: len(receiver.messages) == 2 and receiver.messages)
    connection.grant(0)
    while stats(nsqd)["timeout_count"] == 0:
        connection.touch(kept)
        assert list(connection.in_flight)[-1] is kept
        gevent.sleep(0.2)
    connection.finish(kept)
    connection.finish(left)
    tools.until(lambda: receiver.losses)
    assert [(m, "E_FIN_FAILED" in words) for m, words in receiver.losses] == [(None, True)]
    assert (receiver.tally.finished, receiver.tally.lease_lost) == (1, 1)


@pytest.mark.slow
def test_a_lease_that_is_gone_is_reported_and_counted_and_the_connection_lives(nsqd, subscribe, tools):
    fill(nsqd, 3)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver, lease=1.0)
    connection.grant(3)
    a, b, c = tools.until(lambda: len(receiver.messages) == 3 and list(receiver.messages))
    connection.grant(0)
    tools.until(lambda: stats(nsqd)["timeout_count"] == 3)
    connection.finish(a)
    connection.requeue(b, 0)
    connection.touch(c)
    tools.until(lambda: len(receiver.losses) == 3)
    assert sorted(words.split()[0] for _, words in receiver.losses) == ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"]
    assert [m for m, _ in receiver.losses if m is not None] == [c]
    assert c.settled
    assert (receiver.tally.finished, receiver.tally.requeued, receiver.tally.lease_lost) == (0, 0, 3)
    connection.grant(3)
    tools.until(lambda: len(receiver.messages) == 6)
    assert {m.attempts for m in receiver.messages[3:]} == {2}


def test_a_touch_and_a_finish_of_one_turn_arrive_in_that_order(nsqd, subscribe, tools):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(1)
    (message,) = tools.until(lambda: receiver.messages)
    connection.touch(message)
    connection.finish(message)
    tools.until(lambda: stats(nsqd)["clients"][0]["finish_count"] == 1)
    gevent.sleep(0.05)
    assert receiver.losses == []


def test_draining_stops_delivery_and_still_lets_messages_be_settled(nsqd, subscribe, tools):
    fill(nsqd, 100)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(10)
    tools.until(lambda: len(receiver.messages) == 10)
    connection.drain()
    connection.drain()  # a second CLS would be fatal
    connection.grant(50)
    tools.until(lambda: receiver.drained_calls == 1)
    tools.finish_all(connection, receiver.messages)
    tools.until(lambda: stats(nsqd)["in_flight_count"] == 0)
    assert (len(receiver.messages), stats(nsqd)["depth"], connection.granted) == (10, 90, 0)
    assert receiver.ends == []


def test_closing_sends_what_waits_and_counts_the_rest_as_lost(nsqd, subscribe, tools):
    fill(nsqd, 20)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(10)
    tools.until(lambda: len(receiver.messages) == 10)
    tools.finish_all(connection, receiver.messages[:6])
    connection.requeue(receiver.messages[6], 0)
    connection.close()
    connection.close()
    assert receiver.ends == [None]
    assert (receiver.tally.finished, receiver.tally.requeued, receiver.tally.lease_lost) == (6, 1, 3)
    tools.until(lambda: stats(nsqd)["client_count"] == 0)
    assert (stats(nsqd)["depth"], stats(nsqd)["in_flight_count"], stats(nsqd)["requeue_count"]) == (11, 3, 1)
    with pytest.raises(AlreadySettled):
        connection.finish(receiver.messages[9])


def test_closing_in_the_middle_of_a_delivery_waits_for_its_end(nsqd, subscribe, tools):
    fill(nsqd, 10)

    def finish_and_close(connection, batch):
        tools.finish_all(connection, batch)
        connection.close()
        assert receiver.ends == []

    receiver = tools.Recorder(finish_and_close)
    subscribe(nsqd.address, receiver).grant(10)
    tools.until(lambda: receiver.ends)
    assert receiver.ends == [None]
    tools.until(lambda: stats(nsqd)["client_count"] == 0)
    assert receiver.tally.finished == receiver.tally.received
    assert stats(nsqd)["depth"] + stats(nsqd)["in_flight_count"] == 10 - receiver.tally.finished


def test_many_finishes_before_a_close_all_reach_nsqd_though_more_was_on_its_way(nsqd, subscribe, tools):
    fill(nsqd, 5000)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(2500)
    tools.until(lambda: len(receiver.messages) >= 1000)
    tools.finish_all(connection, receiver.messages)  # each makes room for one more, that is never read
    finished = len(receiver.messages)
    connection.close()
    tools.until(lambda: stats(nsqd)["client_count"] == 0)
    assert receiver.tally.finished == finished
    assert stats(nsqd)["depth"] + stats(nsqd)["in_flight_count"] == 5000 - finished


def test_a_killed_nsqd_ends_the_connection_once(nsqd, subscribe, tools):
    fill(nsqd, 5)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    connection.grant(5)
    tools.until(lambda: len(receiver.messages) == 5)
    nsqd.kill()
    tools.until(lambda: receiver.ends)
    assert isinstance(receiver.ends[0], BrokerUnreachable)
    assert nsqd.address in str(receiver.ends[0])
    connection.close()
    connection.drain()
    connection.grant(5)
    gevent.sleep(0.01)
    assert len(receiver.ends) == 1
    assert receiver.tally.lease_lost == 5


def test_heartbeats_are_answered(nsqd, subscribe, tools):
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver, heartbeat=1.0)
    gevent.sleep(3.2)  # nsqd gives up after two intervals
    fill(nsqd, 1)
    connection.grant(1)
    tools.until(lambda: receiver.messages)
    assert receiver.ends == []


def test_the_limits_are_those_that_nsqd_grants(start_nsqd, subscribe, tools):
    nsqd = start_nsqd("--max-rdy-count=30", "--msg-timeout=7s", "--max-msg-timeout=90s")
    fill(nsqd, 100)
    receiver = tools.Recorder()
    connection = subscribe(nsqd.address, receiver)
    assert (connection.limits.lease, connection.limits.max_lease, connection.limits.max_grant) == (7.0, 90.0, 30)
    connection.grant(2500)
    tools.until(lambda: len(receiver.messages) == 30)
    assert (connection.granted, receiver.ends) == (30, [])
    client = stats(nsqd)["clients"][0]
    assert client["user_agent"].startswith("nsq-workers/")


def test_a_lease_that_nsqd_cannot_give_is_its_own_error(start_nsqd, subscribe, tools):
    nsqd = start_nsqd("--max-msg-timeout=90s")
    with pytest.raises(BrokerError, match="msg timeout") as caught:
        subscribe(nsqd.address, tools.Recorder(), lease=91.0)
    assert (caught.value.code, caught.value.fatal) == ("E_BAD_BODY", True)


def test_a_node_that_is_not_there_is_named():
    from framework.transports.nsq.connection import connect

    node = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable, match=node):
        connect(node, "orders", "billing", None, Options())


def test_deleting_the_channel_ends_the_connection(nsqd, subscribe, tools):
    fill(nsqd, 1)
    receiver = tools.Recorder()
    subscribe(nsqd.address, receiver).grant(1)
    tools.until(lambda: receiver.messages)
    nsqd.http("/channel/delete?topic=orders&channel=billing", b"")
    tools.until(lambda: receiver.ends)
    assert receiver.adds_up
