"""Where a daemon listens: what an address means, and what is said of one that cannot be had."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from framework.nsqd import daemon
from framework.nsqd.goflags import BadFlag


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1:0", "127.0.0.1"), (":0", "0.0.0.0"), ("localhost:0", "127.0.0.1")])
def test_a_port_is_listened_on_and_said(address: str, host: str) -> None:
    with daemon.listen(address) as listener:
        assert listener.getsockname() == (host, daemon.port(listener))
        assert daemon.port(listener) > 0
        with socket.create_connection(("127.0.0.1", daemon.port(listener)), timeout=20) as client:
            daemon.send_at_once(client)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        daemon.forget(listener)
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; name another address"):
            daemon.bind(f"127.0.0.1:{daemon.port(listener)}")


def test_a_path_is_listened_on_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    with daemon.listen(str(path)) as listener:
        assert daemon.port(listener) == 0
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            daemon.send_at_once(client)
        with pytest.raises(OSError, match=f"cannot listen on {path}: Address already in use"):
            daemon.bind(str(path))
        daemon.forget(listener)
    assert not path.exists()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:\u0663", ""])
def test_what_is_no_address_is_a_wrong_flag(address: str) -> None:
    with pytest.raises(BadFlag, match="is not <host>:<port>"):
        daemon.bind(address)


def test_a_host_that_is_not_known_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(daemon.socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match=r"cannot listen on nowhere:1: Name or service not known; name another address$"):
        daemon.bind("nowhere:1")


@pytest.mark.parametrize(("address", "words"), [
    (("127.0.0.1", 5), "127.0.0.1:5"), (("::1", 5, 0, 0), "[::1]:5"), ("/run/x.sock", "/run/x.sock"), ("", "@"),
])  # fmt: skip
def test_an_address_is_said_as_go_says_it(address: tuple[object, ...] | str, words: str) -> None:
    assert daemon.joined(address) == words
