"""What is remembered of what nsqlookupds said, and how bodies are divided among MPUBs: no server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BrokerUnreachable, PublishError
from framework.transports.nsq import discovery, wire
from framework.transports.nsq.answers import Producer
from framework.transports.nsq.discovery import LOST, Discovery
from framework.transports.nsq.producer import _store_many, split


def producer(name: str, *, http: int = 4151, address: str | None = None, tombstones: tuple[bool, ...] = ()) -> Producer:
    topics = ["t"] * len(tombstones)
    return Producer(
        broadcast_address=name if address is None else address, tcp_port=4150, http_port=http, topics=topics,
        tombstones=list(tombstones),
    )  # fmt: skip


class Register:
    """``register.Register`` that says what the test says."""

    def __init__(self, address: str, *names: str) -> None:
        self.address = address
        self.has = [producer(name) for name in names]
        self.fails: Exception | None = None
        self.lookupd = SimpleNamespace(nodes=lambda: self.lookup(""))
        self.all: frozenset[str] = frozenset()

    def lookup(self, topic: str) -> list[Producer]:
        if self.fails is not None:
            raise self.fails
        return self.has

    def everyone(self) -> frozenset[str]:
        return self.all


class Known:
    """A discovery over two, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(discovery, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.one, self.two = Register("one", "a", "b"), Register("two", "b", "c")
        self.discovery = Discovery([])
        some: Any = [self.one, self.two]
        self.discovery._registers = some

    def lookup(self) -> str:
        return "".join(sorted(node.partition(":")[0] for node in self.discovery.lookup("t")))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    return Known(monkeypatch)


def test_nodes_are_those_that_any_of_them_names(known: Known) -> None:
    assert known.discovery.known("t") == set()
    assert known.lookup() == "abc"
    assert known.discovery.nodes() == {"a:4150", "b:4150", "c:4150"}
    assert known.discovery.everywhere() == {"a:4150", "b:4150", "c:4150"}


def test_a_node_that_is_nowhere_any_more_is_named_for_a_time(known: Known) -> None:
    known.lookup()
    known.one.has = [producer("a")]
    assert known.lookup() == "abc", "the other names it"
    known.two.has = [producer("c")]
    assert known.lookup() == "abc", "it may be starting again"
    known.now += LOST - 0.01
    assert known.lookup() == "abc"
    known.now += 0.01
    assert known.lookup() == "ac"
    assert known.discovery._lost == {}


def test_a_node_that_is_back_and_leaves_again_has_its_time_again(known: Known) -> None:
    known.two.has = []
    known.lookup()
    known.one.has = [producer("b")]
    assert known.lookup() == "ab"
    known.one.has = [producer("a"), producer("b")]
    known.lookup()
    known.now += LOST / 2
    known.one.has = [producer("b")]
    assert known.lookup() == "ab"
    known.now += LOST * 0.75
    assert known.lookup() == "ab"
    known.now += LOST
    assert known.lookup() == "b"


def test_a_node_that_has_left_this_topic_alone_is_forgotten(known: Known) -> None:
    """It is being deleted there: to subscribe would make it anew."""
    known.lookup()
    known.one.has, known.one.all = [producer("b")], frozenset({"a:4150", "b:4150"})
    assert known.lookup() == "bc"


def test_of_all_nodes_none_is_kept(known: Known) -> None:
    known.discovery.nodes()
    known.one.has = [producer("b")]
    assert known.discovery.nodes() == {"b:4150", "c:4150"}


def test_nodes_whose_topics_are_all_tombstoned_are_no_nodes(known: Known) -> None:
    known.two.has = []
    known.one.has = [producer("a", tombstones=(True, True)), producer("b", tombstones=(True, False)), producer("c")]
    assert known.discovery.nodes() == {"b:4150", "c:4150"}


def test_one_that_does_not_answer_keeps_its_nodes_and_is_logged_once(known: Known, caplog: pytest.LogCaptureFixture) -> None:
    known.lookup()
    known.one.fails = BrokerUnreachable("one is down")
    assert known.lookup() == "abc"
    assert known.lookup() == "abc"
    assert [record.levelname for record in caplog.records if record.levelno >= 30] == ["WARNING"]
    known.two.fails = ZeroDivisionError("a bug")
    with pytest.raises(BrokerUnreachable, match="no nsqlookupd answered: one is down; nsqlookupd two: ZeroDivisionError: a bug"):
        known.lookup()
    known.one.fails = known.two.fails = None
    caplog.clear()
    with caplog.at_level("INFO"):
        known.lookup()
        known.lookup()
    assert [record.getMessage() for record in caplog.records] == ["nsqlookupd one answers again"]
    known.one.fails = BrokerUnreachable("one is down")
    known.lookup()
    assert caplog.records[-1].levelname == "WARNING"


def test_where_a_node_answers_http_is_remembered(known: Known) -> None:
    known.two.has = [producer("b", http=0), producer("c", http=99)]
    known.lookup()
    assert [known.discovery.http_of(f"{name}:4150") for name in "abcd"] == ["a:4151", "b:4151", "c:99", ""]


def test_an_nsqd_without_an_address_is_left_out_and_named_once(known: Known, caplog: pytest.LogCaptureFixture) -> None:
    known.one.has = [producer("a"), producer("x", address="no address"), producer("y", address="no more")]
    known.two.has = []
    assert known.lookup() == "a"
    assert known.lookup() == "a"
    assert len(caplog.records) == 2


# --- MPUBs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "parts"), [
    ([], []), ([10], [1]), ([1000], [1]), ([10, 10], [2]), ([10, 11], [1, 1]), ([1000, 10, 10], [1, 2]), ([10, 1000], [1, 1]),
    ([10, 10, 10], [2, 1]),
])  # fmt: skip
def test_parts_are_as_large_as_they_may_be(sizes: list[int], parts: list[int]) -> None:
    most = wire.mpub_size([10, 10])
    assert [part.stop - part.start for part in split(sizes, most)] == parts


def test_of_many_it_is_said_how_many_were_stored_before_one_was_not() -> None:
    stored: list[bytes] = []

    def store(command: bytes, timeout: float) -> None:
        if command == b"bad":
            raise PublishError("no", stored=False)
        stored.append(command)

    failover: Any = SimpleNamespace(store=store)
    _store_many(failover, [(b"x", 3), (b"y", 4)], 7, 1.0)
    assert stored == [b"x", b"y"]
    with pytest.raises(PublishError, match=r"^7 of 9 messages are stored, then: no") as some:
        _store_many(failover, [(b"x", 3), (b"y", 4), (b"bad", 2)], 9, 1.0)
    assert some.value.stored is None
    with pytest.raises(PublishError, match=r"^no") as none:
        _store_many(failover, [(b"bad", 1), (b"x", 1)], 2, 1.0)
    assert none.value.stored is False
