"""What becomes of a message whose handler fails: again, later, given up, or lost and counted."""

from __future__ import annotations

import json
import time

import pytest

from framework.engine import backoff
from framework.errors import Reject, Retry
from framework.message import Message
from framework.testing.conformance.bench import CHANNEL, Bench, Cases, bodies


class Failing(Cases):
    """A part of ``Core``."""

    def test_where_nothing_is_acknowledged_what_fails_is_lost_and_counted_and_a_retry_is_refused_at_start(
        self, bench: Bench
    ) -> None:
        if bench.capabilities.acknowledges:
            pytest.skip("this broker delivers again what was not handled")
        calls: list[bytes] = []

        def handle(message: Message) -> None:
            calls.append(message.body)
            if message.body == b"fails":
                raise ValueError("once, and never again")

        for options in ({"max_attempts": 3}, {"policy": ((OSError, Retry),)}, {"on_timeout": "reject"}):
            (words,) = bench.refused(bench.spec(handle, **options))
            assert next(iter(options)) in words
        worker = bench.ready(handle)
        bench.publish(b"fails", *bodies(3))
        bench.until(lambda: worker.ledger.settled == 4)
        ledger = worker.stop()
        assert sorted(calls) == sorted([b"fails", *bodies(3)])
        assert (ledger.finished, ledger.lost, ledger.requeued, ledger.lease_lost) == (3, 1, 0, 0)

    def test_a_handler_that_raises_gets_its_message_again(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.needs_a_second_delivery()
        monkeypatch.setattr(backoff, "RETRY_BASE", 0.0)
        seen: list[bytes] = []

        def handle(message: Message) -> None:
            seen.append(message.body)
            if len(seen) == 1:
                raise ValueError("the first time")

        worker = bench.work(handle)
        bench.publish(b"again")
        bench.until(lambda: worker.ledger.finished == 1)
        assert seen == [b"again", b"again"]
        assert worker.stop().requeued == 1

    def test_a_retry_comes_after_its_delay_and_not_before(self, bench: Bench) -> None:
        if max(bench.capabilities.max_requeue, bench.capabilities.max_defer) < 1:
            pytest.skip("this broker defers nothing")
        calls: list[float] = []

        def handle(message: Message) -> None:
            calls.append(time.monotonic())
            if len(calls) == 1:
                raise Retry("not yet", delay=1.0)

        worker = bench.work(handle)
        bench.publish(b"later")
        bench.until(lambda: worker.ledger.finished == 1)
        assert calls[1] - calls[0] >= 0.95

    def test_where_nothing_can_be_deferred_a_long_retry_comes_at_once_and_waits_nowhere_else(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        if bench.capabilities.max_requeue or bench.capabilities.max_defer:
            pytest.skip("this broker defers")
        calls: list[int] = []

        def handle(message: Message) -> None:
            calls.append(message.attempts)
            if len(calls) < 5:
                raise Retry("in a while", delay=80.0)

        worker = bench.work(handle, max_attempts=0)
        bench.publish(b"later")
        bench.until(lambda: worker.ledger.finished == 1)
        ledger = worker.stop()
        assert (len(calls), ledger.received, ledger.requeued) == (5, 5, 4)
        assert [topic for topic in bench.open().topics() if topic.startswith(f"{bench.topic}.")] == []

    def test_where_no_publish_can_be_delayed_nothing_is_put_off_in_hops_and_it_counts(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        if bench.capabilities.max_defer:
            pytest.skip("this broker delays publishes")
        calls: list[int] = []

        def handle(message: Message) -> None:
            calls.append(message.attempts)
            if len(calls) < 3:
                raise Retry("in a moment", delay=0.2, count=False)

        worker = bench.work(handle, max_attempts=0)
        bench.publish(b"put off")
        bench.until(lambda: worker.ledger.finished == 1)
        if bench.capabilities.attempts:
            assert calls[0] < calls[1] < calls[2]
        assert worker.stop().requeued == 2
        assert [topic for topic in bench.open().topics() if topic.startswith(f"{bench.topic}.")] == []

    def test_the_broker_counts_attempts_or_says_one_each_time(self, bench: Bench) -> None:
        bench.needs_a_second_delivery()
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.attempts)
            if len(attempts) < 3:
                raise Retry("again", delay=0)

        worker = bench.work(handle)
        bench.publish(b"count")
        bench.until(lambda: worker.ledger.finished == 1)
        if bench.capabilities.attempts:  # a delivery that broke off before the handler was called may be counted as well
            assert 1 <= attempts[0] < attempts[1] < attempts[2]
        else:
            assert attempts == [1, 1, 1]

    def test_a_rejected_message_becomes_a_dead_letter_with_its_body(self, bench: Bench) -> None:
        body = b'{"n": 1}\n\x00\xff second line'

        def handle(message: Message) -> None:
            raise Reject("no use")

        worker = bench.work(handle)
        letters = bench.dead_letters()
        bench.publish(body)
        bench.until(lambda: letters)
        bench.until(lambda: worker.ledger.dead == 1 and worker.ledger.finished == 0)
        assert letters == [body]
        assert (worker.stop().received, bench.left()) == (1, 0)

    def test_past_max_attempts_a_message_becomes_a_dead_letter_or_the_limit_is_refused_at_start(self, bench: Bench) -> None:
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.attempts)
            raise Retry("never", delay=0)

        spec = bench.spec(handle, max_attempts=2)
        if not bench.capabilities.attempts:
            (words,) = bench.refused(spec)
            assert "max_attempts=2" in words
            return
        worker = bench.work(spec)
        letters = bench.dead_letters()
        bench.publish(b"poison")
        bench.until(lambda: letters == [b"poison"])
        assert attempts in ([1, 2], [1], [2])
        bench.until(lambda: worker.ledger.dead == 1 and worker.ledger.finished == 0)
        assert worker.stop().requeued == len(attempts) - (attempts[-1] == 2)  # the failure of its last attempt is its end

    def test_a_dead_letter_says_what_happened(self, bench: Bench) -> None:
        from framework.middleware.dead_letter import topic_name  # noqa: PLC0415

        letters: list[bytes] = []

        def handle(message: Message) -> None:
            raise Reject("the amount is negative")

        bench.work(handle)
        bench.work(lambda letter: letters.append(letter.body), topic=topic_name(bench.topic, CHANNEL), channel="look")
        bench.publish(b"-5")
        bench.until(lambda: letters)
        header = json.loads(letters[0].partition(b"\n")[0])
        assert (header["topic"], header["channel"], header["attempts"]) == (bench.topic, CHANNEL, 1)
        assert "the amount is negative" in header["reason"]
