"""Connections and producers on a real RocketMQ: headers, tags, delays, leases while the hub stands, drains, wrong use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
from msgspec.structs import astuple

from framework.errors import BadMessage, BrokerRefuses, BrokerUnreachable, PublishError
from framework.testing.conformance.receiver import StrictReceiver
from framework.testing.detour import Detour
from framework.testing.rocketmq import real_rocketmq
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.rocketmq.administration import make_topics
from framework.transports.rocketmq.membership import Membership
from framework.transports.rocketmq.wire.handles import Handle
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_headers_are_properties_and_come_with_each_delivery(kit: Kit) -> None:
    held = kit.hold(kit.open())
    kit.publish(b"with", headers={"traceparent": "grüße", "KEYS": "k1", "empty": ""})
    until(lambda: held.taken)
    assert dict(held.taken[0].headers) == {"traceparent": "grüße", "KEYS": "k1", "empty": ""}
    held.connection.requeue(held.taken[0], 0.0)
    until(lambda: len(held.taken) == 2)
    first, second = held.taken
    assert (second.headers, second.id, second.timestamp, second.attempts) == (first.headers, first.id, first.timestamp, 2)
    held.connection.finish(second)


def test_a_worker_that_comes_back_leaves_to_others_what_they_have(kit: Kit) -> None:
    """In KV mode a broker takes a PULL in a group's name for where its next POP begins, and who comes back looks whether
    what it read is still there: what others had read since came again, and what had not come yet was passed over at times."""
    before, here = kit.open("&mode=pop&lease=60s"), kit.open("&mode=pop&lease=60s")
    gone = kit.hold(before, grant=100)
    kit.spread(*(b"early %d" % number for number in range(40)))
    until(lambda: len(gone.taken) == 40)
    for message in gone.taken:
        gone.connection.finish(message)
    gone.connection.lost(BrokerUnreachable("broken"))  # type: ignore[attr-defined]
    until(lambda: gone.receiver.closings)
    other = kit.hold(here, grant=40)
    kit.spread(*(b"late %d" % number for number in range(40)))
    until(lambda: len(other.taken) == 40)
    again = kit.hold(before, grant=100)
    kit.spread(*(b"last %d" % number for number in range(40)))
    until(lambda: sum(body.startswith(b"last") for body in again.bodies) == 40)
    assert len(again.taken) == 40
    for held in other, again:
        for message in held.taken:
            held.connection.finish(message)


def test_a_worker_that_has_read_nothing_leaves_to_others_what_they_have(kit: Kit) -> None:
    """It looks whether each queue has what its group has read, and nothing of that was acknowledged yet."""
    held = kit.hold(kit.open("&mode=pop&lease=60s"), grant=100)
    kit.spread(*(b"held %d" % number for number in range(40)))
    until(lambda: len(held.taken) == 40)
    others = [kit.hold(kit.open("&mode=pop&lease=60s"), grant=100) for _ in range(3)]
    kit.spread(*(b"last %d" % number for number in range(40)))
    until(lambda: sum(body.startswith(b"last") for one in (held, *others) for body in one.bodies) == 40)
    assert sum(len(one.taken) for one in (held, *others)) == 80
    for one in held, *others:
        for message in one.taken:
            one.connection.finish(message)


@pytest.mark.parametrize("name", ["DELAY", "UNIQ_KEY", "TIMER_DELIVER_MS", "__RMQ.TRANSIENT.X"])
def test_a_header_that_means_something_to_the_broker_is_refused(kit: Kit, name: str) -> None:
    with pytest.raises(BadMessage, match=f"uses the header '{name}' itself"):
        kit.publish(b"x", headers={name: "1"})


def test_headers_and_bodies_that_are_too_large_are_refused_before_anything_is_sent(kit: Kit) -> None:
    with pytest.raises(BadMessage, match="headers of 40003 bytes"):
        kit.publish(b"x", headers={"a": "x" * 40_000})
    with pytest.raises(BadMessage, match="maxMessageSize"):
        kit.publish(b"x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(BadMessage, match="is empty"):
        kit.publish(b"")


def test_only_messages_with_a_tag_that_was_asked_for_come(kit: Kit) -> None:
    held = kit.hold(kit.open("&tags=new||old"))
    for tag in ("new", "other", "old"):
        kit.publish(tag.encode(), headers={"TAGS": tag})
    until(lambda: len(held.taken) == 2)
    assert sorted(held.bodies) == [b"new", b"old"]
    for message in held.taken:
        held.connection.finish(message)


def test_a_namespace_keeps_topics_and_channels_apart(kit: Kit) -> None:
    inside, outside = kit.open("&namespace=shop"), kit.open()
    held = kit.hold(inside)
    producer = inside.producer()
    producer.publish(kit.topic, [b"inside"])
    producer.close()
    until(lambda: held.taken)
    held.connection.finish(held.taken[0])
    until(held.balanced)
    assert kit.topic in inside.topics()
    assert kit.topic not in outside.topics()
    assert inside.channels(kit.topic) == {"billing"}


def test_a_publish_may_be_delayed(kit: Kit) -> None:
    held = kit.hold(kit.open())
    began = time.monotonic()
    kit.publish(b"later", delay=1.0)
    until(lambda: held.taken)
    assert time.monotonic() - began >= 0.95
    held.connection.finish(held.taken[0])


def test_a_lease_is_kept_while_the_hub_stands_still_for_longer_than_it(kit: Kit) -> None:
    held = kit.hold(kit.open("&lease=2s"), grant=1)
    kit.publish(b"slow")
    (message,) = until(lambda: held.taken)
    rescuable, until_then = held.connection.rescuable, time.monotonic() + 4.0
    assert rescuable is not None
    while time.monotonic() < until_then:  # as the guardian does, and the hub does not turn
        rescuable.rescue(time.monotonic(), ())
        time.sleep(0.05)
    rescuable.rescued()
    rival = kit.hold(kit.open("&lease=2s"))
    assert not message.settled
    held.connection.finish(message)
    until(held.balanced)
    assert (held.tally.finished, held.tally.lease_lost, rival.taken) == (1, 0, [])


def test_a_lease_that_nobody_keeps_is_counted_as_lost_and_a_rival_has_the_message(kit: Kit) -> None:
    held = kit.hold(kit.open("&lease=1s"), grant=1)
    kit.publish(b"wanted")
    until(lambda: held.taken)
    held.grant(0)
    rival = kit.hold(kit.open("&lease=1s"))
    until(lambda: rival.taken)
    rival.connection.finish(rival.taken[0])
    until(lambda: held.tally.lease_lost == 1)
    assert held.receiver.lost_messages == [held.taken[0]]


def test_a_touch_and_the_finish_right_behind_it_leave_nothing_behind(kit: Kit) -> None:
    held = kit.hold(kit.open("&lease=1s"))
    kit.publish(*(b"%d" % number for number in range(20)))
    until(lambda: len(held.taken) == 10)
    for _ in range(2):
        for message in list(held.connection.in_flight):
            held.connection.touch(message)
            held.connection.finish(message)
        until(lambda: len(held.taken) == 20)
    until(held.balanced)
    rival = kit.hold(kit.open("&lease=1s"))
    gevent.sleep(2.0)  # a lease, and as late as the broker is
    assert (held.tally.finished, held.tally.lease_lost, rival.taken) == (20, 0, [])


def test_a_drain_reads_out_what_waits_and_loses_nothing(kit: Kit) -> None:
    for number in range(5):
        held = kit.hold(kit.open())
        kit.publish(*(b"%d-%d" % (number, each) for each in range(30)))
        held.connection.drain()
        until(lambda held=held: held.receiver.drains, held.connection.limits.goodbye)
        held.connection.close()
        until(lambda held=held: held.receiver.closings)
        assert held.tally.lease_lost == 0
    last = kit.hold(kit.open(), grant=500)
    until(lambda: len(set(last.bodies)) == 150)
    for message in last.taken:
        last.connection.finish(message)


def test_name_servers_that_do_not_answer_are_passed_over(kit: Kit) -> None:
    gone = f"127.0.0.1:{free_port()}"
    (transport,) = open_transports([f"rocketmq://{gone},{kit.server.address}"])
    assert [info.node for info in transport.probe()] == [kit.server.name]
    (nowhere,) = open_transports([f"rocketmq://{gone}"])
    with pytest.raises(BrokerUnreachable, match=f"{gone} cannot be reached"):
        nowhere.probe()


def test_tls_is_spoken_to_name_servers_and_brokers_whose_certificate_is_trusted(kit: Kit) -> None:
    trusted = f"rocketmq+tls://{kit.server.address}?poll=200ms&tls_ca={kit.server.data}/ca-tests.pem"
    (transport,) = open_transports([trusted])
    producer = transport.producer()
    held = kit.hold(transport)
    producer.publish(kit.topic, [b"secret"])
    until(lambda: held.taken)
    held.connection.finish(held.taken[0])
    until(held.balanced)
    producer.close()


def test_a_certificate_that_is_not_trusted_is_refused_with_the_option_that_names_it(kit: Kit) -> None:
    (transport,) = open_transports([f"rocketmq+tls://{kit.server.address}"])
    with pytest.raises(BrokerRefuses, match=r"not trusted: .*; tls_ca= names a file to trust"):
        transport.probe()


def test_a_worker_handles_what_the_command_line_publishes(kit: Kit, tmp_path: Path) -> None:
    url = f"rocketmq://{kit.server.address}?poll=200ms"
    journal = tmp_path / "journal"
    code = f"""
