"""How the nsqds of a backlog are asked: which of them, for how long, and which of those that say nothing are down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
import pytest

from framework.errors import AccessDenied, BrokerError, BrokerUnreachable, ProtocolError, SomeUnreachable, TlsFailed
from framework.transports.kept import Kept
from framework.transports.nsq import backlog as module
from framework.transports.nsq.answers import ChannelStats, Producer, Stats, TopicStats
from framework.transports.nsq.backlog import BRIEF, PATIENCE, RECENT, Backlog
from framework.transports.nsq.urls import Addresses, Options

AWAY = BrokerUnreachable("no answer")


@dataclass
class House:
    """What there is: nsqds by where their HTTP is, and who has no TCP."""

    stats: dict[str, list[TopicStats]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    no_tcp: dict[str, Exception] = field(default_factory=dict)
    seconds: float = 0.0
    tells_all: bool = False
    """Whatever topic it is asked for, as nsqds of old."""
    named: Any = ()
    known: dict[str, str] = field(default_factory=dict)
    """By the discovery: node -> where its HTTP is."""
    now: float = 1000.0
    asked: list[tuple[str, float]] = field(default_factory=list)
    """Whom, and for how long."""
    dialled: list[tuple[str, float]] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)

    # -- an nsqlookupd or several, and the discovery

    def producers(self) -> list[list[Producer]]:
        if isinstance(self.named, Exception):
            raise self.named
        return [list(self.named)]

    def everywhere(self) -> set[str]:
        return set(self.known)

    def http_of(self, node: str) -> str:
        return self.known.get(node, "")

    def backlog(self, *nsqds: str) -> Backlog:
        made = Backlog(Addresses(nsqds, (), Options()), self)  # type: ignore[arg-type]
        made._lookups = self  # type: ignore[assignment]
        return made


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    found = House()

    class Nsqd:
        """Its HTTP."""

        timeout = 0.0

        def __init__(self, address: str, **_: object) -> None:
            self.address = address

        @classmethod
        def of(cls, node: str, options: Options) -> Nsqd:
            return cls(f"{node}:http")

        def stats(self, topic: str, *, clients: bool) -> Stats:
            assert not clients, "nobody looks at them, and there may be thousands"
            found.asked.append((self.address, self.timeout))
            gevent.sleep(found.seconds)
            self._fail()
            there = found.stats.get(self.address, [])
            return Stats(topics=[one for one in there if found.tells_all or topic in ("", one.topic_name)] or None)

        def _fail(self) -> None:
            if self.address in found.errors:
                raise found.errors[self.address]

        def __getattr__(self, name: str) -> Callable[..., None]:
            def tell(*what: object, **how: object) -> None:
                self._fail()
                found.told.append((self.address, name, *what, *how.values()))

            return tell

    @contextmanager
    def dial(node: str, options: Options, *, timeout: float) -> Iterator[None]:
        found.dialled.append((node, timeout))
        if node in found.no_tcp:
            raise found.no_tcp[node]
        yield

    monkeypatch.setattr(module, "Nsqd", Nsqd)
    monkeypatch.setattr(module, "dial", dial)
    monkeypatch.setattr(module, "monotonic", lambda: found.now)
    return found


def topic(name: str = "news", depth: int = 0, *channels: ChannelStats, paused: bool = False) -> TopicStats:
    return TopicStats(name, depth=depth, channels=list(channels), paused=paused)


# -- what is kept


@pytest.mark.parametrize(("stats", "kept"), [
    (topic("news", 3), Kept(3, consumers=0)),
    (topic("news", 3, paused=True), Kept(3, consumers=0, paused=True)),
    (topic("news", 3, ChannelStats("other", depth=9)), Kept(0, consumers=0)),
    (topic("news", 3, ChannelStats("other", depth=9, paused=True)), Kept(0, consumers=0)),
    (topic("news", 3, ChannelStats("archive", 10, 0, 20, 30, 40, client_count=2)), Kept(13, 20, 30, 43, 2)),
    (topic("news", 0, ChannelStats("other", 9), ChannelStats("archive", 1)), Kept(1, came=0, consumers=0)),
    (topic("news", 0, ChannelStats("archive", paused=True)), Kept(0, came=0, consumers=0, paused=True)),
    (topic("news", 0, ChannelStats("archive"), paused=True), Kept(0, came=0, consumers=0, paused=True)),
])  # fmt: skip
@pytest.mark.parametrize("tells_all", [False, True])
def test_what_a_node_keeps_for_a_channel(house: House, stats: TopicStats, kept: Kept, tells_all: bool) -> None:
    house.tells_all = tells_all
    house.stats = {"a:http": [stats, topic("weather", 7)], "b:http": [topic("weather", 7)]}
    backlog = house.backlog("a", "b")
    assert backlog.kept("news", "archive") == {"a": kept}
    assert backlog.of_channel("news", "archive") == {"a": kept.total}
    assert backlog.topics() == {"news", "weather"}


# -- whom is asked


def test_nodes_that_are_named_by_an_nsqlookupd_are_asked_where_it_says_and_the_others_where_their_url_says(house: House) -> None:
    house.named = [Producer("a", 4150, 99), Producer("c", 4150, 4151)]
    house.stats = {one: [topic()] for one in ("a:4150:http", "b:4150:http", "c:4151", "a:99")}
    assert house.backlog("a:4150", "b:4150").of_channel("news", "archive").keys() == {"a:4150", "b:4150", "c:4150"}
    assert sorted(house.asked) == [("a:4150:http", PATIENCE), ("b:4150:http", PATIENCE), ("c:4151", PATIENCE)]


def test_while_no_nsqlookupd_answers_those_that_are_known_are_asked_and_there_may_be_others(house: House) -> None:
    house.named = BrokerUnreachable("no nsqlookupd")
    house.known = {"c:4150": "c:99", "d:4150": ""}
    house.stats = {one: [topic("news", 1)] for one in ("a:4150:http", "c:99", "d:4150:http")}
    with pytest.raises(SomeUnreachable, match=r"^no nsqlookupd$") as caught:
        house.backlog("a:4150").of_channel("news", "archive")
    assert (caught.value.down, caught.value.answers) == (set(), {"a:4150": 1, "c:4150": 1, "d:4150": 1})


def test_where_no_nsqlookupd_answers_and_none_has_named_a_node_that_is_the_error(house: House) -> None:
    house.named = BrokerUnreachable("no nsqlookupd")
    with pytest.raises(BrokerUnreachable, match=r"^no nsqlookupd$") as caught:
        house.backlog("a:4150").topics()
    assert not isinstance(caught.value, SomeUnreachable)
    assert house.asked == []


def test_where_there_is_none_at_all_there_is_nothing(house: House) -> None:
    assert house.backlog().topics() == set()
    assert house.backlog().kept("news", "archive") == {}


# -- those that do not answer


def failed(house: House, *nsqds: str, times: int = 1) -> BrokerUnreachable:
    backlog = house.backlog(*nsqds)
    for _ in range(times):
        with pytest.raises(BrokerUnreachable) as caught:
            backlog.topics()
    return caught.value


def test_those_without_tcp_as_well_are_down_and_what_the_others_said_is_told(house: House) -> None:
    house.stats = {"a:http": [topic()]}
    house.errors, house.no_tcp = {"b:http": AWAY}, {"b": AWAY}
    error = failed(house, "a", "b")
    assert isinstance(error, SomeUnreachable)
    assert (error.down, error.answers, str(error)) == ({"b"}, {"news"}, "no answer")
    assert house.dialled == [("b", PATIENCE)]


REFUSING = AccessDenied("E_AUTH_FAILED", "because"), TlsFailed("no certificate"), ProtocolError("it speaks another tongue")


@pytest.mark.parametrize("tcp", [{}, *({"b": error} for error in REFUSING)], ids=["there", "no auth", "no tls", "no nsqd"])
def test_one_that_can_be_published_to_is_not_down(house: House, tcp: dict[str, Exception]) -> None:
    house.errors, house.no_tcp = {"b:http": AWAY, "c:http": AWAY}, {"c": AWAY, **tcp}
    error = failed(house, "a", "b", "c")
    assert not isinstance(error, SomeUnreachable)
    assert str(error) == "no answer; no answer"


def test_where_all_are_down_nothing_is_known(house: House) -> None:
    house.errors, house.no_tcp = {"a:http": AWAY, "b:http": AWAY}, {"a": AWAY, "b": AWAY}
    assert not isinstance(failed(house, "a", "b"), SomeUnreachable)


def test_one_that_was_heard_before_is_down_for_the_moment_and_is_not_dialled(house: House) -> None:
    backlog = house.backlog("a", "b")
    house.stats = {"a:http": [topic()]}
    assert backlog.topics() == {"news"}
    house.errors = {"b:http": AWAY}
    with pytest.raises(SomeUnreachable) as caught:
        backlog.topics()
    assert (caught.value.down, house.dialled) == ({"b"}, [])


def test_one_that_was_heard_before_and_refuses_is_down_only_if_it_has_no_tcp(house: House) -> None:
    backlog = house.backlog("a", "b")
    backlog.topics()
    house.errors = {"b:http": BrokerError("E", "an error of its own", fatal=False)}
    with pytest.raises(BrokerUnreachable, match="an error of its own") as caught:
        backlog.topics()
    assert not isinstance(caught.value, SomeUnreachable)
    house.no_tcp = {"b": AWAY}
    with pytest.raises(SomeUnreachable):
        backlog.topics()
    assert house.dialled == [("b", PATIENCE)] * 2


def test_one_that_is_silent_for_a_moment_is_dialled_once_meanwhile(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "A_MOMENT", 0.001)
    house.seconds = 0.05
    house.errors, house.no_tcp = {"b:http": AWAY}, {"b": AWAY}
    assert isinstance(failed(house, "a", "b"), SomeUnreachable)
    assert sorted(house.dialled) == [("a", PATIENCE), ("b", PATIENCE)]


def test_one_whose_http_is_slow_and_that_refuses_us_by_tcp_has_its_answer_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no AUTH by HTTP: the refusal was told in place of the answer."""
    monkeypatch.setattr(module, "A_MOMENT", 0.001)
    house.seconds = 1.0
    house.stats, house.no_tcp = {"a:http": [topic()]}, {"a": AccessDenied("E_AUTH_FAILED", "because")}
    assert house.backlog("a").topics() == {"news"}
    assert house.dialled == [("a", PATIENCE)]


