"""The core: publish, handle, fail, give up, batches and a clean stop, on one node that stays up. The least a transport does."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.errors import BadSetting, Reject, Retry
from framework.message import Message
from framework.testing.conformance.bench import CHANNEL, Bench, bodies
from framework.testing.conformance.contract import Contract
from framework.testing.conformance.failing import Failing
from framework.testing.conformance.subject import Subject


class Core(Contract, Failing):
    """What even the smallest transport passes."""

    # -- a message and its handler

    def test_a_message_is_handled_once_and_tells_where_it_came_from(self, bench: Bench) -> None:
        seen: list[Message] = []
        worker = bench.ready(seen.append)
        before = time.time()
        bench.publish(b"hello")
        bench.until(lambda: worker.ledger.finished == 1)
        (message,) = seen
        assert (message.body, message.topic, message.channel) == (b"hello", bench.topic, CHANNEL)
        assert message.attempts == 1
        assert message.node in bench.open().discover(bench.topic, CHANNEL)
        assert abs(message.timestamp / 1e9 - before) < 5
        assert message.settled

    def test_what_was_published_before_any_worker_ran_is_handled(self, bench: Bench) -> None:
        bench.needs_storage()
        seen: list[bytes] = []
        bench.publish(*bodies(10))
        worker = bench.work(lambda message: seen.append(message.body))
        bench.until(lambda: worker.ledger.finished == 10)
        assert sorted(seen) == sorted(bodies(10))

    def test_a_thousand_messages_are_each_finished_once_and_the_broker_has_none_left(self, bench: Bench) -> None:
        seen: Counter[bytes] = Counter()
        worker = bench.ready(lambda message: seen.update([message.body]))
        bench.publish(*bodies(1000))
        bench.until(lambda: worker.ledger.finished == 1000)
        assert seen == Counter(bodies(1000))
        ledger = worker.stop()
        assert (ledger.received, ledger.finished) == (1000, 1000)
        bench.until(lambda: bench.left() == 0)

    def test_messages_published_one_by_one_each_have_an_answer(self, bench: Bench) -> None:
        seen: set[bytes] = set()
        worker = bench.ready(lambda message: seen.add(message.body))
        assert bench.publisher().publish_each(bench.topic, bodies(100)) == [None] * 100
        bench.until(lambda: worker.ledger.finished == 100)
        assert seen == set(bodies(100))

    def test_two_workers_on_a_channel_share_its_messages(self, bench: Bench) -> None:
        seen: list[Counter[bytes]] = [Counter(), Counter()]

        def counting(counter: Counter[bytes]) -> Any:
            def handle(message: Message) -> None:
                counter[message.body] += 1
                gevent.sleep(0.002)

            return handle

        workers = [bench.ready(counting(counter), concurrency=2, max_in_flight=4) for counter in seen]
        bench.publish(*bodies(200))
        bench.until(lambda: sum(worker.ledger.finished for worker in workers) == 200)
        assert seen[0] + seen[1] == Counter(bodies(200))
        assert all(seen)

    def test_each_channel_gets_its_own_copy_or_two_channels_are_refused_at_start(self, bench: Bench) -> None:
        seen: dict[str, list[bytes]] = {"a": [], "b": []}
        specs = [bench.spec(lambda message: seen[message.channel].append(message.body), channel=channel) for channel in seen]
        if not bench.capabilities.fan_out:
            (words,) = bench.refused(*specs)
            assert bench.topic in words
            return
        assert bench.refused(*specs) == []
        bench.ready(*specs)
        bench.publish(*bodies(20))
        bench.until(lambda: len(seen["a"]) == len(seen["b"]) == 20)
        assert sorted(seen["a"]) == sorted(seen["b"]) == sorted(bodies(20))

    # -- bounds

    def test_no_more_calls_run_at_once_than_concurrency_says(self, bench: Bench) -> None:
        running = most = 0

        def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            gevent.sleep(0.003)
            running -= 1

        worker = bench.work(handle, concurrency=3)
        bench.publish(*bodies(60))
        bench.until(lambda: worker.ledger.finished == 60)
        assert most == 3

    def test_in_flight_never_passes_max_in_flight(self, bench: Bench) -> None:
        def handle(message: Message) -> None:
            worker.sample()
            gevent.sleep(0.001)

        worker = bench.work(handle, concurrency=20, max_in_flight=8)
        bench.publish(*bodies(300))
        bench.until(lambda: worker.ledger.finished == 300)
        assert 2 <= worker.most_exposed <= 8

    def test_a_handler_that_hangs_stops_no_other(self, bench: Bench) -> None:
        gate, seen = Event(), []

        def handle(message: Message) -> None:
            if message.body == b"hang":
                gate.wait()
            seen.append(message.body)

        worker = bench.work(handle, concurrency=2)
        bench.publish(b"hang", *bodies(50))
        bench.until(lambda: worker.ledger.finished == 50)
        assert b"hang" not in seen
        gate.set()
        bench.until(lambda: worker.ledger.finished == 51)

    # -- bodies

    def test_every_byte_value_and_every_line_end_arrives_unchanged(self, bench: Bench) -> None:
        sent = [bytes(range(256)), b"\r\n", b"\n", b"\0", b" ", b"FIN 0123456789abcdef\n", b"RESERVED 1 1\r\nx\r\n"]
        sent += [bytes([value]) for value in range(256)]
        seen: Counter[bytes] = Counter()
        worker = bench.work(lambda message: seen.update([message.body]))
        bench.publish(*sent)
        bench.until(lambda: worker.ledger.finished == len(sent))
        assert seen == Counter(sent)

    def test_the_largest_body_arrives_unchanged(self, bench: Bench, subject: Subject) -> None:
        body = bytes(range(256)) * (subject.largest // 256) + b"x" * (subject.largest % 256)
        seen: list[bytes] = []
        worker = bench.work(lambda message: seen.append(message.body))
        bench.publish(body, b"small", body)
        bench.until(lambda: worker.ledger.finished == 3)
        assert sorted(map(len, seen)) == [5, len(body), len(body)]
        assert [each for each in seen if len(each) > 5] == [body, body]

    # -- batches

    def test_a_batch_is_full_when_enough_wait(self, bench: Bench) -> None:
        sizes: list[int] = []
        worker = bench.work(lambda batch: sizes.append(len(batch)), batch=20, linger=20.0, concurrency=1)
        bench.publish(*bodies(100))
        bench.until(lambda: worker.ledger.finished == 100)
        assert sizes == [20] * 5

    def test_a_batch_that_does_not_fill_is_handed_over_after_its_linger(self, bench: Bench) -> None:
        sizes: list[int] = []
        worker = bench.ready(lambda batch: sizes.append(len(batch)), batch=100, linger=0.2)
        bench.publish(*bodies(7))
        bench.until(lambda: worker.ledger.finished == 7)
        assert sum(sizes) == 7

    def test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        good: list[bytes] = []
        failed: list[bytes] = []

        def handle(batch: Any) -> None:
            for message in batch:
                if message.body == b"retry" and not failed:
                    failed.append(message.body)
                    batch.fail(message, Retry("later", delay=0))
                elif message.body == b"reject":
                    batch.fail(message, Reject("never"))
                else:
                    good.append(message.body)

        worker = bench.work(handle, batch=10, linger=0.2, concurrency=1)
        letters = bench.dead_letters()
        bench.publish(*bodies(8), b"retry", b"reject")
        bench.until(lambda: worker.ledger.finished == 9 and worker.ledger.dead == 1)
        assert sorted(good) == sorted([*bodies(8), b"retry"])
        bench.until(lambda: letters == [b"reject"])
        assert worker.stop().requeued == 1

    # -- the end

    def test_an_idle_worker_stops_at_once(self, bench: Bench) -> None:
        took = []
        for _ in range(3):
            worker = bench.ready(lambda message: None)
            (connection,), began = worker.connections, time.monotonic()
            assert worker.stop().received == 0
            took.append((time.monotonic() - began) / connection.limits.goodbye)
        assert min(took) < 0.5  # a drain that is never confirmed takes all of it

    def test_on_stop_running_calls_finish_and_what_has_not_started_is_with_another_worker_at_once(
        self, bench: Bench, subject: Subject
    ) -> None:
        bench.needs_a_second_delivery()
        gate = Event()
        started: list[bytes] = []
        elsewhere: list[bytes] = []

        def slow(batch: Any) -> None:
            started.extend(message.body for message in batch)
            gate.wait()

        # of batches: while one is handled, the next one is filled
        first = bench.ready(slow, concurrency=1, batch=5, linger=0.2, max_in_flight=50)
        bench.publish(*bodies(30))
        bench.until(lambda: len(started) == 5 and first.ledger.received > 5)
        first.supervisor.stop()
        second = bench.work(lambda message: elsewhere.append(message.body))
        if not subject.hands_on_at_once:
            bench.stays(lambda: not set(elsewhere) & set(started), subject.max_late)
            gate.set()
        bench.until(lambda: len(elsewhere) == 25, subject.max_late)
        assert sorted(elsewhere + started) == sorted(bodies(30))
        assert not (first.greenlet.dead and subject.hands_on_at_once)
        gate.set()
        ledger = first.end()
        assert (ledger.finished, ledger.lease_lost, ledger.requeued) == (5, 0, ledger.received - 5)
        assert second.stop().finished == 25

    def test_a_second_stop_gives_back_what_runs(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        started, again = [], []

        def endless(message: Message) -> None:
            started.append(message.body)
            Event().wait()

        first = bench.ready(endless, concurrency=2)
        bench.publish(*bodies(5))
        bench.until(lambda: len(started) == 2)
        first.supervisor.stop()
        bench.stays(lambda: not first.greenlet.dead, 0.3)
        began = time.monotonic()
        ledger = first.stop()
        assert time.monotonic() - began < 5
        assert (ledger.finished, ledger.lease_lost) == (0, 0)
        second = bench.work(lambda message: again.append(message.body))
        bench.until(lambda: second.ledger.finished == 5)
        assert sorted(again) == sorted(bodies(5))

    def test_what_runs_longer_than_the_drain_is_given_back(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        worker = bench.ready(lambda message: Event().wait(), settings={"drain": 0.2})
        bench.publish(b"long")
        bench.until(lambda: worker.ledger.received == 1)
        assert worker.stop().requeued == 1
        again = bench.work(lambda message: None)
        bench.until(lambda: again.ledger.finished == 1)

    # -- wrong use

    def test_a_url_with_parts_that_it_does_not_know_is_refused_by_a_sentence_that_shows_it(self, subject: Subject) -> None:
        if not subject.wrong_urls:
            pytest.skip("no wrong URLs are given")
        for url in subject.wrong_urls:
            with pytest.raises(BadSetting) as refused:
                subject.open([url])
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) > 20

    def test_names_that_it_does_not_take_are_refused_at_start(self, bench: Bench, subject: Subject) -> None:
        if not subject.invalid_names:
            assert bench.refused(bench.spec(print)) == []
        for topic in subject.invalid_names:
            assert bench.refused(bench.spec(print, topic=topic)), topic
            assert topic not in bench.open().topics()
