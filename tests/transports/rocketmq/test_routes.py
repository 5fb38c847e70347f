"""What name servers say, who of them is asked, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from framework.errors import (
    BadSetting,
    BrokerRefuses,
    BrokerUnreachable,
    TlsFailed,
)
from framework.transports.rocketmq import routes
from framework.transports.rocketmq.routes import MOST_QUEUES, NO_NAME_SERVER, OLDEST, NameServers, standard
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame


class Asked:
    """A session to a name server."""

    def __init__(self, said: Any) -> None:
        self._said = said
        self.asked: list[int] = []

    def ask(self, code: int, fields: dict[str, str]) -> Frame:
        self.asked.append(code)
        said = self._said[code] if isinstance(self._said, dict) else self._said
        if isinstance(said, Exception):
            raise said
        return Frame(0, body=said)


class Dialled:
    """``sessions.Sessions``."""

    def __init__(self, **servers: Any) -> None:
        self.sessions = {name: Asked(said) for name, said in servers.items()}
        self.order: list[str] = []
        self.taken: list[str] = []
        self.back: list[Any] = []

    @contextmanager
    def use(self, server: str) -> Iterator[Any]:
        self.order.append(server)
        yield self.sessions[server]

    def take(self, server: str) -> Any:
        self.taken.append(server)
        return self.sessions[server]

    def give_back(self, session: Any) -> None:
        self.back.append(session)


def servers(dialled: Dialled) -> NameServers:
    some: Any = dialled
    return NameServers(list(dialled.sessions), some)


CLUSTER = b'{"brokerAddrTable":{"a":{"brokerName":"a","brokerAddrs":{0:"a:1"},"cluster":"x"},'
CLUSTER += b'"b":{"brokerName":"b","brokerAddrs":{0:"b:1",1:"b:2"},"cluster":"y"},'
CLUSTER += b'"c":{"brokerName":"c","brokerAddrs":{1:"c:2"},"cluster":"z"}}}'


def route(*, perm: int = 6, queues: int = 4) -> bytes:
    said = '{"queueDatas":[{"brokerName":"a","perm":%d,"readQueueNums":%d,"writeQueueNums":3}],'
    return (said % (perm, queues) + '"brokerDatas":[{"brokerName":"a","brokerAddrs":{0:"a:1"},"cluster":"x"}]}').encode()


def test_the_one_that_answered_last_is_asked_first() -> None:
    dialled = Dialled(one=BrokerUnreachable("one is down"), two=CLUSTER, three=CLUSTER)
    asked = servers(dialled)
    assert {name: each.address for name, each in asked.masters().items()} == {"a": "a:1", "b": "b:1"}
    asked.masters()
    assert dialled.order == ["one", "two", "two"]


NOTHING = error_of(Frame(Answer.TOPIC_NOT_EXIST, remark="no route"))
STARTED = {Request.GET_BROKER_CLUSTER_INFO: b"{}", Request.GET_ROUTEINFO_BY_TOPIC: NOTHING}
"""A moment ago: it knows of nothing."""


def test_one_that_has_not_heard_of_a_broker_or_topic_is_not_believed_while_there_is_another() -> None:
    knows = {Request.GET_BROKER_CLUSTER_INFO: CLUSTER, Request.GET_ROUTEINFO_BY_TOPIC: route()}
    dialled = Dialled(new=STARTED, down=BrokerUnreachable("it is down"), old=knows)
    asked = servers(dialled)
    assert list(asked.masters()) == ["a", "b"]
    assert dialled.order == ["new", "down", "old"]
    asked = servers(Dialled(new=STARTED, old=knows))
    assert list(asked.route("t")) == ["a"]
    assert list(asked.route("t")) == ["a"]


@pytest.mark.parametrize("others", [{}, {"down": BrokerUnreachable("it is down")}, {"new": STARTED}])
def test_where_none_that_answers_has_heard_of_it_there_is_none(others: dict[str, Any]) -> None:
    asked = servers(Dialled(one=STARTED, **others))
    assert asked.masters() == {}
    assert asked.route("t") == {}


@pytest.mark.parametrize(("errors", "raised", "words"), [
    ([BrokerUnreachable("x is down")], BrokerUnreachable, "x is down"),
    ([TlsFailed("x says no"), TlsFailed("y says no")], BrokerRefuses, "no"),
    ([TlsFailed("x says no"), BrokerUnreachable("y is down")], BrokerUnreachable, "s0: .*; s1: .*"),
    ([error_of(Frame(Answer.SYSTEM_ERROR, remark="what"))], BrokerUnreachable, "s0: .*what"),
])  # fmt: skip
def test_where_none_answers_all_are_named(errors: list[Exception], raised: type[Exception], words: str) -> None:
    dialled = Dialled(**{f"s{number}": error for number, error in enumerate(errors)})
    with pytest.raises(raised, match=words) as found:
        servers(dialled).masters()
    assert type(found.value) is raised
    assert (len(errors) == 1 and isinstance(errors[0], BrokerUnreachable)) is (found.value is errors[0])


def test_a_broker_in_place_of_a_name_server_is_told_as_that() -> None:
    refusal = error_of(Frame(Answer.REQUEST_CODE_NOT_SUPPORTED, remark="no"))
    with pytest.raises(BadSetting) as found:
        servers(Dialled(one=refusal, two=CLUSTER)).masters()
    assert str(found.value) == NO_NAME_SERVER.format("one")


def test_topics_are_made_in_one_cluster_that_is_named_where_there_are_several() -> None:
    asked = servers(Dialled(one=CLUSTER))
    assert list(asked.masters_of("x")) == ["a"]
    with pytest.raises(BadSetting, match="the clusters x, y: name one"):
        asked.masters_of("")
    with pytest.raises(BrokerUnreachable, match="no broker of the cluster w, but of x, y"):
        asked.masters_of("w")
    with pytest.raises(BrokerUnreachable, match="knows no broker: is one started"):
        servers(Dialled(one=b"{}")).masters_of("")


def test_a_connection_to_a_name_server_is_kept_on_its_own_hub_alone() -> None:
    dialled = Dialled(one=CLUSTER)
    asked = servers(dialled)
    asked.masters()
    assert dialled.taken == []
    asked.keep()
    asked.masters()
    asked.masters()
    assert (dialled.taken, dialled.back) == (["one"], [])
    before, dialled.sessions["one"] = dialled.sessions["one"], Asked(CLUSTER)
    asked.masters()
    assert (dialled.taken, dialled.back) == (["one", "one"], [before])


def test_a_topic_has_no_more_queues_than_anyone_would_make() -> None:
    assert len(servers(Dialled(one=route(queues=4))).queues("t")) == 4
    two = b'{"queueDatas":[{"brokerName":"a","readQueueNums":65536},{"brokerName":"b","readQueueNums":%d}]}'
    assert len(servers(Dialled(one=two % 0)).queues("t")) == MOST_QUEUES
    with pytest.raises(Exception, match="no topic has so many"):
        servers(Dialled(one=two % 1)).queues("t")


@pytest.mark.parametrize(
    ("perm", "there", "reads", "queues"), [(6, 1, {"a"}, 4), (4, 1, {"a"}, 4), (2, 1, set(), 0), (0, 0, set(), 0)]
)
def test_who_has_a_topic_and_who_lets_it_be_read(perm: int, there: int, reads: set[str], queues: int) -> None:
    asked = servers(Dialled(one=route(perm=perm)))
    assert (len(asked.route("t")), asked.readers("t"), len(asked.queues("t"))) == (there, reads, queues)
    if there:
        assert (asked.route("t")["a"].queues, asked.route("t")["a"].perm) == (3, perm)


def test_routes_are_remembered_until_they_are_old_while_the_brokers_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(routes, "monotonic", lambda: now[0])
    said = {Request.GET_ROUTEINFO_BY_TOPIC: route(), Request.GET_BROKER_CLUSTER_INFO: CLUSTER}
    dialled = Dialled(one=said)
    asked = servers(dialled)
    asked.keep()

    def asks(topic: str) -> int:
        """How often a route was asked for."""
        asked.readers(topic)
        found = dialled.sessions["one"].asked.count(Request.GET_ROUTEINFO_BY_TOPIC)
        dialled.sessions["one"].asked.clear()
        return found

    assert [asks("t"), asks("u"), asks("t")] == [1, 1, 0]
    now[0] += OLDEST - 0.01
    assert asks("t") == 0
    now[0] += 0.01
    assert asks("t") == 1
    assert list(asked._recent) == ["t"], "the other is as old"
    asked.forget()
    assert asks("t") == 1


def test_numbers_in_place_of_names_are_quoted() -> None:
    assert standard(b'{0:"a",-1:{"2:":3}}') == b'{"0":"a","-1":{"2:":3}}'
    assert standard(b"") == b"{}"