def test_one_that_gave_no_answer_a_moment_ago_has_less_time_until_it_answers_or_a_while_has_gone(house: House) -> None:
    backlog = house.backlog("a", "b")
    house.errors, house.no_tcp = {"b:http": AWAY}, {"b": AWAY}

    def patience() -> dict[str, float]:
        house.asked.clear()
        with pytest.raises(SomeUnreachable):
            backlog.topics()
        return dict(house.asked)

    assert patience() == {"a:http": PATIENCE, "b:http": PATIENCE}
    house.now += RECENT - 1
    assert patience() == {"a:http": PATIENCE, "b:http": BRIEF}
    house.now += 1  # it counts from when it was waited for in earnest
    assert patience() == {"a:http": PATIENCE, "b:http": PATIENCE}
    house.errors.clear()
    backlog.topics()
    house.asked.clear()
    backlog.topics()
    assert dict(house.asked) == {"a:http": PATIENCE, "b:http": PATIENCE}


def test_one_that_refuses_has_all_its_time(house: House) -> None:
    house.errors, house.no_tcp = {"b:http": BrokerError("E", "because", fatal=False)}, {"b": AWAY}
    failed(house, "a", "b", times=2)
    assert dict(house.asked) == {"a:http": PATIENCE, "b:http": PATIENCE}