from framework import handler
@handler({kit.topic!r}, "billing")
def bill(order: dict) -> None:
    with open({str(journal)!r}, "a") as file:
        file.write(f"{{order['id']}}\\n")
"""
    (tmp_path / "shop.py").write_text(code)
    run = [sys.executable, "-m", "framework.cli"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    worker = subprocess.Popen([*run, "run", "shop", "--broker", url], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        publish = [*run, "publish", kit.topic, "--broker", url]
        lines = "".join(f'{{"id": {number}}}\n' for number in range(3))
        subprocess.run(publish, input=lines, text=True, env=environment, cwd=tmp_path, check=True, capture_output=True)
        until(lambda: journal.exists() and len(journal.read_text().split()) == 3, 60.0)
        worker.terminate()
        _, log = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert (worker.returncode, sorted(journal.read_text().split())) == (0, ["0", "1", "2"]), log.decode()


def test_a_topic_is_made_also_beside_one_that_another_worker_has_just_made(kit: Kit) -> None:
    """Of several in one request 5.3.3 makes none behind one that is there, and says that all is well. Two handlers of each
    topic asked for it at the same time, and those of the second topic waited for ever."""
    first, second = f"{kit.topic_there}-1", f"{kit.topic_there}-2"
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        assert make_topics(session, [first]) == {}
        assert make_topics(session, [first, second]) == {}
    until(lambda: kit.open().discover(f"{kit.topic}-2", "billing"))


def test_a_topic_that_somebody_has_closed_stays_closed_and_as_it_is(kit: Kit) -> None:
    """It was taken for one that is not there, and opened."""
    kit.closed_stays_closed()


def test_a_name_server_that_no_broker_has_told_of_itself_yet_is_no_obstacle_beside_one_that_knows(
    kit: Kit, tmp_path: Path
) -> None:
    """As one is for some seconds after its start: all publishes failed, and a worker ended after half a minute."""
    fresh = real_rocketmq(tmp_path).name_server
    fresh.start()
    try:
        (transport,) = open_transports([f"rocketmq://{fresh.address},{kit.server.address}"])
        producer = transport.producer()
        producer.publish(kit.topic, [b"x"], timeout=20.0)
        assert transport.discover(kit.topic, "billing") == {kit.server.name}
        producer.close()
        transport.close()
    finally:
        fresh.kill()


def test_a_route_to_an_address_where_nobody_is_is_said_with_both_names(kit: Kit) -> None:
    kit.open().ensure(kit.topic, ["billing"])
    nowhere = f"127.0.0.1:{free_port()}"
    detour = Detour(kit.server.address)
    detour.ways = {kit.server.broker.address: nowhere}
    (transport,) = open_transports([f"rocketmq://{detour.address}"])
    with pytest.raises(BrokerUnreachable, match=f"broker-a.*{nowhere} cannot be reached"):
        transport.probe()
    producer = transport.producer()
    with pytest.raises(PublishError, match=f"{nowhere} cannot be reached") as refused:
        producer.publish(kit.topic, [b"x"], timeout=2.0)  # on a busy machine its last try has time for an answer
    assert refused.value.stored is False
    producer.close()
    transport.close()
    detour.stop()


class Garbage(Handle):
    def __str__(self) -> str:
        return "no handle at all"


def test_a_broker_that_refuses_a_handle_costs_no_connection(kit: Kit) -> None:
    """Which is in doubt, and counted as a lease that was lost."""
    held = kit.hold(kit.open("&lease=2s"))
    kit.publish(b"spoilt")
    until(lambda: held.taken)
    connection: Any = held.connection
    one = connection._deliveries[held.taken[0]]
    one.first = Garbage(*astuple(one.handle))
    held.connection.finish(held.taken[0])
    until(lambda: held.tally.lease_lost == 1)
    until(lambda: len(held.taken) == 2)
    held.connection.finish(held.taken[1])
    until(held.balanced)
    assert (held.tally.finished, held.receiver.closings) == (1, 0)


def test_a_session_that_ends_while_a_connection_is_made_has_no_connection_that_nobody_tells(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, gone = StrictReceiver(), BrokerUnreachable("it is gone")
    transport = kit.open()
    transport.ensure(kit.topic, ["billing"])
    look = transport.looked_at

    def ends(master: Any) -> Any:
        found = look(master)
        for session in list(transport._sessions._users):
            session.end(gone)
        return found

    monkeypatch.setattr(transport, "looked_at", ends)
    with pytest.raises(BrokerUnreachable, match="it is gone"):
        transport.connect(kit.server.name, kit.topic, "billing", receiver)

    by_pull = kit.open("&mode=pull")
    monkeypatch.setattr(Membership, "await_first", lambda member: member._session.end(gone))
    with pytest.raises(BrokerUnreachable, match="it is gone"):
        by_pull.connect(kit.server.name, kit.topic, "billing", receiver)
    assert receiver.closings == 0, "whom nobody has is not closed"
    assert (transport._sessions._users, by_pull._sessions._users) == ({}, {})


def test_a_message_whose_tag_has_the_same_hash_is_passed_over_for_good(kit: Kit) -> None:
    """A broker compares the hashes of tags, as Java's clients know."""
    held = kit.hold(kit.open("&tags=Aa||old&lease=2s"))
    for tag in ("Aa", "BB", "other", "old"):
        kit.publish(tag.encode(), headers={"TAGS": tag})
    until(lambda: len(held.taken) >= 2)
    for message in list(held.connection.in_flight):
        held.connection.finish(message)
    gevent.sleep(4.0)
    assert sorted(held.bodies) == [b"Aa", b"old"]
    assert sum(kit.open().backlog(kit.topic, "billing").values()) == 0
