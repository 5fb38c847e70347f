"""How often an envelope has gone round is counted: in a header where the broker carries headers, else in its first line."""

from __future__ import annotations

import json
from typing import Any

import gevent
import pytest

from framework.errors import Retry
from framework.headers import NONE, Headers
from framework.message import Message
from framework.middleware.outcome import DEFERRED
from tests.middleware.waiting import Waiting, retry_in


def test_the_headers_of_a_message_wait_with_it_and_its_hops_are_counted(waiting: Waiting) -> None:
    seen: list[Message] = []

    def function(message: Message) -> None:
        seen.append(message)
        if len(seen) < 3:
            raise Retry("later", delay=7300)

    chain, message = waiting.chain(function), waiting.original()
    message.headers = {"traceparent": "00-1"}
    outcome = chain(message)
    hops = [_header_of(waiting).get("hops", 0)]
    while outcome is not None and len(waiting.published) < 20:
        waiting.now += waiting.published[-1][2]
        outcome = chain(waiting.envelope())
        hops.append(_header_of(waiting).get("hops", 0))
    assert [dict(one.headers) for one in seen] == [{"traceparent": "00-1"}] * 3
    assert hops == [0, 1, 2, 0, 1, 2, 2]


def test_where_the_broker_carries_headers_hops_are_counted_in_one(waiting: Waiting) -> None:
    seen: list[Message] = []

    def function(message: Message) -> None:
        seen.append(message)
        if len(seen) < 2:
            raise Retry("later", delay=7300)

    waiting.carries = True
    chain, message = waiting.chain(function), waiting.original()
    message.headers = {"traceparent": "00-1"}
    outcome = chain(message)
    counted: list[tuple[int, dict[str, str]]] = []
    while outcome is not None and len(counted) < 10:
        counted.append((_header_of(waiting).get("hops", 0), dict(waiting.headers)))
        waiting.now += waiting.published[-1][2]
        outcome = chain(waiting.envelope())
    assert counted == [(0, {}), (0, {"workers-hops": "1"}), (0, {"workers-hops": "2"})]
    assert [dict(one.headers) for one in seen] == [{"traceparent": "00-1"}] * 2, "the handler sees its message's own"


def test_what_came_at_once_again_is_stored_one_at_a_time(waiting: Waiting) -> None:
    """An nsqd that keeps nothing in memory drops the delay of many at once."""
    under_way, most = 0, 0

    def defer(topic: str, body: bytes, delay: float, headers: Headers = NONE) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        gevent.sleep(0.005)
        under_way -= 1
        waiting.published.append((topic, body, delay))

    waiting.defer = defer  # type: ignore[method-assign]
    chain = waiting.chain(retry_in(7300))
    chain(waiting.original())
    at_a_time = []
    for _ in range(3):
        most = 0
        envelopes = [waiting.envelope() for _ in range(5)]
        gevent.joinall([gevent.spawn(chain, one) for one in envelopes], raise_error=True)
        at_a_time.append(most)
    assert at_a_time == [5, 1, 1]  # once, as after nsqd was started again, is no reason


@pytest.mark.parametrize(("said", "counted"), [("7", "8"), ("-1", "1"), ("seven", "1"), ("", "1"), ("9" * 30, "1"), ("٣", "1")])
def test_a_count_of_hops_is_a_number_or_it_is_none(said: str, counted: str, waiting: Waiting) -> None:
    waiting.carries = True
    chain = waiting.chain(retry_in(7300))
    chain(waiting.original())
    waiting.headers = {"workers-hops": said}
    waiting.now += 1800
    assert chain(waiting.envelope()) == DEFERRED
    assert dict(waiting.headers) == {"workers-hops": counted}


def test_hops_go_on_being_counted_where_the_broker_begins_or_ends_to_carry_headers(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(36_000))
    chain(waiting.original())
    counted = []
    for carries in (False, True, True, False):
        waiting.carries = carries
        waiting.now += 3600
        assert chain(waiting.envelope()) == DEFERRED
        counted.append((_header_of(waiting).get("hops", 0), dict(waiting.headers)))
    assert counted == [(1, {}), (0, {"workers-hops": "2"}), (0, {"workers-hops": "3"}), (4, {})]


def test_an_envelope_of_another_owner_keeps_its_count(waiting: Waiting) -> None:
    waiting.carries, waiting.copies = True, False
    waiting.chain(retry_in(7300), ("orders.eu", "billing"))(waiting.original())
    chain = waiting.chain(retry_in(7300), ("orders", "eu.billing"))
    waiting.headers = {"workers-hops": "3"}
    assert chain(waiting.envelope()) == DEFERRED
    assert dict(waiting.headers) == {"workers-hops": "3"}


def test_what_comes_back_before_half_of_its_delay_is_counted_as_early_until_one_keeps_its_time(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(36_000))
    chain(waiting.original())
    early = []
    for share in (0.45, 0.55, 0.1, 0.49, 0.51):
        waiting.now += share * waiting.published[-1][2]
        assert chain(waiting.envelope()) == DEFERRED
        early.append(_header_of(waiting).get("early", 0))
    assert early == [1, 0, 1, 2, 0]


def _header_of(waiting: Waiting) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(waiting.published[-1][1].partition(b"\n")[0])
    return found