# -- what they are told


@pytest.mark.parametrize("tells_all", [False, True])
def test_a_pause_is_told_to_those_that_have_what_is_paused(house: House, tells_all: bool) -> None:
    house.tells_all = tells_all
    house.stats = {"a:http": [topic("news", 0, ChannelStats("archive"))], "b:http": [topic("news"), topic("weather")]}
    backlog = house.backlog("a", "b", "c")
    assert backlog.pause("news", "archive", paused=True) == {"a"}
    assert backlog.pause("news", "", paused=False) == {"a", "b"}
    assert backlog.pause("sports", "", paused=True) == set()
    assert house.told == [
        ("a:http", "pause_channel", "news", "archive", True),
        ("a:http", "pause_topic", "news", False), ("b:http", "pause_topic", "news", False),
    ]  # fmt: skip


def test_a_pause_that_not_every_node_could_be_told_of_is_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.stats = {"a:http": [topic("news")], "b:http": [topic("news")]}

    def pause(self: Any, topic: str, *, paused: bool) -> None:
        house.told.append((self.address,))
        raise BrokerUnreachable(f"{self.address} is gone")

    monkeypatch.setattr(module.Nsqd, "pause_topic", pause, raising=False)
    with pytest.raises(BrokerUnreachable, match="a:http is gone; b:http is gone"):
        house.backlog("a", "b").pause("news", "", paused=True)
    assert house.told == [("a:http",), ("b:http",)]


def test_a_topic_and_its_channels_are_made_on_every_node(house: House) -> None:
    house.backlog("a", "b").ensure("news", ["archive", "index"])
    assert sorted(house.told) == sorted(
        (node, *what)
        for node in ("a:http", "b:http")
        for what in (("create_topic", "news"), ("create_channel", "news", "archive"), ("create_channel", "news", "index"))
    )
