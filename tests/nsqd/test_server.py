"""One nsqd from its start to its end, in this process: what it says of itself, and what it leaves in its folder."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.socket
import pytest

from framework.nsqd import server as servers
from framework.nsqd.backup import Backup
from framework.nsqd.drain import NotDrained
from framework.nsqd.inspect import Inspect
from framework.nsqd.options import parse
from framework.nsqd.server import RUNNING, Server
from framework.nsqd.store import Store
from framework.nsqd.verify import Verify
from framework.testing.certificates import Authority

NEAR = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


@pytest.fixture
def thawed() -> Iterator[None]:
    """A server freezes what this process has, too."""
    yield
    gc.unfreeze()


def test_a_sync_is_measured_by_the_median_of_five_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 5, 10, 11, 20, 23, 30, 32, 40, 44])
    monkeypatch.setattr(servers, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    written: list[tuple[int, int]] = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append((len(data), at)) or real(fd, data, at))
    assert servers._sync_seconds(tmp_path) == 3
    assert written == [(4096, at * 4096) for at in range(5)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("thawed")
def test_what_it_says_of_itself_and_that_nothing_says_so_behind_its_end(tmp_path: Path) -> None:
    one = Server(parse([f"--data-path={tmp_path}", *NEAR, "--node-id=7", "--statsd-address=a:1", "--broadcast-address=here"]))
    said: list[tuple[str, str]] = []
    one.log = one.broker.log = lambda level, words: said.append((level, words))  # type: ignore[assignment]
    running = gevent.spawn(one.run)
    try:
        with gevent.Timeout(20):
            while not (tmp_path / RUNNING).exists():
                gevent.sleep(0.005)
        told = json.loads((tmp_path / RUNNING).read_text())
        ports = [each.socket.getsockname()[1] for each in (one._tcp, one._http)]
        assert told == {
            "pid": os.getpid(), "tcp_address": f"127.0.0.1:{ports[0]}", "http_address": f"127.0.0.1:{ports[1]}"
        }  # fmt: skip
        assert (tmp_path / RUNNING).stat().st_mode & 0o777 == 0o600
        about = one._about(1, 2)
        assert (about["tcp_port"], about["http_port"], about["broadcast_address"]) == (1, 2, "here")
    finally:
        one.stop()
        running.join(20)
    assert [one._tcp.closed, one._http.closed, one._http.started] == [True, True, False]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((RUNNING, ".sync"))] == []
    lines = [words for _, words in said]
    assert lines[1:3] == ["ID: 7", "-statsd-address has no effect here"]
    assert lines[3].startswith(f"DISK: a sync of {tmp_path} takes ")
    assert lines[4:6] == [f"TCP: listening on 127.0.0.1:{ports[0]}", f"HTTP: listening on 127.0.0.1:{ports[1]}"]
    assert lines[-1] == "NSQ: bye"
    assert [level for level, words in said if "no effect" in words] == ["WARNING"]


@pytest.mark.usefixtures("thawed")
def test_a_client_that_has_left_is_none_of_its_clients_any_more(tmp_path: Path) -> None:
    one = Server(parse([f"--data-path={tmp_path}", *NEAR]))
    one.log = one.broker.log = lambda level, words: None  # type: ignore[assignment]
    running = gevent.spawn(one.run)
    try:
        with gevent.Timeout(20):
            while not (tmp_path / RUNNING).exists():
                gevent.sleep(0.005)
            client = gevent.socket.create_connection(one._tcp.socket.getsockname())
            while not one.clients:
                gevent.sleep(0.005)
            client.close()
            while one.clients:
                gevent.sleep(0.005)
    finally:
        one.stop()
        running.join(20)


@pytest.mark.usefixtures("thawed")
def test_every_path_that_was_listened_on_is_gone_with_it(tmp_path: Path, authority: Authority) -> None:
    """Else it could not be listened on by the next."""
    pair, folder = authority.sign("nsqd"), tmp_path / "data"
    paths = {name: tmp_path / name for name in ("tcp", "http", "https")}
    flags = [f"--{name}-address={path}" for name, path in paths.items()]
    for _ in range(2):
        one = Server(parse([f"--data-path={folder}", *flags, f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"]))
        assert all(path.is_socket() for path in paths.values())
        one._close()
        assert not any(path.exists() for path in paths.values())


def test_ports_are_told_as_the_operator_set_them() -> None:
    made: Any = SimpleNamespace(options=parse(["--broadcast-tcp-port=11", "--broadcast-http-port=12"]))
    about = Server._about(made, 1, 2)
    assert (about["tcp_port"], about["http_port"]) == (11, 12)


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize(("flags", "kind"), [
    ((), Server), (("--verify",), Verify), (("--inspect",), Inspect), (("--backup=/nowhere",), Backup),
])  # fmt: skip
def test_it_does_what_it_was_asked_for(tmp_path: Path, flags: tuple[str, ...], kind: type) -> None:
    Store(tmp_path).close()
    made = servers._make(parse([f"--data-path={tmp_path}", *NEAR, *flags]))
    assert type(made) is kind
    if isinstance(made, Server):
        made._close()


def test_why_a_stop_was_none_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*_: object) -> int:
        raise NotDrained("5 messages are left")

    monkeypatch.setattr(servers.daemon, "main", run)
    assert servers.main([]) == 1
    assert capsys.readouterr().err == "nsqd: 5 messages are left\n"
