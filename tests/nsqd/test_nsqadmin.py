"""Real nsqadmin over real servers and over ours: it shows the same and can do the same."""

from __future__ import annotations

import http.client
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

from framework.testing import servers
from framework.testing.servers import Server

pytestmark = pytest.mark.real


class Site:
    """An nsqlookupd, an nsqd that registers with it, and an nsqadmin that looks at them."""

    def __init__(self, lookupd: Server, nsqd: Server, admin: Server) -> None:
        self.lookupd = lookupd
        self.nsqd = nsqd
        self.admin = admin

    def ask(self, method: str, path: str, body: dict[str, str] | None = None) -> tuple[int, Any]:
        """The answer of nsqadmin's API, without what differs between any two runs."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin.http_port, timeout=20)
        connection.request(method, path.replace("{node}", self.nsqd.http_address), json.dumps(body) if body else None)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, self._plain(json.loads(data))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._plain(name): "" if name in VARIES else self._plain(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._plain(one) for one in value]
        if value in (self.nsqd.tcp_port, self.nsqd.http_port):
            return "a port"
        return re.sub(r"127\.0\.0\.1:\d+", "an address", value) if isinstance(value, str) else value


VARIES = ("start_time", "memory", "connect_ts", "connected", "e2e_processing_latency", "backend_depth", "memory_depth")


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module", params=["lookupd", "nsqd"])
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Site]]:
    """Real servers, and ours; nsqadmin is pointed to nsqlookupd, and to nsqd itself."""
    started: list[Server] = []

    def start(server: Server) -> Server:
        server.start()
        started.append(server)
        return server

    try:
        built = []
        for lookupd, nsqd in (
            (servers.real_nsqlookupd, servers.real_nsqd),
            (servers.own_nsqlookupd, servers.own_nsqd),
        ):
            one = start(lookupd())
            other = start(nsqd(tmp_path_factory.mktemp("data"), f"--lookupd-tcp-address={one.address}"))
            flags = [f"--lookupd-http-address={one.http_address}", f"--nsqd-http-address={other.http_address}"]
            flag = flags[request.param == "nsqd"]
            built.append(Site(one, other, start(servers.real_nsqadmin(flag))))
            wait_for(lambda one=one: len(one.http("/nodes")["producers"]) == 1)
        yield built
    except servers.ServerMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    finally:
        for server in started:
            server.kill()


def test_it_shows_topics_channels_nodes_clients_and_counters(sites: list[Site], talk: Any) -> None:
    said = []
    for site in sites:
        for name in ("t", "u"):
            site.nsqd.http(f"/topic/create?topic={name}", b"")
        for name in ("c", "d"):
            site.nsqd.http(f"/channel/create?topic=t&channel={name}", b"")
        wait_for(lambda site=site: len(next(iter(site.lookupd.http("/channels?topic=t").values()))) == 2)
        wait_for(lambda site=site: len(next(iter(site.lookupd.http("/topics").values()))) == 2)
        client = talk(site.nsqd)
        body = json.dumps({"client_id": "me", "hostname": "box", "user_agent": "test/1"}).encode()
        client.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body + b"SUB t c\nRDY 2\n")
        for _ in range(3):
            site.nsqd.http("/pub?topic=t", b"hello")
        (first, *_) = client.get(2)
        client.send(b"RDY 0\nFIN " + first[0] + b"\n")
        wait_for(lambda site=site: site.nsqd.channel_stats("t", "c")["in_flight_count"] == 1)
        paths = ["topics", "topics/t", "topics/t/c", "topics/t/d", "topics/u", "nodes", "nodes/{node}", "counter", "topics/none"]
        said.append([(path, *site.ask("GET", f"/api/{path}")) for path in paths])
    assert said[1] == said[0]
    assert said[1][2][2]["clients"][0]["user_agent"] == "test/1"


ACTIONS: list[tuple[str, str, dict[str, str] | None]] = [
    ("POST", "topics/a/c", {"action": "pause"}),
    ("POST", "topics/a/c", {"action": "unpause"}),
    ("POST", "topics/a/c", {"action": "empty"}),
    ("POST", "topics/a", {"action": "pause"}),
    ("POST", "topics/a", {"action": "unpause"}),
    ("POST", "topics/a", {"action": "empty"}),
    ("POST", "topics/a", {"action": "nonsense"}),
    ("POST", "topics/a/none", {"action": "pause"}),
    ("DELETE", "topics/a/c", None),
    ("DELETE", "topics/a/c", None),
    ("DELETE", "topics/a", None),
    ("DELETE", "topics/a", None),
]


def test_it_can_pause_empty_and_delete(sites: list[Site]) -> None:
    said: list[list[Any]] = [[], []]
    for answers, site in zip(said, sites, strict=True):
        site.nsqd.http("/topic/create?topic=a", b"")
        site.nsqd.http("/channel/create?topic=a&channel=c", b"")
        for _ in range(3):
            site.nsqd.http("/pub?topic=a", b"x")
        wait_for(lambda site=site: "a" in str(site.lookupd.http("/channels?topic=a")))
        wait_for(lambda site=site: site.nsqd.channel_stats("a", "c")["depth"] == 3)
        for method, path, body in ACTIONS:
            code, answer = site.ask(method, f"/api/{path}", body)
            answers.append((method, path, body, code, re.sub(r"an address|http://\S+", "", str(answer)), _state(site)))
    assert said[1] == said[0]


def _state(site: Site) -> Any:
    topics = site.nsqd.http("/stats?format=json&topic=a")["topics"] or []
    return [
        (one["paused"], one["depth"], [(it["channel_name"], it["paused"], it["depth"]) for it in one["channels"]])
        for one in topics
    ]


def test_it_can_create_and_tombstone(sites: list[Site]) -> None:
    said: list[list[Any]] = [[], []]
    for answers, site in zip(said, sites, strict=True):
        answers.append(site.ask("POST", "/api/topics", {"topic": "new", "channel": "c"}))
        answers.append(site.ask("POST", "/api/topics", {"topic": "b@d"}))
        site.nsqd.http("/pub?topic=new", b"x")
        wait_for(lambda site=site: _is_found(site, "new"))
        wait_for(lambda site=site: _channels(site, "new") == site.lookupd.http("/channels?topic=new")["channels"])
        answers.append(_channels(site, "new"))
        answers.append(site.ask("DELETE", "/api/nodes/{node}", {"topic": "new"}))
        # nsqd tells nsqlookupd of its channel when it comes to it, and then of the end of the topic.
        wait_for(lambda site=site: not any("new" in one["topics"] for one in site.lookupd.http("/nodes")["producers"]))
        answers.append(site.ask("GET", "/api/nodes"))
    assert said[1] == said[0]


def _is_found(site: Site, topic: str) -> bool:
    """nsqlookupd answers 404 until it has heard of a topic."""
    try:
        return len(site.lookupd.http(f"/lookup?topic={topic}")["producers"]) == 1
    except HTTPError:
        return False


def _channels(site: Site, topic: str) -> list[str]:
    return [one["channel_name"] for one in site.nsqd.http(f"/stats?format=json&topic={topic}")["topics"][0]["channels"]]
