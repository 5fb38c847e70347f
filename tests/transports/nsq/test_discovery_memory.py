"""What is remembered of what nsqlookupds said: which nodes are still named, for how long, and where they answer HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.transports.nsq import discovery as discovery_module
from framework.transports.nsq import register as register_module
from framework.transports.nsq.answers import Lookup, Producer
from framework.transports.nsq.discovery import LOST, Discovery
from framework.transports.nsq.register import CROWD, FRESH
from tests.transports.ruled import Clock


class Played:
    """An nsqlookupd that names ``nodes``, each with its topics."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.named: list[Producer] = []
        self.error: Exception | None = None
        self.seconds = 0.0
        self.lists = 0
        """How often it was asked for all nodes."""

    @classmethod
    def of(cls, address: str, *_: object, **__: object) -> Played:
        return ALL.setdefault(address, cls(address))

    def nodes(self) -> list[Producer]:
        self.lists += 1
        return self._answer()

    def lookup(self, topic: str) -> Lookup:
        return Lookup(producers=[one for one in self._answer() if topic in one.topics])

    def _answer(self) -> list[Producer]:
        gevent.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return list(self.named)


ALL: dict[str, Played] = {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (discovery_module, register_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[..., tuple[Discovery, list[Played]]]:
    monkeypatch.setattr(discovery_module, "Lookupd", Played)
    ALL.clear()

    def make(count: int = 1) -> tuple[Discovery, list[Played]]:
        names = [f"l{number}:4161" for number in range(count)]
        return Discovery(names), [ALL[name] for name in names]

    return make


Known = Callable[..., tuple[Discovery, list[Played]]]


def nsqd(host: str, topics: Sequence[str] = ("orders",), *, http_port: int = 4151, gone: Sequence[str] = ()) -> Producer:
    return Producer(host, 4150, http_port, topics=list(topics), tombstones=[topic in gone for topic in topics])


def test_a_node_that_is_gone_with_all_its_topics_is_named_for_a_minute_more(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    lookupd.named = [nsqd("a"), nsqd("b")]
    assert discovery.lookup("orders") == {"a:4150", "b:4150"}
    lookupd.named = [nsqd("b")]
    clock.now += 1
    for seconds in (0, LOST / 2, LOST / 4):
        clock.now += seconds
        assert discovery.lookup("orders") == discovery.known("orders") == {"a:4150", "b:4150"}
    clock.now += LOST / 4
    assert discovery.known("orders") == discovery.lookup("orders") == {"b:4150"}


def test_one_that_comes_back_and_is_lost_anew_has_its_minute_again(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    for _ in range(2):
        lookupd.named = [nsqd("a")]
        assert discovery.lookup("orders") == {"a:4150"}
        lookupd.named = []
        clock.now += 1
        assert discovery.lookup("orders") == {"a:4150"}
        clock.now += LOST - 1
        assert discovery.known("orders") == {"a:4150"}
    clock.now += 2
    assert discovery.known("orders") == set()


def test_several_that_are_lost_one_after_the_other_each_have_their_minute(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    lookupd.named = [nsqd("a"), nsqd("b")]
    discovery.lookup("orders")
    for lookupd.named in ([nsqd("b")], []):
        clock.now += LOST / 2
        assert discovery.lookup("orders") == {"a:4150", "b:4150"}
    clock.now += LOST / 2
    assert discovery.known("orders") == {"b:4150"}


def test_one_that_has_only_this_topic_no_more_is_forgotten_at_once(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    lookupd.named = [nsqd("a", ["orders", "news"])]
    assert discovery.lookup("orders") == {"a:4150"}
    lookupd.named = [nsqd("a", ["news"])]
    clock.now += 1
    assert discovery.lookup("orders") == set()


def test_one_that_came_back_and_has_only_this_topic_no_more_is_forgotten_at_once(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    for named in ([nsqd("a")], [], [nsqd("a", ["orders", "news"])]):
        lookupd.named = named
        clock.now += 1
        assert discovery.lookup("orders") == {"a:4150"}
    lookupd.named = [nsqd("a", ["news"])]
    clock.now += 1
    assert discovery.lookup("orders") == set()


def test_all_nodes_are_asked_for_only_where_one_is_gone(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    for lookupd.named in ([nsqd("a")], [nsqd("a")], [nsqd("a"), nsqd("b")]):
        discovery.lookup("orders")
        clock.now += 1
    assert lookupd.lists == 0


def test_what_there_is_to_publish_to_is_what_is_there_now(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    lookupd.named = [nsqd("a"), nsqd("b"), nsqd("c", gone=["orders"])]
    assert discovery.nodes() == {"a:4150", "b:4150"}
    lookupd.named = [nsqd("b")]
    clock.now += 1
    assert discovery.nodes() == discovery.known() == {"b:4150"}


def test_another_topic_of_a_node_says_nothing_of_this_one(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    lookupd.named = [nsqd("a", ["orders"]), nsqd("b", ["news"])]
    assert discovery.known("orders") == discovery.known() == set()
    assert discovery.lookup("orders") == {"a:4150"}
    assert discovery.lookup("news") == {"b:4150"}
    assert discovery.everywhere() == {"a:4150", "b:4150"}
    assert discovery.known("orders") == {"a:4150"}
    lookupd.named = []
    clock.now += 1
    assert discovery.lookup("news") == {"b:4150"}
    assert discovery.known("orders") == {"a:4150"}


def test_each_nsqlookupd_is_believed_of_its_own_nodes_and_a_silent_one_of_those_it_named_last(known: Known, clock: Clock) -> None:
    discovery, [one, other] = known(2)
    one.named, other.named = [nsqd("a")], [nsqd("b")]
    assert discovery.lookup("orders") == {"a:4150", "b:4150"}
    other.error = BrokerUnreachable("l1 does not answer")
    one.named = [nsqd("c")]
    clock.now += LOST
    assert discovery.lookup("orders") == {"a:4150", "b:4150", "c:4150"}
    clock.now += LOST
    assert discovery.lookup("orders") == {"b:4150", "c:4150"}


def test_of_many_topics_all_nodes_are_asked_for_once_in_a_while(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    topics = [f"t{number}" for number in range(CROWD)]
    lookupd.named = [nsqd("a", [*topics, "orders"], gone=["t0"]), nsqd("b", ["orders"])]
    for topic in topics:
        discovery.lookup(topic)
    assert lookupd.lists == 0
    assert discovery.lookup("orders") == {"a:4150", "b:4150"}
    assert (discovery.lookup("t1"), discovery.lookup("t0"), discovery.lookup("unknown")) == ({"a:4150"}, set(), set())
    assert lookupd.lists == 1
    clock.now += FRESH
    discovery.lookup("t1")
    assert lookupd.lists == 1
    clock.now += FRESH / 2
    lookupd.named = [nsqd("b", ["t1"])]
    assert discovery.lookup("t1") == {"a:4150", "b:4150"}, "the one that is lost is still named"
    assert lookupd.lists == 2


def test_where_none_answers_each_is_named_with_its_reason(known: Known) -> None:
    discovery, [one, other] = known(2)
    one.error, other.error = BrokerUnreachable("one is away"), BrokerUnreachable("other is away")
    for ask in (lambda: discovery.lookup("orders"), discovery.nodes):
        with pytest.raises(BrokerUnreachable, match="no nsqlookupd answered: one is away; other is away"):
            ask()


def test_without_any_nsqlookupd_nothing_is_known_and_nothing_is_wrong(known: Known) -> None:
    discovery, _ = known(0)
    assert discovery.lookup("orders") == discovery.nodes() == discovery.everywhere() == set()


def test_the_answers_that_come_a_little_later_count(known: Known) -> None:
    discovery, [one, other] = known(2)
    one.named, other.named = [nsqd("a")], [nsqd("b")]
    other.seconds = 0.02
    assert discovery.lookup("orders") == {"a:4150", "b:4150"}


def test_a_failure_that_comes_first_is_no_reason_to_hurry_the_others(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "GRACE", 0.0)
    discovery, [one, other] = known(2)
    one.error, other.named = BrokerUnreachable("one is away"), [nsqd("b")]
    other.seconds = 0.02
    assert discovery.lookup("orders") == {"b:4150"}


def test_where_a_node_answers_http_is_what_was_said_last(known: Known, clock: Clock) -> None:
    discovery, [lookupd] = known()
    assert discovery.http_of("a:4150") == ""
    lookupd.named = [nsqd("a", http_port=99), nsqd("b", http_port=0), nsqd("::1")]
    discovery.lookup("orders")
    assert [discovery.http_of(node) for node in ("a:4150", "b:4150", "[::1]:4150")] == ["a:99", "", "[::1]:4151"]
    lookupd.named = [nsqd("a", http_port=100)]
    clock.now += 1
    discovery.nodes()
    assert discovery.http_of("a:4150") == "a:100"


def test_one_that_stays_away_is_named_once_and_every_time_that_it_goes_away_again(
    known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    discovery, [one, other] = known(2)
    with caplog.at_level(logging.INFO):
        for error in (BrokerUnreachable("away"), BrokerUnreachable("away"), None, None, BrokerUnreachable("away"), None):
            other.error = error
            discovery.lookup("orders")
    away, back = "away; its nodes stay as they were", "nsqlookupd l1:4161 answers again"
    assert [record.getMessage() for record in caplog.records] == [away, back, away, back]
    assert one.error is None


def test_a_bug_in_one_query_leaves_the_others_their_answers(known: Known, caplog: pytest.LogCaptureFixture) -> None:
    discovery, [one, other] = known(2)
    one.named, other.error = [nsqd("a")], KeyError("a bug")
    assert discovery.lookup("orders") == {"a:4150"}
    assert "nsqlookupd l1:4161: asking it failed, which is a bug" in caplog.text
