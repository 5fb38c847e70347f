"""The memory transport under the whole engine: what is published is handled, and what was asked of the broker is done."""

from __future__ import annotations

import threading
import time

import gevent
import pytest
from gevent.event import Event

from framework.engine.ledger import Ledger
from framework.errors import AlreadySettled, BadMessage, BadName, BadSetting, BrokerUnreachable, PublishError, Retry
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports import open_transports
from framework.transports.contract import Limits
from framework.transports.memory import MemoryBroker, add, forget, named


def test_what_is_published_is_handled_and_finished(run, publish):
    seen = []
    worker = run(lambda message: seen.append((message.body, message.attempts)))
    publish("orders", b"one", b"two")
    worker.until(lambda: len(seen) == 2)
    assert worker.stop() == {"received": 2, "finished": 2, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert seen == [(b"one", 1), (b"two", 1)]


def test_every_channel_gets_its_own_copy_and_its_handlers_share_it(run, publish):
    billed, audited = [], []
    run(lambda message: billed.append(message.body))
    run(lambda message: billed.append(message.body))
    worker = run(lambda message: audited.append(message.body), on=("orders", "audit"))
    publish("orders", *[b"%d" % n for n in range(100)])
    worker.until(lambda: len(billed) == len(audited) == 100)
    assert len(set(billed)) == len(set(audited)) == 100


def test_what_comes_before_the_first_channel_waits_in_the_topic_and_is_the_first_channels(run, publish, broker):
    publish("orders", b"early")
    publish("orders", b"later", delay=60)
    assert broker.waiting("orders") == [b"early", b"later"]
    first, second = [], []
    worker = run(lambda message: first.append(message.body))
    worker.until(lambda: first == [b"early"])
    run(lambda message: second.append(message.body), on=("orders", "audit"))
    broker.clock.advance(60)
    worker.until(lambda: first == [b"early", b"later"])
    assert second == []


def test_an_ephemeral_channel_ends_with_its_last_subscriber(run, publish, broker, transport):
    worker = run(lambda message: None, on=("orders", "tail#ephemeral"))
    assert transport.channels("orders") == {"tail#ephemeral"}
    worker.stop()
    assert transport.channels("orders") == set()


def test_what_fails_comes_again_with_one_more_attempt_when_its_delay_is_over(run, publish, broker):
    attempts = []

    def function(message):
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise Retry(delay=3600)

    worker = run(function)
    publish("orders", b"x")
    for tries in (1, 2, 3):
        worker.until(lambda tries=tries: len(attempts) == tries and not broker.in_flight("orders"))
        broker.clock.advance(3599)
        gevent.sleep(0.01)
        assert len(attempts) == tries
        broker.clock.advance(1)
    assert attempts == [1, 2, 3]
    assert worker.stop()["requeued"] == 2


@pytest.mark.parametrize("moved", [0, 1000])
def test_between_two_moves_of_a_test_the_clock_is_real(run, publish, broker, moved):
    broker.clock.advance(moved)
    seen = []
    worker = run(lambda message: seen.append(message.body))
    publish("orders", b"later", delay=0.05)
    publish("orders", b"now")
    worker.until(lambda: len(seen) == 2)
    assert seen == [b"now", b"later"]


def test_one_at_a_time_messages_come_in_the_order_of_storing_and_what_is_given_back_keeps_its_place(run, publish):
    seen = []

    def function(message):
        seen.append(message.body)
        if message.body == b"2" and message.attempts < 3:
            raise Retry(delay=0)

    publish("orders", *[b"%d" % n for n in range(5)])
    worker = run(function, max_in_flight=1)
    worker.until(lambda: len(seen) == 7)
    assert seen == [b"0", b"1", b"2", b"2", b"2", b"3", b"4"]


def test_the_most_urgent_is_delivered_first_and_equals_in_their_order(run, publish):
    seen = []
    for body, priority in (
        (b"usual 1", None),
        (b"low", 10**9),
        (b"high 1", 5),
        (b"usual 2", None),
        (b"first", 0),
        (b"high 2", 5),
    ):
        publish("orders", body, priority=priority)
    worker = run(lambda message: seen.append(message.body), max_in_flight=1)
    worker.until(lambda: len(seen) == 6)
    assert seen == [b"first", b"high 1", b"high 2", b"usual 1", b"usual 2", b"low"]


def test_the_lease_of_a_long_call_is_kept_by_touching(run, publish, broker):
    broker.limits = Limits(lease=0.5, max_lease=60.0, max_grant=100)
    calls = []

    def function(message):
        calls.append(message.attempts)
        gevent.sleep(1.5)

    worker = run(function, timeout=10)
    publish("orders", b"x")
    worker.until(lambda: worker.ledger.finished == 1)
    assert calls == [1]


def test_touching_prolongs_a_lease_no_longer_than_the_longest(run, publish, broker):
    broker.limits = Limits(lease=60.0, max_lease=100.0, max_grant=100)
    gate, attempts = Event(), []

    def function(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            for seconds in (50, 45):  # 95 s since it was delivered, of 100
                broker.clock.advance(seconds)
                message.touch()
                gevent.sleep(0.01)
            gate.wait()

    worker = run(function, timeout=100)
    publish("orders", b"x")
    gevent.sleep(0.05)
    assert attempts == [1]
    broker.clock.advance(6)
    worker.until(lambda: attempts == [1, 2])
    gate.set()
    worker.until(lambda: not broker.in_flight("orders"))
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_stopping_gives_back_what_has_not_started_and_finishes_what_has(run, publish, broker):
    gate, started = Event(), []

    def function(message):
        started.append(message.body)
        gate.wait()

    worker = run(function, concurrency=1, max_in_flight=10)
    publish("orders", *[b"%d" % n for n in range(10)])
    worker.until(lambda: started)
    worker.supervisor.stop()
    worker.until(lambda: len(broker.waiting("orders")) == 9)
    gate.set()
    ledger = worker.stop()
    assert (ledger["finished"], ledger["lease_lost"]) == (1, 0)
    assert broker.waiting("orders", "billing") == [b"%d" % n for n in range(1, 10)]


def test_a_connection_that_is_drained_says_so_and_gets_no_more(publish, transport, broker):
    heard = []

    class Receiver:
        tally = Ledger()

        def deliver(self, connection, batch):
            heard.append("message")

        def drained(self, connection):
            heard.append("drained")

        def closed(self, connection, error):
            heard.append(("closed", error))

    connection = transport.connect(f"{broker.name}:1", "orders", "billing", Receiver())
    connection.grant(5)
    connection.drain()
    publish("orders", b"x")
    deadline = time.monotonic() + 20
    while heard != ["drained"] and time.monotonic() < deadline:
        gevent.sleep(0.001)
    connection.grant(5)
    gevent.sleep(0.01)
    connection.close()
    assert heard == ["drained", ("closed", None)]
    assert connection.granted == 0
    assert broker.waiting("orders", "billing") == [b"x"]


@pytest.mark.parametrize("within", ["deliver", "settled", "drained"])
def test_a_connection_that_is_closed_by_whom_it_tells_something_keeps_nothing(publish, transport, broker, within):
    class Closing(StrictReceiver):
        def heard(self, what, connection):
            if what == within:
                connection.close()

        def deliver(self, connection, batch):
            super().deliver(connection, batch)
            self.heard("deliver", connection)

        def settled(self, connection):
            super().settled(connection)
            self.heard("settled", connection)

        def drained(self, connection):
            super().drained(connection)
            self.heard("drained", connection)

    publish("orders", *[b"%d" % n for n in range(5)])
    receiver = Closing()
    receiver.most_granted = 2
    connection = transport.connect(f"{broker.name}:1", "orders", "billing", receiver)
    connection.grant(2)
    gevent.sleep(0.01)
    if within != "deliver":
        connection.finish(receiver.taken[0])
        connection.drain() if within == "drained" else None
        gevent.sleep(0.01)
    assert (receiver.wrongs, receiver.closings, broker.in_flight("orders"), len(receiver.taken)) == ([], 1, 0, 2)
    assert broker.waiting("orders", "billing") == [b"%d" % n for n in range(within != "deliver", 5)]


def test_native_threads_may_publish_to_a_handler_of_another_thread(run, publish, broker):
    seen = []
    worker = run(lambda message: seen.append(message.body))

    def some(name):
        producer = open_transports([broker.url])[0].producer()
        for n in range(500):
            producer.publish("orders", [b"%d %d" % (name, n)])

    threads = [threading.Thread(target=some, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    worker.until(lambda: len(seen) == 2000)
    assert len(set(seen)) == 2000
    for thread in threads:
        thread.join()


def test_a_hub_that_sleeps_in_another_thread_is_woken_by_a_publish(publish, transport, broker):
    asleep, delivered = threading.Event(), threading.Event()

    class Receiver:
        tally = Ledger()

        def deliver(self, connection, batch):
            delivered.set()

    def sleep():
        transport.connect(f"{broker.name}:1", "orders", "billing", Receiver()).grant(1)
        gevent.sleep(0.01)
        gevent.get_hub().loop.run_callback(asleep.set)
        gevent.sleep(60)  # nothing else would turn this hub

    threading.Thread(target=sleep, daemon=True).start()
    assert asleep.wait(20)
    publish("orders", b"x")
    assert delivered.wait(20)


def test_what_a_thread_held_that_died_with_its_hub_is_delivered_to_others(run, publish, transport, broker):
    class Deaf:
        tally = Ledger()

        def deliver(self, connection, batch):
            pass

    def subscribe_and_die():
        transport.connect(f"{broker.name}:1", "orders", "billing", Deaf()).grant(5)
        gevent.sleep(0.01)
        gevent.get_hub().destroy(destroy_loop=True)

    publish("orders", b"x")
    thread = threading.Thread(target=subscribe_and_die)
    thread.start()
    thread.join()
    assert broker.in_flight("orders") == 1
    seen = []
    worker = run(lambda message: seen.append(message.body))
    publish("orders", b"y")
    worker.until(lambda: sorted(seen) == [b"x", b"y"])


def test_a_message_can_be_settled_once(run, publish):
    errors = []

    def function(message):
        connection = message.connection
        connection.finish(message)
        for again in (connection.finish, connection.touch, lambda one: connection.requeue(one, 0)):
            try:
                again(message)
            except AlreadySettled as error:
                errors.append(error)

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: len(errors) == 3)
    assert worker.stop()["finished"] == 1


def test_what_the_transport_says_of_itself(run, publish, broker, transport):
    second = broker.add_node()
    nodes = {f"{broker.name}:1", f"{broker.name}:2"}
    assert transport.discover("orders") == nodes
    assert {info.node for info in transport.probe()} == nodes
    assert (transport.topics(), transport.channels("orders"), transport.backlog("orders", "billing")) == (set(), set(), {})
    publish("orders", b"1", b"2")
    publish("orders", b"3", delay=5)
    assert transport.topics() == {"orders"}
    assert transport.backlog("orders", "billing") == {f"{broker.name}:1": 3}
    run(lambda message: None, on=("orders", "audit"))
    assert transport.channels("orders") == {"audit"}
    second.stop()
    with pytest.raises(BrokerUnreachable, match=f"{second.name} refused the connection"):
        transport.probe()


def test_one_name_is_one_broker_and_another_is_another(broker, publish):
    publish("orders", b"x")
    assert named(broker.name) is broker
    other = named(f"{broker.name}.other")
    assert other.waiting("orders") == []
    both = open_transports([broker.url, other.url])[0]
    assert len(both.discover("orders")) == 2
    broker.stop()
    both.producer().publish("orders", [b"y"])
    assert other.waiting("orders") == [b"y"]


@pytest.mark.parametrize("url", ["memory://a b", "memory://host:1/x", "memory://name?lease=5"])
def test_a_url_with_more_than_a_name_is_refused(url):
    with pytest.raises(BadSetting, match="write memory:// or memory://name, with a name of"):
        open_transports([url])


@pytest.mark.parametrize(
    ("topic", "bodies", "options", "error", "words"),
    [
        ("or ders", [b"x"], {}, BadName, "topic name 'or ders' is not valid"),
        ("orders", [b"x", b""], {}, BadMessage, "message 2 of 2 is empty"),
        ("orders", [b"x", b"y" * (1 << 20), b"z" * ((1 << 20) + 1)], {}, BadMessage, "message 3 of 3 has 1048577 bytes"),
        ("orders", ["x"], {}, BadMessage, "message 1 of 1 is str, not bytes; encode it"),
        ("orders", [b"x"], {"delay": 4e7}, BadMessage, "a delay of 40000000.0 s is out of range, give 0 to 31622400 s"),
        ("orders", [b"x"], {"delay": -1}, BadMessage, "a delay of -1 s is out of range"),
        ("orders", [b"x"], {"priority": -1}, BadMessage, "priority=-1 is out of range, give 0 .most urgent. to 4294967295"),
    ],
)
@pytest.mark.parametrize("verb", ["publish", "publish_each"])
def test_what_cannot_be_published_is_refused_and_nothing_is_stored(  # noqa: PLR0917
    transport, verb, topic, bodies, options, error, words
):
    with pytest.raises(error, match=words):
        getattr(transport.producer(), verb)(topic, bodies, **options)
    assert transport.topics() == set()


@pytest.mark.parametrize("verb", ["publish", "publish_each"])
def test_of_several_brokers_the_first_that_is_up_stores_what_is_published(verb, broker):
    other = named(f"{broker.name}-other")
    (both,) = open_transports([broker.url, other.url])
    publish = getattr(both.producer(), verb)
    publish("orders", [b"1"])
    for node in broker.nodes.values():
        node.up = False
    publish("orders", [b"2"])
    assert (broker.waiting("orders"), other.waiting("orders")) == ([b"1"], [b"2"])
    forget(other.name)


def test_a_closed_producer_stores_nothing_more(transport, broker):
    producer = transport.producer()
    producer.close()
    with pytest.raises(PublishError, match="the producer is closed: make a new one"):
        producer.publish("orders", [b"x"])
    assert broker.waiting("orders") == []


def test_a_name_is_one_brokers_until_that_is_forgotten(broker):
    with pytest.raises(ValueError, match=rf"there is a broker memory://{broker.name} already: take another name"):
        add(MemoryBroker(broker.name))
    assert named(broker.name) is broker
    add(broker)  # itself is no other
    forget(broker.name)
    other = MemoryBroker(broker.name)
    add(other)
    assert named(broker.name) is other
