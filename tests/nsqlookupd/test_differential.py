"""The same bytes and requests to a real nsqlookupd v1.3.0 and to ours: the same answers."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from framework.testing.servers import Server

pytestmark = pytest.mark.real


def identity(**fields: Any) -> bytes:
    """The IDENTIFY of an nsqd."""
    peer = {"broadcast_address": "10.0.0.1", "hostname": "box", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
    return body({name: value for name, value in (peer | fields).items() if value is not ...})


def body(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(data)) + data


ME = identity()
BYTES: dict[str, bytes] = {
    "bad magic": b"!  V2",
    "unknown command": b"HELLO\n",
    "unknown command with parameters": b"HELLO you there\n",
    "commands are case sensitive": b"ping\n",
    "an empty line": b"\n",
    "binary garbage": b"\x00\xff\x01\n",
    "spaces around a line are nothing": b"  PING \t\r\n" + ME + b" \x0b REGISTER a b \n",
    "spaces of Unicode too": "\u00a0PING\u2003\n\x85\n".encode(),
    "two spaces make an empty parameter": ME + b"REGISTER  a\n",
    "an empty second parameter": ME + b"REGISTER a  b\n",
    "PING before IDENTIFY": b"PING\nPING with words\n",
    "IDENTIFY": ME + b"PING\n",
    "IDENTIFY twice": ME + ME,
    "IDENTIFY with words": b"IDENTIFY now\n" + ME[9:],
    "IDENTIFY without a version": identity(version=...),
    "IDENTIFY without a TCP port": identity(tcp_port=...),
    "IDENTIFY with HTTP port 0": identity(http_port=0),
    "IDENTIFY with an empty address": identity(broadcast_address=""),
    "IDENTIFY without a hostname": identity(hostname=...),
    "IDENTIFY with more than is known": identity(topology_zone="z", nonsense=[1]),
    "IDENTIFY names in any case": body(
        b'{"Broadcast_Address": "a", "TCP_PORT": 1, "http_port": 2, "VERSION": "1", "hostname": null}'
    ),
    "IDENTIFY a string for a port": identity(tcp_port="4150"),
    "IDENTIFY a float for a port": identity(tcp_port=4150.0),
    "IDENTIFY a number for a string": identity(version=1),
    "IDENTIFY a port out of range": identity(tcp_port=1 << 64),
    "IDENTIFY a negative port": identity(tcp_port=-1),
    "IDENTIFY an array": body([]),
    "IDENTIFY null": body(None),
    "IDENTIFY not JSON": body(b"{nope"),
    "IDENTIFY NaN": body(b'{"tcp_port": NaN}'),
    "IDENTIFY size 0": body(b""),
    "IDENTIFY cut in the size": b"IDENTIFY\n\x00\x00",
    "IDENTIFY cut in the body": b"IDENTIFY\n\x00\x00\x00\x09{",
    "REGISTER before IDENTIFY": b"REGISTER a\n",
    "REGISTER a topic": ME + b"REGISTER a\nREGISTER a\n",
    "REGISTER a channel": ME + b"REGISTER a b\nREGISTER a b more\n",
    "REGISTER nothing": ME + b"REGISTER\n",
    "REGISTER a bad topic": ME + b"REGISTER a*b\n",
    "REGISTER a bad channel": ME + b"REGISTER a b:c\n",
    "REGISTER a topic that is no UTF-8": ME + b"REGISTER a\xff\xfe\n",
    "REGISTER a topic of 65": ME + b"REGISTER " + b"a" * 65 + b"\n",
    "REGISTER ephemeral ones": ME + b"REGISTER a#ephemeral b#ephemeral\n",
    "UNREGISTER before IDENTIFY": b"UNREGISTER a\n",
    "UNREGISTER what never was": ME + b"UNREGISTER a\nUNREGISTER a b\n",
    "UNREGISTER nothing": ME + b"UNREGISTER\n",
    "UNREGISTER a bad topic": ME + b"UNREGISTER *\n",
    "UNREGISTER a bad channel": ME + b"UNREGISTER a *\n",
    "a line without an end": b"PING",
    "nothing at all": b"",
}


@pytest.mark.parametrize("name", BYTES)
def test_answers_bytes_as_nsqlookupd_does(pair: tuple[Server, Server], register: Callable[..., Any], name: str) -> None:
    data, said = BYTES[name], []
    for server in pair:
        client = register(server, data[1:] if data.startswith(b"!") else b"  V1")
        client.send(b"" if data.startswith(b"!") else data)
        client.socket.shutdown(socket.SHUT_WR)
        said.append([_without_ports(one) for one in client.rest()])
    assert said[1] == said[0]


def _without_ports(reply: bytes) -> Any:
    """The two servers differ in their own ports only."""
    if reply[:1] != b"{":
        return reply
    about = json.loads(reply)
    assert list(about) == sorted(about)
    return {name: value if "port" not in name else isinstance(value, int) for name, value in about.items()}


REGISTERED = ME + b"REGISTER t1 a\nREGISTER t1 b\nREGISTER t2\nREGISTER t3#ephemeral c#ephemeral\n"
SESSIONS: dict[str, list[Any]] = {
    "nothing": [],
    "one nsqd": [REGISTERED],
    "two nsqds": [REGISTERED, identity(broadcast_address="10.0.0.2") + b"REGISTER t1 a\nREGISTER t4\n"],
    "two nsqds that say the same of themselves": [REGISTERED, REGISTERED],
    "one that leaves": [REGISTERED, "leave 0"],
    "one of two that leaves": [REGISTERED, identity(tcp_port=1) + b"REGISTER t1 a\n", "leave 0"],
    "a channel unregistered": [REGISTERED, (0, b"UNREGISTER t1 a\n")],
    "a topic unregistered": [REGISTERED, (0, b"UNREGISTER t1\n")],
    "an ephemeral channel unregistered": [REGISTERED, (0, b"UNREGISTER t3#ephemeral c#ephemeral\n")],
    "an ephemeral topic unregistered": [REGISTERED, (0, b"UNREGISTER t3#ephemeral\n")],
    "an ephemeral topic that another has too": [REGISTERED, REGISTERED, (0, b"UNREGISTER t3#ephemeral\n")],
    "a topic created": [("POST", "/topic/create?topic=made")],
    "a channel created": [("POST", "/channel/create?topic=made&channel=c")],
    "a topic created that an nsqd has": [REGISTERED, ("POST", "/topic/create?topic=t1")],
    "a topic deleted": [REGISTERED, ("POST", "/topic/delete?topic=t1")],
    "a topic deleted and registered again": [REGISTERED, ("POST", "/topic/delete?topic=t1"), (0, b"REGISTER t1 z\n")],
    "a topic deleted that is not there": [REGISTERED, ("POST", "/topic/delete?topic=none")],
    "every topic deleted": [REGISTERED, ("POST", "/topic/delete?topic=*")],
    "a channel deleted": [REGISTERED, ("POST", "/channel/delete?topic=t1&channel=a")],
    "a channel deleted that is not there": [REGISTERED, ("POST", "/channel/delete?topic=t1&channel=z")],
    "a topic tombstoned": [REGISTERED, ("POST", "/topic/tombstone?topic=t1&node=10.0.0.1:4151")],
    "a topic tombstoned at another node": [REGISTERED, ("POST", "/topic/tombstone?topic=t1&node=10.0.0.1:4150")],
    "registering again lifts no tombstone": [
        REGISTERED, ("POST", "/topic/tombstone?topic=t1&node=10.0.0.1:4151"), (0, b"REGISTER t1\n")
    ],
    "unregistering does": [
        REGISTERED, ("POST", "/topic/tombstone?topic=t1&node=10.0.0.1:4151"), (0, b"UNREGISTER t1\nREGISTER t1\n")
    ],
    "requests that are refused": [
        ("POST", "/topic/create"), ("POST", "/topic/create?topic=a*b"), ("POST", "/topic/create?topic="),
        ("POST", "/topic/delete"), ("POST", "/topic/tombstone"), ("POST", "/topic/tombstone?topic=a"),
        ("POST", "/channel/create"), ("POST", "/channel/create?topic=a"), ("POST", "/channel/create?topic=a!&channel=b"),
        ("POST", "/channel/create?topic=a&channel=b!"), ("POST", "/channel/delete?topic=a"), ("POST", "/channel/delete"),
        ("GET", "/lookup"), ("GET", "/lookup?topic=none"), ("GET", "/lookup?topic=%zz"), ("GET", "/lookup?topic=a;b"),
        ("GET", "/channels"), ("GET", "/channels?topic=none"), ("GET", "/topic/create?topic=a"), ("POST", "/topics"),
        ("GET", "/nothing"), ("HEAD", "/ping"), ("OPTIONS", "/ping"), ("OPTIONS", "/topic/create"), ("OPTIONS", "/nothing"),
        ("GET", "/ping/"), ("GET", "/PING"), ("POST", "/topic/create/?topic=a"), ("DELETE", "/nodes"), ("GET", "/"),
        ("POST", "/ping/"),
    ],
    "every topic looked up": [REGISTERED, identity(version="2") + b"REGISTER t4\n", ("GET", "/lookup?topic=*")],
    "plain answers": [("GET", "/ping"), ("GET", "/info")],
}  # fmt: skip
QUESTIONS = [
    "/topics", "/nodes", "/debug", "/channels?topic=*",
    *(f"/{what}?topic={topic}" for what in ("lookup", "channels") for topic in ("t1", "t2", "t3%23ephemeral", "t4", "made")),
]  # fmt: skip


def request(server: Server, method: str, path: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    data, code = answer.read(), answer.status
    headers = {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    is_json = headers.get("content-type", "").startswith("application/json") and data
    kept = {name: headers[name] for name in ("content-type", "x-nsq-content-type", "allow", "location") if name in headers}
    if code == 301:
        return code, {"location": headers["location"]}, ""  # with a little HTML for people, which ours leaves out
    return code, kept, json.loads(data) if is_json else data


def ordered(value: Any, names: dict[str, str]) -> Any:
    """Go's maps have no order, and the connections' ports and times differ."""
    if isinstance(value, dict):
        if "topics" in value and "tombstones" in value:
            pairs = sorted(zip(value["topics"], value["tombstones"], strict=True))
            value |= {"topics": [one for one, _ in pairs], "tombstones": [one for _, one in pairs]}
        for name in ("last_update", "tombstoned_at"):
            if value.get(name, -1) > 0:
                value[name] = "now"
        return {name: ordered(one, names) for name, one in value.items()}
    if isinstance(value, list):
        return sorted((ordered(one, names) for one in value), key=repr)
    return names.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", SESSIONS)
def test_answers_http_as_nsqlookupd_does(pair: tuple[Server, Server], register: Callable[..., Any], name: str) -> None:
    said = [list(_play(server, register, SESSIONS[name])) for server in pair]
    for server in pair:
        server.http("/topic/delete?topic=*", b"")
    assert said[1] == said[0]


def _play(server: Server, register: Callable[..., Any], steps: list[Any]) -> Any:
    clients: list[Any] = []
    numbers = count()
    names: dict[str, str] = {}
    for step in steps:
        if isinstance(step, bytes):
            client = register(server)
            clients.append(client)
            names[f"127.0.0.1:{client.port}"] = f"client {next(numbers)}"
            _say(client, step)
        elif isinstance(step, str):
            _leave(server, clients[int(step[-1])])
        elif isinstance(step[0], int):
            _say(clients[step[0]], step[1])
        else:
            yield _ask(server, *step, names)
    for path in QUESTIONS:
        yield _ask(server, "GET", path, names)
    for client in clients:
        _leave(server, client)


def _ask(server: Server, method: str, path: str, names: dict[str, str]) -> Any:
    code, headers, answer = request(server, method, path)
    return method, path, code, headers, ordered(answer, names)


def _say(client: Any, commands: bytes) -> None:
    client.send(commands)
    for _ in range(commands.count(b"REGISTER ") + commands.count(b"IDENTIFY")):
        assert client.reply() is not None


def _leave(server: Server, client: Any) -> None:
    client.close()
    while any(str(client.port) in one["remote_address"] for one in server.http("/nodes")["producers"]):
        pass
