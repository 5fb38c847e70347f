"""The publisher: many in one request, nothing sent that is wrong, a second broker only when the first stored nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from framework import (
    BadMessage,
    BadName,
    BadSetting,
    Message,
    Publisher,
    PublishError,
    Retry,
    WrongUse,
    handler,
    publish,
    publish_each,
    publish_many,
    published,
    publisher,
)
from framework.transports.checked import check_bodies
from framework.transports.contract import Capabilities
from framework.transports.enveloped import SealingProducer

SNAN = Decimal("sNaN")
TOO_LARGE = 10**400
"""A number, below infinity, and no float."""


class Unspeakable:
    """Cannot show itself, as a row whose database session has ended."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")


class Broker:
    """A transport and its producer, in memory."""

    capabilities = Capabilities(touch=True, attempts=True, fan_out=True, max_requeue=3600.0, max_defer=3600.0)

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[tuple[str, list[bytes], float]] = []
        self.options: list[dict[str, Any]] = []
        self.closed = False

    def producer(self) -> Broker:
        return self

    def publish(self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, **options: Any) -> None:
        if self.error:
            raise self.error
        self.requests.append((topic, list(bodies), delay))
        self.options.append(options)

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, **options: Any
    ) -> list[PublishError | None]:
        """Bodies that begin with ``-`` are certainly not stored, those that begin with ``?`` perhaps."""
        known = {b"-": PublishError("no", stored=False), b"?": PublishError("cut off", stored=None)}
        answers = [known.get(body[:1]) for body in bodies]
        self.requests.append((topic, [body for body, error in zip(bodies, answers, strict=True) if not error], delay))
        return answers

    def close(self) -> None:
        self.closed = True


class Transport:
    """One whose producer is another object."""

    capabilities = Broker.capabilities
    closed = False

    def __init__(self) -> None:
        self.made = Broker()

    def producer(self) -> Broker:
        return self.made

    def close(self) -> None:
        self.closed = True


def made(*brokers: Any) -> Publisher:
    return Publisher(brokers)


def test_publish_sends_one_body() -> None:
    broker = Broker()
    made(broker).publish("topic", {"a": 1}, delay=2.5)
    assert broker.requests == [("topic", [b'{"a":1}'], 2.5)]


@pytest.mark.parametrize(
    "send",
    [
        lambda to: to.publish("topic", b"x"),
        lambda to: to.publish_many("topic", [b"x"]),
        lambda to: to.publish_each("topic", [b"x"]),
    ],
)
def test_a_message_is_not_deferred_unasked(send: Callable[[Publisher], object]) -> None:
    broker = Broker()
    send(made(broker))
    assert broker.requests == [("topic", [b"x"], 0.0)]


def test_publish_many_joins_messages_into_few_requests_and_counts_them() -> None:
    broker = Broker()
    assert made(broker).publish_many("topic", (f"{n}" for n in range(2500))) == 2500
    assert [len(bodies) for _, bodies, _ in broker.requests] == [1000, 1000, 500]
    assert [body for _, bodies, _ in broker.requests for body in bodies] == [str(n).encode() for n in range(2500)]


def test_publish_many_bounds_the_bytes_of_a_request() -> None:
    broker = Broker()
    made(broker).publish_many("topic", [b"x" * 400_000] * 5)
    assert [len(bodies) for _, bodies, _ in broker.requests] == [2, 2, 1]


def test_bytes_alone_and_bytes_among_others_go_the_same_way() -> None:
    bodies = [b"%d" % n for n in range(2500)]
    alone, tupled, among = Broker(), Broker(), Broker()
    made(alone).publish_many("topic", bodies)
    made(tupled).publish_many("topic", tuple(bodies))
    made(among).publish_many("topic", [bodies[0].decode(), *bodies[1:]])
    assert alone.requests == tupled.requests == among.requests


