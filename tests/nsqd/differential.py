"""Plays a row, the same bytes and requests, to a real nsqd v1.3.0 and to ours, and tells what each answered. No rows here."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

import pytest

from framework.testing.servers import Server
from tests.nsqd.conftest import Talk

ID = b"0123456789abcdef"
HALF = None
"""A step: close the sending side."""
SUB = b"SUB {t} c\n"
READY = SUB + b"RDY 10\n"
FIN = b"FIN <id>\n"


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def sized(body: bytes) -> bytes:
    return size(len(body)) + body


def pub(*bodies: bytes) -> bytes:
    return b"".join(b"PUB {t}\n" + sized(body) for body in bodies)


def mpub(*bodies: bytes, said: int | None = None) -> bytes:
    content = size(len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB {t}\n" + size(len(content) if said is None else said) + content


def identify(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def negotiate(**fields: Any) -> bytes:
    return identify(feature_negotiation=True, **fields)


def on(message: int, command: bytes) -> Callable[[list[bytes]], bytes]:
    """A step that names the id of a message that was delivered before."""
    return lambda ids: command.replace(b"<id>", ids[message])


class Other(NamedTuple):
    """A step: what a second client sends."""

    step: Any


class Http(NamedTuple):
    """A step: a POST, whose status counts too."""

    path: str


class Before(NamedTuple):
    """A step: what is sent, and the next one follows without waiting for silence, however slowly the row is played."""

    step: Any


class Until(NamedTuple):
    """A step: wait for so many frames in all, however long that takes."""

    frames: int


class Count(NamedTuple):
    """A step: wait until channel c has counted so many."""

    counter: str
    least: int


ATONCE = 10
"""Rows played at the same time; most of it is waiting for silence."""
QUIET, SLOWLY = 0.12, 1.0
"""Seconds without a frame after which the real nsqd is taken to have said all; the second, where the first did not do."""
END = b"\nTHE-END\n"


PATIENCE = 15.0
COUNTERS = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count", "paused")


class Run:
    """One row against one server."""

    def __init__(self, server: Server, topic: bytes) -> None:
        self._server, self._topic = server, topic
        self._clients: list[Talk] = []
        self._statuses: list[int] = []

    def play(self, steps: list[Any], expected: list[int] | None, quiet: float) -> list[int]:
        """Do the steps; wait after each for as many frames as ``expected`` says, or until it is quiet."""
        hello = steps[0][1:] if isinstance(steps[0], bytes) and steps[0].startswith(b"!") else b"  V2"
        self._clients = [Talk(("127.0.0.1", self._server.tcp_port), hello)]
        counts = []
        for at, step in enumerate([*(steps if hello == b"  V2" else steps[1:]), END]):
            self._do(step)
            if not isinstance(step, Before):
                self._listen(step.frames if isinstance(step, Until) else expected and expected[at], quiet)
            counts.append(self._heard)
        self.close()
        return counts

    def _listen(self, count: int | None, quiet: float) -> None:
        until = time.monotonic() + PATIENCE
        while count is None or (self._heard < count and time.monotonic() < until):
            came = [client.read((quiet if count is None else 0.3) / len(self._clients)) for client in self._open]
            if count is None and not any(came):
                return
            if not self._open:
                return

    @property
    def _open(self) -> list[Talk]:
        return [client for client in self._clients if not client.closed]

    @property
    def _heard(self) -> int:
        return sum(data != b"_heartbeat_" for client in self._clients for _, data in client.frames)

    def _do(self, step: Any) -> None:
        if step is HALF:
            self._clients[0].socket.shutdown(socket.SHUT_WR)
        elif isinstance(step, Http):
            self._request(step.path.replace("{t}", self._topic.decode()))
        elif isinstance(step, Other):
            if len(self._clients) == 1:
                self._clients.append(Talk(("127.0.0.1", self._server.tcp_port)))
            self._send(self._clients[1], step.step)
        elif isinstance(step, Count):
            until = time.monotonic() + PATIENCE
            while self._counted(step.counter) < step.least and time.monotonic() < until:
                time.sleep(0.02)
        elif not isinstance(step, Until):
            self._send(self._clients[0], step.step if isinstance(step, Before) else step)

    def _send(self, client: Talk, step: Any) -> None:
        data = self._naming(step) if callable(step) else step
        client.send(data.replace(b"{t}", self._topic))

    def _naming(self, step: Callable[[list[bytes]], bytes]) -> bytes:
        """What it sends, once the message that it names has come: on a busy machine it may take longer than silence lasts."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return step([one[0] for one in self._messages])
            except IndexError:
                if not self._open or time.monotonic() > until:
                    raise
                self._listen(None, QUIET)

    def _request(self, path: str) -> None:
        try:
            self._server.http(path, b"")
            self._statuses.append(200)
        except urllib.error.HTTPError as error:
            self._statuses.append(error.code)

    def _counted(self, counter: str) -> int:
        return int(self._server.channel_stats(self._topic.decode(), "c").get(counter, 0))

    def close(self) -> None:
        self._clients[0].until(lambda: False, 5)
        for client in self._clients:
            client.close()

    @property
    def _messages(self) -> list[tuple[bytes, int, bytes]]:
        return [message for client in self._clients for message in client.messages]

    def result(self) -> dict[str, Any]:
        """Message frames apart from replies, whose order among each other nsqd itself leaves open; ids as numbers."""
        names = {message[0]: b"<%d>" % at for at, message in reversed(list(enumerate(self._messages)))}
        said = []
        for client in self._clients:
            messages = [(names[message_id], attempts, body) for message_id, attempts, body in client.messages]
            said.append(([self._neutral(reply, names) for reply in client.replies], messages, client.closed))
        return {"said": said, "statuses": self._statuses}

    def _neutral(self, reply: bytes, names: Mapping[bytes, bytes]) -> bytes:
        for message_id, name in names.items():
            reply = reply.replace(message_id, name)
        return reply.replace(self._topic, b"{t}")

    def stats(self) -> Any:
        """The counters of the row's topic and its channels."""
        topics = self._server.http(f"/stats?format=json&topic={self._topic.decode()}")["topics"] or []
        return [
            (
                {name: topic[name] for name in ("depth", "message_count", "message_bytes", "paused")},
                {one["channel_name"]: {name: one[name] for name in COUNTERS} for one in topic["channels"]},
            )
            for topic in topics
        ]


