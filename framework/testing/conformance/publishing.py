"""Publishing: deferral, priorities, order, sizes, names, threads, and more than one node. What is refused sends nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter

import gevent
import pytest

from framework import names
from framework.errors import BadMessage, BadName, PublishError, Retry, WrongUse
from framework.headers import NONE
from framework.message import Message
from framework.testing.conformance.bench import Bench, Cases, bodies, longest_name
from framework.testing.conformance.subject import Subject
from framework.transports.contract import HeadsEach


class Publishing(Cases):
    """What a publisher may rely on."""

    # -- when, and in which order

    def test_a_deferred_message_comes_after_its_delay_and_not_before(self, bench: Bench) -> None:
        if bench.capabilities.max_defer < 1:
            with pytest.raises(WrongUse, match="delay"):
                bench.publisher().publish(bench.topic, b"later", delay=1.0)
            return
        calls: list[float] = []
        worker = bench.ready(lambda message: calls.append(time.monotonic()))
        began = time.monotonic()
        bench.publisher().publish(bench.topic, b"later", delay=1.0)
        bench.until(lambda: worker.ledger.finished == 1)
        assert calls[0] - began >= 0.95

    @pytest.mark.parametrize("delay", [-1, float("nan"), "soon", None])
    def test_a_delay_that_is_none_is_refused_and_nothing_is_sent(self, bench: Bench, delay: object) -> None:
        with pytest.raises(WrongUse, match="delay"):
            bench.publisher().publish(bench.topic, b"x", delay=delay)  # type: ignore[arg-type]
        assert bench.left() == 0

    def test_a_delay_over_the_longest_is_refused_and_nothing_is_sent(self, bench: Bench) -> None:
        longest = bench.capabilities.max_defer
        with pytest.raises(WrongUse, match="delay"):
            bench.publisher().publish(bench.topic, b"x", delay=longest + 1)
        assert bench.left() == 0

    def test_a_retry_over_the_longest_delay_costs_no_connection_and_no_other_message(self, bench: Bench) -> None:
        longest = max(bench.capabilities.max_requeue, bench.capabilities.max_defer)

        def handle(message: Message) -> None:
            if message.body == b"far":
                raise Retry("next year", delay=longest + 1e6)

        worker = bench.ready(handle, max_in_flight=1)
        if not longest:
            pytest.skip("this broker defers nothing, so it would come again at once, for ever")
        bench.publish(b"far", *bodies(10))
        bench.until(lambda: worker.ledger.settled == 11)
        assert worker.stop().lease_lost == 0
        assert [one.topic for one in worker.connections].count(bench.topic) == 1

    def test_urgent_messages_come_first_or_a_priority_is_refused(self, bench: Bench) -> None:
        publisher = bench.publisher()
        if not bench.capabilities.priority:
            with pytest.raises(WrongUse, match="priority"):
                publisher.publish(bench.topic, b"x", priority=1)
            assert bench.left() == 0
            return
        seen: list[bytes] = []
        for priority in (30, 10, 20):
            publisher.publish(bench.topic, b"%d" % priority, priority=priority)
        worker = bench.work(lambda message: seen.append(message.body), concurrency=1, max_in_flight=1)
        bench.until(lambda: worker.ledger.finished == 3)
        assert seen == [b"10", b"20", b"30"]

    # -- what travels beside the body

    @pytest.mark.parametrize("verb", ["publish", "publish_many", "publish_each"])
    def test_headers_come_with_each_message_whatever_its_body_or_are_refused(self, bench: Bench, verb: str) -> None:
        headers = {"traceparent": "00-4bf92f3577b34da6-01", "Shop.Name": "Größe: 42 ✓", "x": ""}
        sent = [b"\r\n\r\n", b'{"a": 1}\nb\x00', b"NATS/1.0\r\n"]
        publisher = bench.publisher()

        def publish(**given: dict[str, str]) -> None:
            if verb == "publish":
                for body in sent:
                    publisher.publish(bench.topic, body, **given)  # type: ignore[arg-type]
            else:
                getattr(publisher, verb)(bench.topic, sent, **given)

        if not bench.capabilities.headers:
            with pytest.raises(WrongUse, match="headers"):
                publish(headers=headers)
            assert bench.left() == 0
            return
        seen: list[tuple[bytes, dict[str, str]]] = []
        worker = bench.work(lambda message: seen.append((message.body, dict(message.headers))))
        publish(headers=headers)
        publish()
        bench.until(lambda: worker.ledger.finished == 2 * len(sent))
        key = lambda one: (one[0], len(one[1]))  # noqa: E731
        assert sorted(seen, key=key) == sorted([(body, each) for body in sent for each in (headers, {})], key=key)

    def test_of_many_messages_each_has_its_own_headers_where_the_producer_takes_them(self, bench: Bench) -> None:
        (transport,) = bench.publisher()._transports
        producer = transport.producer()
        if not transport.capabilities.headers or not isinstance(producer, HeadsEach):
            return  # whoever wants it publishes one by one
        seen: list[tuple[bytes, dict[str, str]]] = []
        worker = bench.ready(lambda message: seen.append((message.body, dict(message.headers))))
        sent = [(b"%d" % n, {"key": f"ż-{n}"} if n % 3 else {}) for n in range(300)]
        producer.publish_headed(bench.topic, [body for body, _ in sent], [each for _, each in sent])
        bench.until(lambda: worker.ledger.finished == len(sent))
        assert sorted(seen) == sorted(sent)
        producer.close()

    def test_headers_come_again_with_their_message_and_one_without_has_the_empty_ones_of_all(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        seen: list[Message] = []

        def handle(message: Message) -> None:
            seen.append(message)
            if len(seen) == 1:
                raise Retry("again", delay=0)

        worker = bench.work(handle)
        headers = {"trace": "1"} if bench.capabilities.headers else {}
        bench.publisher().publish(bench.topic, b"x", headers=headers)
        bench.until(lambda: worker.ledger.finished == 1)
        assert [dict(message.headers) for message in seen] == [headers, headers]
        bench.publish(b"plain")
        bench.until(lambda: worker.ledger.finished == 2)
        assert seen[2].headers is NONE

    @pytest.mark.parametrize("headers", [{"a b": "1"}, {"": "1"}, {"a": "1\r\nb: 2"}, {"a:": "1"}, {"a": 1}, ["a"]])
    def test_headers_that_not_every_broker_could_carry_are_refused_and_nothing_is_sent(
        self, bench: Bench, headers: object
    ) -> None:
        with pytest.raises(WrongUse, match="headers"):
            bench.publisher().publish(bench.topic, b"x", headers=headers)  # type: ignore[arg-type]
        assert bench.left() == 0

    # -- what is refused

    def test_an_empty_body_is_refused_and_nothing_of_its_request_is_sent(self, bench: Bench) -> None:
        producer = bench.open().producer()
        with pytest.raises(BadMessage, match="empty"):
            bench.publisher().publish(bench.topic, b"")
        with pytest.raises(BadMessage, match="empty"):
            producer.publish(bench.topic, [b"before", b"", b"after"])
        with pytest.raises(BadMessage, match="empty"):
            producer.publish_each(bench.topic, [b"before", b"", b"after"])
        producer.close()
        assert bench.left() == 0

    def test_a_body_over_the_limit_is_refused_and_nothing_of_its_request_is_sent(self, bench: Bench, subject: Subject) -> None:
        large, producer = b"x" * (subject.largest + 1), bench.open().producer()
        with pytest.raises(BadMessage, match=str(len(large))):
            bench.publisher().publish(bench.topic, large)
        with pytest.raises(BadMessage):
            producer.publish(bench.topic, [b"before", large, b"after"])
        with pytest.raises(BadMessage):
            producer.publish_each(bench.topic, [b"before", large, b"after"])
        producer.close()
        assert bench.left() == 0
        seen: list[bytes] = []
        if not bench.capabilities.stores:
            bench.work(lambda message: seen.append(message.body))
        bench.publish(b"and it goes on")
        bench.until(lambda: len(seen) + bench.left() == 1)

    @pytest.mark.parametrize(
        "topic", ["", " ", "a b", "a/b", "ünïcode", "话题", "a\n", "a\0b", "x" * (names.MAX_LENGTH + 1), "a#b"]
    )
    def test_an_invalid_topic_is_refused_by_a_sentence_that_shows_it(self, bench: Bench, topic: str) -> None:
        with pytest.raises(BadName) as refused:
            bench.publisher().publish(topic, b"x")
        assert repr(topic) in str(refused.value)

    def test_names_as_long_as_a_name_may_be_work_or_are_refused_at_start(self, bench: Bench) -> None:
        topic, channel, seen = longest_name(), longest_name(), []
        spec = bench.spec(lambda message: seen.append(message.body), topic=topic, channel=channel)
        if bench.refused(spec):
            return
        bench.ready(spec)
        bench.publish(b"x", topic=topic)
        bench.until(lambda: seen == [b"x"])

    # -- many publishers, many nodes

    def test_native_threads_and_greenlets_may_share_a_publisher(self, bench: Bench) -> None:
        seen: Counter[bytes] = Counter()
        worker = bench.ready(lambda message: seen.update([message.body]))
        publisher = bench.publisher()

        def talk(who: str) -> None:
            for body in bodies(25, who):
                publisher.publish(bench.topic, body)

        threads = [threading.Thread(target=talk, args=(f"thread {i}",)) for i in range(3)]
        greenlets = [gevent.spawn(talk, f"greenlet {i}") for i in range(3)]
        for thread in threads:
            thread.start()
        bench.until(lambda: all(greenlet.dead for greenlet in greenlets) and not any(thread.is_alive() for thread in threads))
        for greenlet in greenlets:
            greenlet.get()
        bench.until(lambda: worker.ledger.finished == 150)
        assert seen == Counter(body for kind in ("thread", "greenlet") for i in range(3) for body in bodies(25, f"{kind} {i}"))

    def test_a_closed_publisher_says_so(self, bench: Bench) -> None:
        publisher = bench.publisher()
        if not bench.capabilities.stores:
            bench.ready(lambda message: None)
        publisher.publish(bench.topic, b"x")
        publisher.close()
        with pytest.raises(PublishError, match="closed") as refused:
            publisher.publish(bench.topic, b"y")
        assert refused.value.stored is False

    def test_one_worker_handles_what_is_on_each_of_two_nodes(self, bench: Bench) -> None:
        bench.needs_storage()
        nodes, seen = [bench.node, bench.other()], Counter[str]()
        for number, node in enumerate(nodes):
            bench.publish(*bodies(50, f"on {number}"), on=node)
        worker = bench.work(lambda message: seen.update([message.node]), on=nodes, max_in_flight=10)
        bench.until(lambda: worker.ledger.finished == 100)
        assert sorted(seen.values()) == [50, 50]
        assert worker.most_exposed <= 10

    def test_two_nodes_share_even_a_max_in_flight_of_one(self, bench: Bench) -> None:
        bench.needs_storage()
        nodes = [bench.node, bench.other()]
        for node in nodes:
            bench.publish(*bodies(10), on=node)
        worker = bench.work(lambda message: None, on=nodes, concurrency=1, max_in_flight=1)
        bench.until(lambda: worker.ledger.finished == 20)
        assert worker.most_exposed <= 1

    def test_while_one_node_is_down_publishing_goes_to_the_other(self, bench: Bench) -> None:
        first, second = bench.node, bench.other()
        seen: set[bytes] = set()
        publisher = bench.publisher(first, second)
        if bench.capabilities.stores:
            publisher.publish(bench.topic, b"both up")
        worker = bench.ready(lambda message: seen.add(message.body), on=[first, second])
        if not bench.capabilities.stores:
            publisher.publish(bench.topic, b"both up")
        sent = [b"both up"]
        for node in (first, second):
            bench.down(node)
            for body in bodies(10, node.url):
                publisher.publish(bench.topic, body)
                sent.append(body)
            bench.up(node)
        bench.until(lambda: seen == set(sent))
        bench.until(lambda: worker.ledger.finished >= len(sent))