def test_an_empty_body_among_bytes_is_refused_before_anything_is_sent() -> None:
    broker = Broker()
    with pytest.raises(BadMessage, match="empty"):
        made(broker).publish_many("topic", [b"x", b"", b"x"])
    assert broker.requests == []


def test_publish_many_of_nothing_sends_nothing() -> None:
    broker = Broker()
    assert made(broker).publish_many("topic", []) == 0
    assert broker.requests == []


def test_publish_many_does_not_hold_an_iterator_in_memory() -> None:
    broker = Broker()
    taken = 0

    def payloads() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(5000):
            taken += 1
            assert taken - 1000 * len(broker.requests) <= 1001
            yield b"x"

    assert made(broker).publish_many("topic", payloads()) == 5000


def test_an_error_in_the_middle_says_how_many_were_stored() -> None:
    broker = Broker()
    with pytest.raises(BadMessage) as caught:
        made(broker).publish_many("topic", [b"x"] * 1500 + [b""] + [b"x"])
    assert caught.value.__notes__ == ["1000 of the messages before it were stored on topic"]


class Checking(Broker):
    """Takes 2,000,000 bytes, and refuses a publish that has more as the real producers do."""

    def publish(self, topic: str, bodies: Sequence[bytes], **options: Any) -> None:
        check_bodies(topic, bodies, 2_000_000, "it takes less")
        super().publish(topic, bodies, **options)


LARGE = b"x" * 2_000_001


@pytest.mark.parametrize("wrong", [LARGE, b"", b"~" + LARGE, object()])
@pytest.mark.parametrize("before", [0, 5, 999, 1000, 2500])
def test_an_error_names_the_message_by_its_number_among_all(wrong: Any, before: int) -> None:
    """Those of a request were counted: the message that is too large is one by itself, and so was "message 1 of 1"."""
    for broker in Checking(), SealingProducer(Checking()):
        publishing = made(Checking())
        publishing._producers = [broker]
        payloads = [b"a"] * before + [wrong] + [b"b"] * 7
        with pytest.raises(BadMessage, match=rf"message {before + 1} of {before + 8}\b"):
            publishing.publish_many("topic", payloads)
        with pytest.raises(BadMessage, match=rf"message {before + 1}\b(?! of)"):
            publishing.publish_many("topic", iter(payloads))


def test_with_headers_too() -> None:
    publishing = made(Checking())
    publishing._producers = [SealingProducer(Checking())]
    publishing._plain = {**publishing._plain, "headers": {"a": "b"}}
    with pytest.raises(BadMessage, match="message 1001 of 1001"):
        publishing.publish_many("topic", [b"a"] * 1000 + [LARGE])


@pytest.mark.parametrize("topic", ["", "a b", None, "x" * 65])
def test_a_bad_topic_is_refused_before_anything_is_sent(topic: Any) -> None:
    broker = Broker()
    with pytest.raises(BadName):
        made(broker).publish(topic, b"x")
    with pytest.raises(BadName):
        made(broker).publish_many(topic, [b"x"])
    assert broker.requests == []


def test_publish_each_says_what_became_of_each() -> None:
    broker = Broker()
    answers = made(broker).publish_each("topic", (f"{'?' if n == 1500 else ''}{n}" for n in range(2000)))
    assert [n for n, error in enumerate(answers) if error] == [1500]
    assert sum(len(bodies) for _, bodies, _ in broker.requests) == 1999


def test_the_second_broker_is_given_those_that_the_first_has_certainly_not_stored() -> None:
    asked: list[bytes] = []

    class Second(Broker):
        def publish_each(self, topic: str, bodies: Sequence[bytes], **options: Any) -> list[PublishError | None]:
            asked.extend(bodies)
            return super().publish_each(topic, [body.strip(b"-") for body in bodies])

    first, second = Broker(), Second()
    answers = made(first, second).publish_each("topic", ["a", "-b", "?c", "-?d"])
    assert [bodies for _, bodies, _ in first.requests + second.requests] == [[b"a"], [b"b"]]
    assert asked == [b"-b", b"-?d"], "what may be stored could be there twice"
    assert [None if error is None else error.stored for error in answers] == [None, None, None, None]
    assert [str(error) for error in answers] == ["None", "None", "cut off", "cut off"]


