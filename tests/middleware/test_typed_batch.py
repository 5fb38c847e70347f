"""Batches of what bodies decode to: each item is decoded by itself, and fails by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BadHandler, PublishError, Reject, Retry, UndecodablePayload, WrongUse
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.middleware import compile_chain
from framework.middleware.outcome import DEAD, Requeue
from framework.transports.contract import Limits


@dataclass
class Order:
    id: int


class Held:
    def __contains__(self, message: object) -> bool:
        return True


LIMITS = Limits(60.0, 900.0, 2500)
ORIGIN = SimpleNamespace(topic="orders", channel="billing", node="a:4150", in_flight=Held(), limits=LIMITS)


def messages(*bodies: bytes, attempts: int = 1) -> list[Message]:
    return [Message(b"%016x" % n, 0, attempts, body, ORIGIN) for n, body in enumerate(bodies)]


class Chain:
    """The chain of ``function``, and the letters that it wrote."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.refuse: Exception | None = None
        self.letters: list[dict[str, Any]] = []
        spec = make_spec(function, "orders", "billing", {"batch": 10, "max_attempts": 3, **options}, {"Order": Order})
        self.call = compile_chain(spec, publish=self._publish, delay=lambda attempts: 10.0 * attempts)

    def _publish(self, topic: str, body: bytes) -> None:
        if self.refuse:
            raise self.refuse
        self.letters.append(json.loads(body.partition(b"\n")[0]))

    def outcomes(self, some: list[Message]) -> list[Any]:
        found = self.call(some)
        assert isinstance(found, dict)
        assert len(found) == len(some)
        return [found[message] for message in some]


GOOD, BAD = b'{"id":1}', b'{"number":1}'


def test_items_are_of_their_type_in_order_and_each_has_its_message() -> None:
    seen: list[tuple[Order, bytes]] = []

    def handle(batch: Batch[Order]) -> None:
        assert (len(batch), batch[0], batch[-1:]) == (3, Order(0), [Order(2)])
        seen.extend((order, message.body) for order, message in zip(batch, batch.messages, strict=True))

    some = messages(*(b'{"id":%d}' % n for n in range(3)))
    assert Chain(handle).outcomes(some) == [None, None, None]
    assert seen == [(Order(n), b'{"id":%d}' % n) for n in range(3)]


def test_a_list_is_a_list() -> None:
    seen: list[object] = []

    def of_orders(orders: list[Order]) -> None:
        seen.append(orders)

    def of_messages(some: list) -> None:
        seen.append(some)

    Chain(of_orders).call(messages(GOOD))
    Chain(of_messages).call(some := messages(GOOD))
    assert seen == [[Order(1)], some]
    assert type(seen[1]) is list


@pytest.mark.parametrize("error", [None, OSError("disk full"), Retry(delay=5, count=True)])
def test_an_item_that_cannot_be_decoded_is_that_items_failure_alone(error: Exception | None) -> None:
    seen: list[Order] = []

    def handle(orders: list[Order]) -> None:
        seen.extend(orders)
        if error is not None:
            raise error

    chain = Chain(handle)
    rest = None if error is None else Requeue(getattr(error, "delay", 10.0))
    assert chain.outcomes(messages(GOOD, BAD, b"{", GOOD)) == [rest, DEAD, DEAD, rest]
    assert seen == [Order(1), Order(1)]
    assert [letter["id"][-1] for letter in chain.letters] == ["1", "2"]
    assert all(letter["reason"].startswith("UndecodablePayload: the body does not decode to") for letter in chain.letters)


def test_where_none_can_be_decoded_the_function_is_not_called() -> None:
    def handle(batch: Batch[Order]) -> None:
        pytest.fail("called")

    assert Chain(handle).outcomes(messages(BAD, BAD)) == [DEAD, DEAD]


def test_it_may_be_retried_where_the_policy_says_so_or_its_letter_cannot_be_stored() -> None:
    def handle(batch: Batch[Order]) -> None:
        pass

    chain = Chain(handle)
    chain.refuse = PublishError("no broker")
    assert chain.outcomes(messages(GOOD, BAD)) == [None, Requeue(10.0)]


def test_items_are_failed_by_name_and_that_is_which_object_it_is() -> None:
    def handle(batch: Batch[Order]) -> None:
        first, second, *_ = batch
        assert first == second
        batch.fail(second, Reject("never"))
        batch.fail(batch.messages[2], Retry(delay=7))
        with pytest.raises(WrongUse, match=r"fail\(Order\(id=1\)\): that is no item of this batch"):
            batch.fail(Order(1), Reject("equal, and not of it"))

    assert Chain(handle).outcomes(messages(GOOD, GOOD, GOOD)) == [None, DEAD, Requeue(7)]


def test_one_object_that_is_there_twice_fails_twice() -> None:
    def handle(batch: Batch[str]) -> None:
        batch.fail(batch[0], Reject("never"))

    assert Chain(handle).outcomes(messages(b"a", b"a", b"b")) == [DEAD, DEAD, None]


def test_those_without_attempts_left_are_no_items() -> None:
    seen: list[Order] = []

    def handle(orders: list[Order]) -> None:
        seen.extend(orders)

    spent = messages(GOOD, attempts=4)
    assert Chain(handle).outcomes(messages(GOOD) + spent) == [None, DEAD]
    assert seen == [Order(1)]


def test_a_batch_needs_its_size_and_a_type_that_bodies_have() -> None:
    def of_orders(batch: Batch[Order]) -> None: ...

    def of_list(batch: list[Order]) -> None: ...

    def of_numbers(batch: Batch[int]) -> None: ...

    def of_one(order: Order) -> None: ...

    for function, kind in ((of_orders, "Batch"), (of_list, "list")):
        with pytest.raises(BadHandler, match=f"a handler of a {kind} needs its size: add batch=100"):
            make_spec(function, "orders", "billing", {}, {"Order": Order})
    with pytest.raises(BadHandler, match="cannot decode a body to int"):
        make_spec(of_numbers, "orders", "billing", {"batch": 5})
    with pytest.raises(BadHandler, match=r"with Batch, or drop batch= \(Batch\[Order\] and list\[Order\] have"):
        make_spec(of_one, "orders", "billing", {"batch": 5}, {"Order": Order})


def test_a_single_message_still_fails_as_it_did() -> None:
    def handle(order: Order) -> None:
        pytest.fail("called")

    spec = make_spec(handle, "orders", "billing", {}, {"Order": Order})
    assert spec.decode is not None
    with pytest.raises(UndecodablePayload):
        spec.decode(messages(BAD)[0])
