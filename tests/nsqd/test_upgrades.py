"""TLS, snappy and deflate: the same sessions with a real nsqd v1.3.0 and with ours, the same frames and /stats."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from framework.testing import servers
from framework.testing.certificates import Authority
from framework.testing.servers import Server
from tests.nsqd.layers import VARIES, Servers, Session, wait_for
from tests.nsqd.speaking import sized

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def open_pair(start: Servers) -> tuple[Server, Server]:
    """With a certificate, and clients without TLS let in too."""
    return start("--max-deflate-level=7")


def https_port(server: Server) -> int:
    flag = next(one for one in server.command if one.startswith("--https-address"))
    return int(flag.rpartition(":")[2])


WISHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "TLS": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "deflate at a level": {"deflate": True, "deflate_level": 3},
    "deflate above the most": {"deflate": True, "deflate_level": 9},
    "deflate below the least": {"deflate": True, "deflate_level": -1},
    "a level without deflate": {"deflate_level": 3},
    "both compressions": {"deflate": True, "snappy": True},
    "all of it": {"deflate": True, "snappy": True, "tls_v1": True},
    "no negotiation": {"feature_negotiation": False, "tls_v1": True, "snappy": True},
}


@pytest.mark.parametrize("name", WISHES)
def test_grants_what_nsqd_grants(open_pair: tuple[Server, Server], name: str) -> None:
    said = []
    for server in open_pair:
        with Session(server) as client:
            if WISHES[name].get("feature_negotiation", True):
                said.append(client.identify(**WISHES[name]))
            else:
                client.send(b"IDENTIFY\n" + sized(json.dumps(WISHES[name]).encode()))
                said.append(client.frame())
    assert said[1] == said[0]


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", ["", "TLSv1_2", "TLSv1_3"])
def test_a_session_through_layers(open_pair: tuple[Server, Server], tls: str, compression: str) -> None:
    topic = f"t-{tls}-{compression}".encode()
    large = os.urandom(100_000) + bytes(300_000)
    said = []
    for server in open_pair:
        with Session(server) as client:
            granted = client.identify(tls_v1=bool(tls), **({compression: True} if compression else {}))
            assert isinstance(granted, dict)
            frames: list[Any] = [granted]
            if tls:
                client.secure(version=ssl.TLSVersion[tls])
                frames.append(client.frame())
            if compression:
                client.compress(granted)
                frames.append(client.frame())
            client.send(b"SUB " + topic + b" c\n")
            frames.append(client.frame())
            client.send(b"PUB " + topic + b"\n" + sized(large) + b"RDY 1\n")
            received = sorted([client.frame() or (9, b""), client.frame() or (9, b"")])
            frames += [received[0], received[1][0], received[1][1][8:10], received[1][1][26:] == large]
            client.send(b"FIN " + received[1][1][10:26] + b"\n")
            wait_for(lambda server=server: server.channel_stats(topic.decode(), "c")["clients"][0]["finish_count"] == 1)
            (shown,) = server.channel_stats(topic.decode(), "c")["clients"]
            frames.append({key: value for key, value in shown.items() if key not in VARIES})
            client.send(b"NONSENSE\n")
            frames.append(client.end())
            said.append(frames)
    assert said[1] == said[0]


def test_what_is_sent_before_the_handshake_is_no_command(open_pair: tuple[Server, Server]) -> None:
    """Anybody between could have put it there."""
    _, own = open_pair
    with Session(own) as client:
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        client.send(b"IDENTIFY\n" + sized(body) + b"PUB injected\n" + sized(b"x"))
        with pytest.raises(OSError):
            client.frame()
            client.secure()
            client.send(b"NOP\n")
            assert client.end() == []
            raise ConnectionError
    assert "injected" not in [one["topic_name"] for one in own.http("/stats?format=json")["topics"]]


def test_a_client_that_breaks_the_handshake_or_a_layer_harms_no_other(open_pair: tuple[Server, Server]) -> None:
    _, own = open_pair
    for wishes in ({"tls_v1": True}, {"snappy": True}, {"deflate": True}):
        with Session(own) as client:
            client.identify(**wishes)
            client.send(b"this is neither TLS nor compressed" * 3)
            client.sock.shutdown(socket.SHUT_WR)
            try:
                while client.sock.recv(1000):
                    pass
            except ConnectionResetError:
                pass
    assert own.http("/ping") == "OK"


def test_https_is_http_through_tls(open_pair: tuple[Server, Server]) -> None:
    said = []
    for server in open_pair:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", https_port(server), timeout=10, context=context)
        connection.request("POST", "/pub?topic=https", b"x")
        answer = connection.getresponse()
        said.append((answer.status, answer.read(), server.http("/stats?format=json&topic=https")["topics"][0]["depth"]))
        connection.close()
    assert said[1] == said[0] == (200, b"OK", 1)


@pytest.mark.parametrize("required", ["true", "tcp-https"])
def test_nothing_is_let_in_without_tls_where_it_is_required(start: Servers, required: str) -> None:
    said = []
    for server in start(f"--tls-required={required}"):
        answers: list[Any] = []
        for command in (b"NOP\n", b"SUB t c\n", b"PUB t\n" + sized(b"x"), b"AUTH\n" + sized(b"x"), b"nonsense\n", b"\n"):
            with Session(server) as client:
                client.send(command)
                answers.append(client.end())
        with Session(server) as client:
            answers.append(client.identify(tls_v1=False))
            client.send(b"PUB t\n" + sized(b"x"))
            answers.append(client.end())
        with Session(server) as client:
            answers.append(client.identify(tls_v1=True))
            client.secure()
            answers.append(client.frame())
            client.send(b"PUB t\n" + sized(b"x"))
            answers.append(client.frame())
        for path in ("/ping", "/info", "/nothing"):
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().replace(str(https_port(server)).encode(), b"0")
            answers.append((path, answer.status, json.loads(text) if b"TLS_REQUIRED" in text else ""))
            connection.close()
        said.append([one if not isinstance(one, dict) else one["tls_v1"] for one in answers])
    assert said[1] == said[0]


def test_clients_need_a_certificate_of_the_right_authority_where_it_is_verified(
    start: Servers, authority: Authority, tmp_path: Path
) -> None:
    good, stranger = authority.sign("client"), Authority(tmp_path, "other").sign("stranger")
    said = []
    for server in start("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.cert}"):
        let_in = []
        for certificate in (good, stranger, None):
            with Session(server) as client:
                client.identify(tls_v1=True)
                try:
                    client.secure(certificate)
                    let_in.append(client.frame())
                except OSError:
                    let_in.append(None)
        said.append(let_in)
    assert said[1] == said[0] == [(0, b"OK"), None, None]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=require"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-cert=/nowhere.pem", "--tls-key=/nowhere.key"], "cannot use -tls-cert /nowhere.pem with -tls-key /nowhere.key"),
    ],
)
def test_what_cannot_be_kept_closed_is_not_opened(tmp_path: Path, flags: list[str], words: str) -> None:
    server = servers.own_nsqd(tmp_path / "data", *flags)
    with pytest.raises(RuntimeError, match=words):
        server.start()
    assert not (tmp_path / "data").exists()
