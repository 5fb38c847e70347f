"""The real RocketMQ of the tests: it is up when messages can be published, and what is missing is said in a sentence."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from framework.testing import rocketmq as room
from framework.testing.rocketmq import RocketMQ
from framework.testing.servers import ROOT, ServerMissing
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode
from tests.house.pages import blocks

_SERVES_AS_NAME_SERVER = """
import socket, sys, time
if "BrokerStartup" in sys.argv[-3]:
    sys.exit("no")
port = next(line for line in open(sys.argv[-1]) if line.startswith("listenPort=")).partition("=")[2]
listening = socket.create_server(("127.0.0.1", int(port)))
while True:
    listening.accept()[0].close()
"""


@pytest.mark.real
@pytest.mark.slow
def test_it_is_up_when_its_name_server_has_a_route_to_its_broker(rocketmq: RocketMQ) -> None:
    asked = Frame(Request.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "TBW102", "acceptStandardJsonOnly": "true"})
    with socket.create_connection(("127.0.0.1", rocketmq.name_server.tcp_port), 10) as sock:
        sock.sendall(encode(asked))
        decoder, found = Decoder(), list[Frame]()
        while not found:
            found = decoder.feed(sock.recv(65536))
    assert (found[0].code, found[0].opaque) == (Answer.SUCCESS, 1)
    assert f'"0":"{rocketmq.broker.address}"'.encode() in found[0].body


def test_the_page_shows_the_settings_of_the_broker_of_the_tests() -> None:
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "rocketmq.md") if block.language == "ini"]
    assert dict(line.split("=") for line in shown.splitlines()) == room.PROMPT


def test_where_a_broker_does_not_start_its_name_server_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "java_command", lambda data, version: [sys.executable, "-c", _SERVES_AS_NAME_SERVER])
    server = RocketMQ(tmp_path, {})
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
    assert server.name_server.process is None


def test_a_machine_without_java_or_maven_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(room, "_CACHE", tmp_path / "cache")
    with pytest.raises(ServerMissing, match="no `java` on the PATH"):
        room.java_binary()
    with pytest.raises(ServerMissing, match="no `mvn` on the PATH"):
        room.jars()


def test_an_older_java_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerMissing, match=r"needs Java 17 or newer, and this is 11\.0\.2"):
        room.java_binary()


def test_a_copy_that_fails_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho 'there is no network'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(room, "_CACHE", tmp_path / "cache")
    with pytest.raises(ServerMissing, match="could not copy RocketMQ's jars: there is no network"):
        room.jars()
    assert [file.name for file in (tmp_path / "cache" / f"rocketmq-{room.VERSION}").iterdir()] == ["lock"]