def test_a_handler_is_said_to_have_published_what_was_stored_of_each_request() -> None:
    """And nothing of what was not, or of which that is not known."""
    mine = Counter[str]()
    token = published.tally.set(mine)
    try:
        for made in (Publisher([Broker()]), Publisher([Broker(PublishError("no")), Broker()])):
            made.publish("one", b"x")
            assert made.publish_many("many", [b"%d" % n for n in range(5000)]) == 5000
            made.publish_each("each", [b"a", b"-b", b"?c", b"d"])
        with pytest.raises(PublishError):
            Publisher([Broker(PublishError("no"))]).publish("one", b"x")
    finally:
        published.tally.reset(token)
    assert mine == {"one": 2, "many": 10_000, "each": 4}


def test_a_priority_is_refused_by_a_broker_that_knows_none() -> None:
    broker = Broker()
    with pytest.raises(WrongUse, match="this broker knows no priorities"):
        made(broker).publish("topic", "x", priority=1)
    assert broker.requests == []


@pytest.mark.parametrize("priority", [-1, 2**32, 1.5, "high", True])
def test_a_priority_is_a_number_that_fits(priority: Any) -> None:
    broker = Broker()
    broker.capabilities = replace(broker.capabilities, priority=True)
    with pytest.raises(WrongUse, match="a whole number from 0, the most urgent, to 4294967295"):
        made(broker).publish("topic", "x", priority=priority)
    made(broker).publish("topic", "x", priority=7)
    assert broker.options == [{"priority": 7, "lease": None, "timeout": 5.0}]


def test_where_the_publisher_sets_the_lease_it_is_the_longest_timeout_of_the_topics_handlers() -> None:
    for channel, timeout in (("one", 20), ("two", 90)):

        @handler("topic", channel, timeout=timeout)
        def work(message: Message) -> None: ...

    broker = Broker()
    broker.capabilities = replace(broker.capabilities, lease_at_publish=True)
    made(broker).publish("topic", "x")
    made(broker).publish_many("other", ["x"])
    assert [options["lease"] for options in broker.options] == [90, None]


@pytest.mark.parametrize("delay", [-1, 3601, float("nan"), float("inf"), "1", None, True, TOO_LARGE, Unspeakable(), SNAN])
def test_a_delay_that_the_broker_cannot_keep_is_refused(delay: Any) -> None:
    broker = Broker()
    with pytest.raises(WrongUse, match="takes a delay of 0 to 3600 seconds"):
        made(broker).publish("topic", b"x", delay=delay)
    with pytest.raises(WrongUse, match="takes a delay of 0 to 3600 seconds"):
        made(broker).publish_many("topic", [b"x"], delay=delay)
    assert broker.requests == []


def test_the_second_broker_is_asked_only_when_the_first_has_certainly_stored_nothing() -> None:
    second = Broker()
    made(Broker(PublishError("down", stored=False)), second).publish("topic", b"x")
    assert len(second.requests) == 1
    with pytest.raises(PublishError, match="cut off"):
        made(Broker(PublishError("cut off", stored=None)), second).publish("topic", b"x")
    assert len(second.requests) == 1


def test_the_last_error_is_raised_when_every_broker_fails() -> None:
    with pytest.raises(PublishError, match="also down"):
        made(Broker(PublishError("down")), Broker(PublishError("also down"))).publish("topic", b"x")


def test_closing_closes_every_producer() -> None:
    brokers = Broker(), Broker()
    made(*brokers).close()
    assert [broker.closed for broker in brokers] == [True, True]


def test_a_publisher_without_a_broker_is_refused() -> None:
    with pytest.raises(WrongUse, match="needs a broker"):
        Publisher([])


