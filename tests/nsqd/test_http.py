"""nsqd's HTTP API: the same requests to a real nsqd v1.3.0 and to ours, the same status, headers and body."""

from __future__ import annotations

import http.client
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from framework.testing.servers import Server

real = pytest.mark.real


def sized(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def ask(server: Server, method: str, path: str, body: bytes | None = None) -> tuple[int, str | None, str | None, bytes]:
    """(status, content type, nsqd's own header, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
    connection.request(method, path, body=body)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, answer.getheader("Content-Type"), answer.getheader("X-NSQ-Content-Type"), data


Asked = tuple[str, str] | tuple[str, str, bytes]

ROWS: dict[str, list[Asked]] = {
    "ping": [("GET", "/ping")],
    "unknown path": [("GET", "/nothing"), ("POST", "/put?topic=x")],
    "wrong method": [("POST", "/ping"), ("GET", "/pub?topic=a"), ("GET", "/topic/create?topic=a"), ("PUT", "/stats")],
    "pub": [("POST", "/pub?topic={t}", b"a")],
    "pub without a topic": [("POST", "/pub", b"a")],
    "pub bad topic": [("POST", "/pub?topic=a*b", b"a"), ("POST", "/pub?topic=", b"a")],
    "pub empty": [("POST", "/pub?topic={t}", b""), ("POST", "/pub", b"")],
    "pub of the maximum": [("POST", "/pub?topic={t}", b"x" * 1000)],
    "pub too big": [("POST", "/pub?topic={t}", b"x" * 1001)],
    "pub deferred": [("POST", "/pub?topic={t}&defer=3600000", b"a"), ("POST", "/pub?topic={t}&defer=0", b"a")],
    "pub deferred wrongly": [
        ("POST", "/pub?topic={t}&defer=-1", b"a"),
        ("POST", "/pub?topic={t}&defer=x", b"a"),
        ("POST", "/pub?topic={t}&defer=", b"a"),
        ("POST", "/pub?topic={t}&defer=1.5", b"a"),
        ("POST", "/pub?topic={t}&defer=3600001", b"a"),
    ],
    "mpub": [("POST", "/mpub?topic={t}", b"a\nb\n\nc\n"), ("POST", "/mpub?topic={t}", b"a")],
    "mpub of nothing": [("POST", "/mpub?topic={t}", b""), ("POST", "/mpub?topic={t}", b"\n\n")],
    "mpub without a topic": [("POST", "/mpub", b"a")],
    "mpub bad topic": [("POST", "/mpub?topic=a*b", b"a")],
    "mpub message too big": [("POST", "/mpub?topic={t}", b"a\n" + b"x" * 1001)],
    "mpub body too big": [("POST", "/mpub?topic={t}", b"x\n" * 2501)],
    "mpub binary": [
        ("POST", "/mpub?topic={t}&binary=true", sized(b"a", b"b")),
        ("POST", "/mpub?topic={t}&binary=1", sized(b"a")),
    ],
    "mpub binary of another word": [("POST", "/mpub?topic={t}&binary=yes", sized(b"a"))],
    "mpub binary=false is lines": [("POST", "/mpub?topic={t}&binary=false", sized(b"a"))],
    "mpub binary without a count": [("POST", "/mpub?topic={t}&binary=true", b"\0")],
    "mpub binary count 0": [("POST", "/mpub?topic={t}&binary=true", struct.pack(">i", 0))],
    "mpub binary cut": [("POST", "/mpub?topic={t}&binary=true", sized(b"a", b"bcd")[:-1])],
    "mpub binary empty message": [("POST", "/mpub?topic={t}&binary=true", sized(b"a", b""))],
    "mpub binary message too big": [("POST", "/mpub?topic={t}&binary=true", sized(b"x" * 1001))],
    "topic create": [("POST", "/topic/create?topic={t}"), ("POST", "/topic/create?topic={t}")],
    "topic create wrongly": [("POST", "/topic/create"), ("POST", "/topic/create?topic=a*b")],
    "topic delete": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/topic/delete?topic={t}"),
        ("POST", "/topic/delete?topic={t}"),
    ],
    "topic delete wrongly": [("POST", "/topic/delete"), ("POST", "/topic/delete?topic=a*b")],
    "topic empty": [("POST", "/pub?topic={t}", b"a"), ("POST", "/topic/empty?topic={t}")],
    "topic empty wrongly": [("POST", "/topic/empty"), ("POST", "/topic/empty?topic=a*b"), ("POST", "/topic/empty?topic={t}")],
    "topic pause": [("POST", "/topic/create?topic={t}"), ("POST", "/topic/pause?topic={t}"), ("POST", "/pub?topic={t}", b"a")],
    "topic unpause": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/topic/pause?topic={t}"),
        ("POST", "/topic/unpause?topic={t}"),
    ],
    "topic pause wrongly": [("POST", "/topic/pause"), ("POST", "/topic/pause?topic=a*b"), ("POST", "/topic/unpause?topic={t}")],
    "channel create": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/pub?topic={t}", b"a"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/pub?topic={t}", b"b"),
        ("POST", "/channel/create?topic={t}&channel=d"),
    ],
    "channel create wrongly": [
        ("POST", "/channel/create"),
        ("POST", "/channel/create?topic=a*b"),
        ("POST", "/channel/create?topic={t}"),
        ("POST", "/channel/create?topic={t}&channel=a*b"),
        ("POST", "/channel/create?topic={t}&channel=c"),
    ],
    "channel delete": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/delete?topic={t}&channel=c"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/channel/delete?topic={t}&channel=c"),
        ("POST", "/channel/delete?topic={t}"),
        ("POST", "/channel/delete?topic={t}x&channel=c"),
    ],
    "channel empty": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/empty?topic={t}&channel=c"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/mpub?topic={t}", b"a\nb\nc"),
        ("POST", "/channel/empty?topic={t}&channel=c"),
    ],
    "channel pause": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/pause?topic={t}&channel=c"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/channel/pause?topic={t}&channel=c"),
    ],
    "channel unpause": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/channel/pause?topic={t}&channel=c"),
        ("POST", "/channel/unpause?topic={t}&channel=c"),
        ("POST", "/channel/unpause?topic={t}"),
    ],
    "messages wait in a topic without a channel": [("POST", "/mpub?topic={t}", b"a\nb")],
    "messages wait in a paused topic": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("POST", "/topic/pause?topic={t}"),
        ("POST", "/mpub?topic={t}", b"a\nb"),
    ],
    "stats of an unknown topic": [("GET", "/stats?format=json&include_mem=false&topic=unknown")],
    "stats of an unknown channel": [
        ("POST", "/topic/create?topic={t}"),
        ("GET", "/stats?format=json&include_mem=false&topic={t}&channel=unknown"),
    ],
    "stats without clients": [
        ("POST", "/topic/create?topic={t}"),
        ("POST", "/channel/create?topic={t}&channel=c"),
        ("GET", "/stats?format=json&include_mem=false&include_clients=false&topic={t}"),
    ],
}
VARIES = {"start_time", "backend_depth", "memory"}
"""``backend_depth`` is what nsqd has on the disk; ours has all of it there."""


def plain(value: Any) -> Any:
    """JSON without what differs from one process to the next."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key not in VARIES}
    return [plain(one) for one in value] if isinstance(value, list) else value


def comparable(answer: tuple[int, str | None, str | None, bytes], topic: str) -> Any:
    status, kind, own, body = answer
    body = body.replace(topic.encode(), b"{t}")
    return status, kind if body else None, own, plain(json.loads(body)) if kind and "json" in kind else body


def settled(server: Server, topic: str) -> Any:
    """The topic's statistics once they no longer change: a real nsqd hands messages to channels after its OK."""
    before, now = None, plain(server.http(f"/stats?format=json&include_mem=false&topic={topic}"))
    while now != before:
        time.sleep(0.03)
        before, now = now, plain(server.http(f"/stats?format=json&include_mem=false&topic={topic}"))
    return json.loads(json.dumps(now).replace(topic, "{t}"))


@real
@pytest.mark.parametrize("name", ROWS)
def test_answers_as_nsqd_does(pair: tuple[Server, Server], name: str) -> None:
    topic = f"h{list(ROWS).index(name)}"
    theirs, ours = [list(answers(server, topic, ROWS[name])) for server in pair]
    assert ours == theirs
    assert settled(pair[1], topic) == settled(pair[0], topic)


def answers(server: Server, topic: str, rows: Sequence[Any]) -> Iterator[Any]:
    """What the server says to each row; what was published has reached the channels before the next one."""
    for method, path, *body in rows:
        yield comparable(ask(server, method, path.replace("{t}", topic), *body), topic)
        if path.startswith("/mpub"):
            settled(server, topic)


@real
@pytest.mark.parametrize("path", ["/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/freememory"])
def test_what_is_not_offered_is_refused_as_nsqd_refuses_what_it_does_not_know(pair: tuple[Server, Server], path: str) -> None:
    theirs, ours = ask(pair[0], "GET", "/debug/nothing"), ask(pair[1], "GET", path)
    assert comparable(ours, "-") == comparable(theirs, "-")
    assert ours[0] == 404


@real
def test_info_has_nsqds_keys(pair: tuple[Server, Server]) -> None:
    theirs, ours = [server.http("/info") for server in pair]
    assert list(ours) == list(theirs)
    for name in set(theirs) - {"start_time", "tcp_port", "http_port"}:
        assert ours[name] == theirs[name]
    assert ours["tcp_port"] == pair[1].tcp_port


@real
def test_stats_of_a_consumer_have_nsqds_keys_and_values(pair: tuple[Server, Server], talk: Callable[..., Any]) -> None:
    seen = []
    for server in pair:
        client = talk(server)
        client.send(b"IDENTIFY\n" + sized_one(b'{"client_id":"me","hostname":"here","user_agent":"x/1","sample_rate":0}'))
        client.send(b"SUB stats c\nRDY 2\n" + b"".join(b"PUB stats\n" + sized_one(body) for body in (b"1", b"2", b"33")))
        ids = [message_id for message_id, _, _ in client.get(2)]
        client.send(b"FIN %b\nREQ %b 60000\n" % (ids[0], ids[1]))
        client.get(3)
        stats = settled(server, "stats")
        for entry in (*stats["topics"][0]["channels"][0]["clients"], *stats["producers"]):
            del entry["remote_address"], entry["connect_ts"]
        seen.append(stats)
    assert seen[1] == seen[0]
    assert list(seen[1]["topics"][0]["channels"][0]["clients"][0]) == list(seen[0]["topics"][0]["channels"][0]["clients"][0])


def sized_one(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@real
def test_stats_of_a_client_that_said_nothing_name_its_host(pair: tuple[Server, Server], talk: Callable[..., Any]) -> None:
    for server in pair:
        client = talk(server)
        client.send(b"SUB nobody c\n")
        assert client.reply(1) == [b"OK"]
        (shown,) = server.channel_stats("nobody", "c")["clients"]
        assert (shown["client_id"], shown["hostname"]) == ("127.0.0.1", "127.0.0.1")


@real
def test_an_ephemeral_topic_has_nothing_on_the_disk(pair: tuple[Server, Server]) -> None:
    for server in pair:
        server.http("/pub?topic=brief%23ephemeral", b"x")
        (topic,) = server.http("/stats?format=json&topic=brief%23ephemeral")["topics"]
        assert (topic["depth"], topic["backend_depth"]) == (1, 0)


@real
def test_memory_statistics_have_nsqds_keys(pair: tuple[Server, Server]) -> None:
    theirs, ours = [server.http("/stats?format=json") for server in pair]
    assert list(ours) == list(theirs)
    assert list(ours["memory"]) == list(theirs["memory"])
    has_some = {name for name, count in ours["memory"].items() if count > 0}
    assert has_some == {"heap_in_use_bytes", "gc_total_runs"}
    assert min(ours["memory"].values()) == 0, "what CPython has no such number of"


def test_stats_for_people_name_topics_and_channels(shared: Server) -> None:
    shared.http("/topic/create?topic=people", b"")
    shared.http("/channel/create?topic=people&channel=c", b"")
    text = shared.http("/stats")
    assert text.startswith("nsqd v1.3.0 (built w/")
    assert "[people " in text
    assert "[c " in text


def test_deleting_a_topic_ends_its_consumers_connections(shared: Server, talk: Callable[..., Any]) -> None:
    client = talk(shared)
    client.send(b"SUB gone c\n")
    client.reply(1)
    shared.http("/topic/delete?topic=gone", b"")
    assert client.until(lambda: client.closed)


def test_emptying_a_channel_makes_late_finishes_fail(shared: Server, talk: Callable[..., Any]) -> None:
    client = talk(shared)
    client.send(b"SUB late c\nRDY 1\nPUB late\n" + sized_one(b"a"))
    ((message_id, _, _),) = client.get(1)
    shared.http("/channel/empty?topic=late&channel=c", b"")
    client.send(b"FIN " + message_id + b"\n")
    assert client.reply(3)[-1] == b"E_FIN_FAILED FIN " + message_id + b" failed ID not in flight"


def test_a_paused_channel_delivers_nothing_until_it_is_not(shared: Server, talk: Callable[..., Any]) -> None:
    client = talk(shared)
    client.send(b"SUB pause c\nRDY 5\n")
    client.reply(1)
    shared.http("/channel/pause?topic=pause&channel=c", b"")
    shared.http("/pub?topic=pause", b"a")
    assert not client.read(0.2)
    shared.http("/channel/unpause?topic=pause&channel=c", b"")
    assert [body for _, _, body in client.get(1)] == [b"a"]


def test_a_paused_topic_keeps_its_messages_for_the_channels_it_has_later(shared: Server, talk: Callable[..., Any]) -> None:
    client = talk(shared)
    client.send(b"SUB hold c\nRDY 5\n")
    client.reply(1)
    shared.http("/topic/pause?topic=hold", b"")
    shared.http("/pub?topic=hold", b"a")
    assert not client.read(0.2)
    shared.http("/channel/create?topic=hold&channel=d", b"")
    shared.http("/topic/unpause?topic=hold", b"")
    assert [body for _, _, body in client.get(1)] == [b"a"]
    assert shared.channel_stats("hold", "d")["depth"] == 1


CONFIG: list[tuple[str, str, bytes | None]] = [
    ("GET", "/config/nsqlookupd_tcp_addresses", None),
    ("GET", "/config/log_level", None),
    ("GET", "/config/max_msg_size", None),
    ("GET", "/config/msg_timeout", None),
    ("GET", "/config/log_prefix", None),
    ("GET", "/config/nonsense", None),
    ("GET", "/config/", None),
    ("POST", "/config/log_level", b"debug"),
    ("PUT", "/config/max_msg_size", b"5"),
    ("PUT", "/config/nonsense", b"5"),
    ("PUT", "/config/log_level", b"loud"),
    ("PUT", "/config/log_level", b""),
    ("PUT", "/config/log_level", b"x" * 1001),
    ("PUT", "/config/log_level", b"Debug"),
    ("GET", "/config/log_level", None),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b'"127.0.0.1:1"'),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[1]"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[nope"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b'["127.0.0.1:1", "127.0.0.1:2"]'),
    ("GET", "/config/nsqlookupd_tcp_addresses", None),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"[]"),
    ("OPTIONS", "/config/log_level", None),
]


def test_options_are_shown_and_changed_as_nsqd_does(pair: tuple[Server, Server]) -> None:
    answers = []
    for server in pair:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
        said = []
        for method, path, body in CONFIG:
            connection.request(method, path, body)
            answer = connection.getresponse()
            said.append((method, path, body, answer.status, answer.read(), answer.getheader("Allow")))
        connection.close()
        answers.append(said)
    assert answers[1] == answers[0]


def test_requests_on_one_connection_do_not_wait_for_each_other(shared: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.http_port, timeout=10)
    began = time.monotonic()
    for _ in range(200):
        connection.request("POST", "/pub?topic=quick", b"x")
        assert connection.getresponse().read() == b"OK"
    connection.close()
    assert time.monotonic() - began < 6  # 9 s where each waits for a delayed ACK
