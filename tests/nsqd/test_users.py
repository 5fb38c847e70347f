"""An nsqd that a worker started lives for as long as somebody uses it, and no longer, however its users end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.nsqd.embedded import EmbeddedNsqd, ensure, find
from framework.nsqd.users import Users
from framework.testing.processes import has_ended
from framework.testing.servers import Server

USER = """
import sys, time
from pathlib import Path
from framework.nsqd.embedded import ensure
nsqd = ensure(Path(sys.argv[1]), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
print(nsqd.pid, flush=True)
time.sleep(60)
"""


def use(folder: Path) -> EmbeddedNsqd:
    return ensure(folder, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")


def wait_until(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_it_ends_when_its_only_user_is_killed(tmp_path: Path) -> None:
    user = subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    pid = int(user.stdout.readline())
    assert not has_ended(pid)
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    wait_until(lambda: has_ended(pid))
    assert find(tmp_path) is None


def test_it_outlives_the_one_that_started_it_and_ends_with_its_last_user(tmp_path: Path) -> None:
    first, second = use(tmp_path), use(tmp_path)
    assert (second.pid, second.process) == (first.pid, None)
    first.stop()
    with pytest.raises(AssertionError):  # longer than it takes to notice that nobody is there
        wait_until(lambda: has_ended(first.pid), seconds=1)
    assert find(tmp_path) == second.url
    second.stop()
    wait_until(lambda: has_ended(first.pid))


def test_who_comes_while_it_ends_gets_a_new_one(tmp_path: Path) -> None:
    nsqd = use(tmp_path)
    assert nsqd.users is not None
    nsqd.users.leave()  # as if this process had ended
    wait_until(lambda: find(tmp_path) is None or has_ended(nsqd.pid))
    again = use(tmp_path)
    assert again.pid != nsqd.pid
    assert find(tmp_path) == again.url
    again.stop()
    assert has_ended(again.pid)


def test_one_started_by_hand_stays_without_users(start_embedded: Callable[..., Server]) -> None:
    server = start_embedded()
    assert server.process is not None
    pid = server.process.pid
    used = use(server.data)
    assert used.url == f"nsq://{server.address}?http_port={server.http_port}"
    used.stop()
    with pytest.raises(AssertionError):
        wait_until(lambda: has_ended(pid), seconds=1)


def test_nobody_joins_while_the_last_one_ends_and_none_is_alone_beside_another(tmp_path: Path) -> None:
    ending, late = Users(tmp_path), Users(tmp_path)
    assert ending.join(0)
    assert ending.alone()
    assert not late.join(0)
    ending.leave()
    assert late.join(0)
    other = Users(tmp_path)
    assert other.join(0)
    assert not other.alone()
    late.leave()
    other.leave()
