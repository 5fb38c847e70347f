"""What systemd is told of a service, read from a real socket: by a worker, by a master, and by the parts that say it."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from framework import systemd
from framework.systemd import Condition, Herald, Notifier
from framework.testing.servers import Server
from framework.testing.workers import working
from tests.cli.shop import put
from tests.master.conftest import Master, consumers

Lead = Callable[..., Master]
Write = Callable[..., Path]
BLOCKING = """
    from gevent import monkey
    never = monkey.get_original("time", "sleep")

    @handler("orders", "say", timeout=1)
    def say(text: str) -> None:
        say_at_once(f"got {text} {os.environ.get('NOTIFY_SOCKET')} {os.environ.get('WATCHDOG_USEC')}")
        if text == "block":
            never(8)
"""


class Manager:
    """As systemd listens: all the time."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self.said: list[dict[str, str]] = []
        self._seen = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while text := self._socket.recv(4096).decode():
            self.said.append(dict(line.split("=", 1) for line in text.splitlines()))

    def env(self, watchdog: float = 0.0) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.path, **({"WATCHDOG_USEC": str(int(watchdog * 1e6))} if watchdog else {})}

    def next(self, field: str) -> dict[str, str]:
        """The next one that has ``field``."""
        until = time.monotonic() + 40
        while time.monotonic() < until:
            if self._seen < len(self.said):
                self._seen += 1
                if field in self.said[self._seen - 1]:
                    return self.said[self._seen - 1]
            else:
                time.sleep(0.01)
        raise TimeoutError(f"no {field} among {self.said[-20:]}")

    def count(self, field: str, seconds: float) -> int:
        """How many have ``field`` in the time from now on."""
        before = len(self.said)
        time.sleep(seconds)
        return sum(field in one for one in self.said[before:])

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.path)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with closing(Manager(tmp_path)) as made:
        yield made


@pytest.mark.real
@pytest.mark.slow
def test_a_worker_says_when_it_has_subscribed_that_it_lives_and_that_it_drains(
    write: Write, manager: Manager, nsqd: Server
) -> None:
    folder, environ = write(BLOCKING), manager.env(watchdog=1.2)
    with working("run", "shop", "--broker", f"nsq://{nsqd.address}", cwd=folder, env=environ) as worker:
        assert manager.next("READY")["STATUS"] == "1 handlers subscribed"
        assert consumers(nsqd) == 1
        assert manager.count("WATCHDOG", 2) >= 2
        put(nsqd, "block")
        worker.wait_for("got block None None")
        time.sleep(2.5)  # its timeout is over
        assert manager.count("WATCHDOG", 2) == 0
        assert worker.stop() == 0
    assert manager.next("STOPPING")["STATUS"] == "draining"
    assert int(manager.next("EXTEND_TIMEOUT_USEC")["EXTEND_TIMEOUT_USEC"]) == systemd.EXTENSION * 1e6


@pytest.mark.real
@pytest.mark.slow
def test_a_master_says_when_all_have_subscribed_and_how_a_reload_went(
    lead: Lead, write: Write, manager: Manager, nsqd: Server
) -> None:
    write(BLOCKING)
    master = lead(env=manager.env(watchdog=1.2))
    assert manager.next("READY")["STATUS"] == "2 of 2 processes at work"
    assert consumers(nsqd) == 2
    put(nsqd, "1")
    master.wait_for("got 1 None None")
    before = time.monotonic_ns() // 1000
    master.signal(signal.SIGHUP)
    reloading = manager.next("RELOADING")
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.next("READY")["STATUS"] == "reloaded"
    master.until_started(4)
    assert manager.count("WATCHDOG", 2) >= 2
    write("def broken(")
    master.signal(signal.SIGHUP)
    manager.next("RELOADING")
    assert manager.next("READY")["STATUS"].startswith("not reloaded: the first new process ended with exit status 2")
    assert master.stop() == 0
    assert manager.next("STOPPING")["STATUS"].startswith("draining")
    assert next(one for one in manager.said if "READY" in one)["STATUS"] == "2 of 2 processes at work"


def test_what_is_said_is_said_when_it_changes_and_life_only_while_there_is_progress(manager: Manager) -> None:
    here = [Condition(status="starting")]
    herald = Herald(Notifier(manager.path, watchdog=0.0), lambda: here[0])
    for condition in (
        Condition(status="starting"),
        Condition(status="starting"),
        Condition(ready=True, status="at work"),
        Condition(ready=True, stuck=True, status="at work"),
        Condition(stopping=True, stuck=True, status="draining"),
    ):
        here[0] = condition
        herald.look()
    herald.reloaded("end")
    while manager.next("STATUS")["STATUS"] != "end":
        pass
    assert manager.said[:-1] == [
        {"STATUS": "starting"},
        {"WATCHDOG": "1"},
        {"EXTEND_TIMEOUT_USEC": "10000000"},
        {"WATCHDOG": "1"},
        {"READY": "1", "STATUS": "at work"},
        {"WATCHDOG": "1"},
        {"STOPPING": "1", "STATUS": "draining"},
    ]


def test_it_is_no_service_of_systemd_without_a_socket(monkeypatch: pytest.MonkeyPatch, manager: Manager) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert Notifier.from_environ() is None
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:9000")
    assert Notifier.from_environ() is None
    for whose, watchdog in (("", 15.0), ("1", None)):
        monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", whose)
        made = Notifier.from_environ()
        assert made is not None
        assert made.watchdog == watchdog


def test_a_manager_that_reads_late_learns_what_counts_and_one_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "late")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.bind(path)
        late.settimeout(5)
        notifier = Notifier(path)
        for _ in range(3000):
            notifier.alive()
        notifier.ready("words\nthat would be fields=1")
        while b"WATCHDOG" in (said := late.recv(4096)):
            notifier.flush()
        assert said == b"READY=1\nSTATUS=words that would be fields=1\n"
    notifier.ready("nobody reads")
    notifier.stopping("and none is waited for")