def compare(pair: tuple[Server, Server], topic: str, steps: list[Any]) -> tuple[Any, Any]:
    """What the real one and ours answered and counted. A row that differs is played again, slowly, before it counts; so is one
    that names a message which does not come, as of a channel that was paused before a busy machine delivered it."""
    found: tuple[Any, Any] = ({}, {})
    for quiet in (QUIET, SLOWLY):
        runs = [Run(server, f"{topic}-{quiet:.0f}".encode()) for server in pair]
        try:
            counts = runs[0].play(steps, None, quiet)
            runs[1].play(steps, counts, quiet)
        except IndexError:
            for client in (client for run in runs for client in run._clients):
                client.close()
            if quiet == SLOWLY:
                raise
            continue
        found = runs[0].result(), runs[1].result()
        if found[0] == found[1]:
            until = time.monotonic() + 5
            while (counted := [run.stats() for run in runs])[0] != counted[1] and time.monotonic() < until:
                time.sleep(0.05)
            found = (found[0] | {"stats": counted[0]}, found[1] | {"stats": counted[1]})
        if found[0] == found[1]:
            break
    return found


@contextmanager
def playing(
    pair: tuple[Server, Server], rows: Mapping[str, list[Any]], request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[tuple[Any, Any]]]]:
    """The rows that this run asks for, several at a time; each in topics of its own."""
    asked = {item.callspec.params["name"] for item in request.session.items if _plays(item) and item.path == request.path}
    with ThreadPoolExecutor(ATONCE) as pool:
        numbered = [(f"t{at}", name, steps) for at, (name, steps) in enumerate(rows.items()) if name in asked]
        yield {name: pool.submit(compare, pair, topic, steps) for topic, name, steps in numbered}
        pool.shutdown(wait=False, cancel_futures=True)


def _plays(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and "played" in item.fixturenames