def test_the_functions_use_the_process_own_publisher() -> None:
    broker = Broker()
    publisher.use(made(broker))
    publish("topic", "one")
    assert publish_many("topic", ["two", "three"]) == 2
    assert publish_each("topic", ["four", "-five"]).count(None) == 1
    assert broker.requests == [("topic", [b"one"], 0.0), ("topic", [b"two", b"three"], 0.0), ("topic", [b"four"], 0.0)]


@pytest.mark.parametrize("options", [{"delay": 5.0}, {"priority": 7}, {"headers": {"a": "b"}}, {"timeout": 3.0}, {}])
def test_the_functions_pass_their_options_on_and_none_unasked(options: dict[str, Any]) -> None:
    class Telling(Broker):
        capabilities = replace(Broker.capabilities, priority=True, headers=True)

        def publish(self, topic: str, bodies: Sequence[bytes], **how: Any) -> None:
            told.append(how)

        def publish_each(self, topic: str, bodies: Sequence[bytes], **how: Any) -> list[PublishError | None]:
            told.append(how)
            return [None] * len(bodies)

    told: list[dict[str, Any]] = []
    publisher.use(made(Telling()))
    publish("topic", "one", **options)
    publish_many("topic", ["two"], **options)
    publish_each("topic", ["three"], **options)
    plain = {"delay": 0.0, "priority": None, "headers": None, "lease": None, "timeout": publisher._default_timeout()}
    for how in told:
        assert {**plain, **how, "timeout": round(how["timeout"], 1)} == {**plain, **options}


def test_without_one_they_use_broker_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", "amqp://host")
    with pytest.raises(BadSetting, match="'amqp://host': the scheme must be one of nsq://"):
        publish("topic", "one")


def test_a_publisher_is_made_from_a_url_or_several() -> None:
    for urls in ("nsq://127.0.0.1:1", ["nsq://127.0.0.1:1", "nsq+lookupd://127.0.0.1:2"]):
        Publisher(urls).close()
    with pytest.raises(BadSetting, match="the scheme must be one of nsq://"):
        Publisher("127.0.0.1:4150")
    with pytest.raises(WrongUse, match="give at least one URL"):
        Publisher([])


def test_it_closes_the_transports_that_it_opened_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    given, opened = Transport(), Transport()
    monkeypatch.setattr("framework.publisher.open_transports", lambda urls: [opened] if urls else [])
    Publisher([given, "thing://host"]).close()
    assert (given.closed, opened.closed) == (False, True)
    assert given.made.closed


@pytest.mark.parametrize("one", ["abc", b"abc", {"a": 1}])
def test_publish_many_does_not_take_one_payload_for_many(one: Any) -> None:
    broker = Broker()
    with pytest.raises(WrongUse, match=f"a list of payloads, not a {type(one).__name__}: give one payload to publish"):
        made(broker).publish_many("topic", one)
    assert broker.requests == []


@pytest.mark.parametrize("delay", [-1, "5", float("nan"), TOO_LARGE, Unspeakable()])
def test_a_retry_that_no_broker_can_keep_is_wrong_use(delay: Any) -> None:
    with pytest.raises(WrongUse, match="a number of seconds and cannot be negative") as caught:
        Retry(delay=delay)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("nan"), float("inf"), TOO_LARGE, Unspeakable()])
def test_a_timeout_that_nothing_can_wait_for_is_wrong_use(timeout: Any) -> None:
    broker = Broker()
    for call in (
        lambda: Publisher([broker], timeout=timeout),
        lambda: made(broker).publish("topic", b"x", timeout=timeout),
        lambda: made(broker).publish_many("topic", [b"x"], timeout=timeout),
        lambda: made(broker).publish_each("topic", [b"x"], timeout=timeout),
    ):
        with pytest.raises(WrongUse, match="give the seconds that a publish may take, more than 0") as caught:
            call()
        assert len(str(caught.value)) < 200
    assert broker.requests == []
