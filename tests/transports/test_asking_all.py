"""All nodes of a broker are asked at once, and what failed is said of all of them together."""

from __future__ import annotations

import gevent
import pytest

from framework.errors import BrokerRefuses, BrokerUnreachable, NegotiationRefused, SomeUnreachable
from framework.transports.asking_all import all_admitted, all_answered, answered, ask_each

DOWN = BrokerUnreachable("connection refused")
REJECTED = NegotiationRefused("AUTH", "no such user", fix="give another")


def test_all_are_asked_at_once_and_those_that_fail_keep_nobody_waiting() -> None:
    together: list[str] = []

    def ask(node: str) -> int:
        together.append(node)
        gevent.sleep(0.01)
        assert together == ["a", "b", "c"]
        if node == "b":
            raise DOWN
        return ord(node)

    answers = ask_each(["a", "b", "c"], ask)
    assert answers == {"a": 97, "b": DOWN, "c": 99}
    assert answered(answers) == {"a": 97, "c": 99}


def test_what_is_no_error_of_a_broker_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        ask_each(["a"], lambda node: 1 // 0)


def test_where_all_answered_their_answers_are_returned() -> None:
    assert all_answered({"a": 1, "b": 2}) == all_admitted({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert all_answered({}) == all_admitted({}) == {}


def test_each_that_gave_none_is_named() -> None:
    for judge, kind in ((all_answered, BrokerUnreachable), (all_admitted, SomeUnreachable)):
        with pytest.raises(BrokerUnreachable, match=r"a.*connection refused; b.*connection refused") as raised:
            judge({"a": DOWN, "c": 1, "b": DOWN})
        assert type(raised.value) is kind
    with pytest.raises(BrokerUnreachable) as none:
        all_admitted({"a": DOWN, "b": DOWN})
    assert type(none.value) is BrokerUnreachable


def test_one_that_rejects_us_says_so_only_where_we_ask_to_be_admitted() -> None:
    answers = {"a": DOWN, "b": REJECTED}
    with pytest.raises(BrokerRefuses, match="no such user"):
        all_admitted(answers)
    with pytest.raises(BrokerUnreachable, match="no such user") as raised:
        all_answered(answers)
    assert not isinstance(raised.value, BrokerRefuses)
