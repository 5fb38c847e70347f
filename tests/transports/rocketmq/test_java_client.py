"""RocketMQ's own client is the other side: what it sends we handle, and what we send it consumes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.testing.rocketmq import RocketMQ, java_command
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
SOURCE = Path(__file__).parents[2] / "servers" / "rocketmq" / "Peer.java"


class Peer:
    """A process with the official client, in which one line is one command."""

    def __init__(self, server: RocketMQ) -> None:
        self._process = subprocess.Popen(
            [*java_command(server.data), str(SOURCE), server.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said("ready")

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def said(self, word: str) -> list[str]:
        """The words behind ``word`` of its next line that begins so. The hub waits, and so does all of ours."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, *words = line.split()
            if first == word:
                return words
        raise AssertionError(f"it ended with {self._process.wait()} before it said {word!r}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def peer(rocketmq: RocketMQ) -> Iterator[Peer]:
    peer = Peer(rocketmq)
    yield peer
    peer.end()


def body(number: int, size: int = 0) -> bytes:
    return f"{number}-grüße-{'x' * size}".encode()


@pytest.mark.parametrize(("command", "size"), [("send {} 8 0", 0), ("send {} 8 9000", 9000), ("batch {} 8", 0)],
                         ids=["one by one", "compressed", "batch"])  # fmt: skip
def test_what_it_sends_is_handled_with_its_tags_keys_and_properties(kit: Kit, peer: Peer, command: str, size: int) -> None:
    held = kit.hold(kit.open())
    peer.ask(command.format(kit.topic_there))
    for _ in range(1 if command.startswith("batch") else 8):
        peer.said("sent")
    until(lambda: len(held.taken) == 8)
    assert sorted(message.body for message in held.taken) == sorted(body(number, size) for number in range(8))
    for message in held.taken:
        number = int(message.body.split(b"-")[0])
        headers = {"TAGS": f"tag{number % 2}", "KEYS": f"key{number}", "city": f"Łódź {number}"}
        assert {name: message.headers.get(name) for name in headers} == headers
        held.connection.finish(message)
    until(held.balanced)
    assert held.tally.finished == 8


def test_an_id_is_the_same_for_both(kit: Kit, peer: Peer) -> None:
    held = kit.hold(kit.open())
    peer.ask(f"send {kit.topic_there} 1 0")
    (sent,) = peer.said("sent")
    until(lambda: held.taken)
    assert held.taken[0].id == sent.encode()
    held.connection.finish(held.taken[0])


@pytest.mark.parametrize("at_once", [1, 8])
def test_what_we_send_it_consumes_with_tags_keys_and_properties(kit: Kit, peer: Peer, at_once: int) -> None:
    kit.open().ensure(kit.topic, ["billing"])
    peer.ask(f"consume {kit.topic_there} java-{at_once}")
    peer.said("consuming")
    headers = {"TAGS": "new", "KEYS": "key7", "city": "Łódź"}
    for first in range(0, 8, at_once):
        kit.publish(*(body(number) for number in range(first, first + at_once)), headers=headers)
    got = [peer.said("got") for _ in range(8)]
    assert sorted(bytes.fromhex(words[3]) for words in got) == sorted(map(body, range(8)))
    assert {(words[1], words[2], bytes.fromhex(words[4]).decode()) for words in got} == {("new", "key7", "Łódź")}
    assert len({words[0] for words in got}) == 8, "each has an id of its own"


def test_it_and_we_share_one_group_by_pull_with_each_queue_read_by_one_of_us(kit: Kit, peer: Peer) -> None:
    held = kit.hold(kit.open("&mode=pull"), grant=100)
    mine: Any = held.connection
    until(lambda: len(queues_of(mine)) == 4)
    peer.ask(f"consume {kit.topic_there} {mine.subscription.group}")
    peer.said("consuming")
    until(lambda: len(queues_of(mine)) == 2)
    sent = [body(number) for number in range(40)]
    kit.spread(*sent)

    def all_committed() -> bool:
        for message in list(mine.in_flight):
            mine.finish(message)
        return sum(kit.open("&mode=pull").backlog(kit.topic, "billing").values()) == 0

    until(all_committed, 40.0)
    got = [bytes.fromhex(peer.said("got")[3]) for _ in range(40 - len(held.taken))]
    assert sorted([*got, *held.bodies]) == sorted(sent)
    assert got
    assert held.taken


def queues_of(connection: Any) -> list[int]:
    return [place.number for place in connection.readings if "%RETRY%" not in place.topic]
