"""``workers check``: names everything that would keep ``workers run`` from working, and starts nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.servers import Server
from framework.testing.workers import call

pytestmark = pytest.mark.real


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the modules ``good`` and ``bad``."""
    (tmp_path / "good.py").write_text('from framework import handler\n@handler("a", "b", timeout=100)\ndef f(m: bytes): ...\n')
    (tmp_path / "bad.py").write_text('from framework import handler\n@handler("a", "b", tmieout=100)\ndef f(m: bytes): ...\n')
    return tmp_path


def test_all_well_is_exit_0_with_handlers_settings_and_limits(folder: Path, nsqd: Server) -> None:
    done = call("check", "good", "--broker", f"nsq://{nsqd.address}", "--drain", "5s", cwd=folder)
    assert done.returncode == 0
    assert "ok    setting  drain = 5 s" in done.stdout
    assert "ok    handler  a/b good.f (good.py:2): 10 at once, 1000 in flight, 100 s, 10 attempts" in done.stdout
    assert f"ok    broker   {nsqd.address} nsqd 1.3.0: a lease is 60 s, 900 s at most; up to 2500 in flight" in done.stdout
    assert "FAIL" not in done.stdout
    assert nsqd.http("/stats?format=json")["topics"] == []


def test_what_is_around_a_handler_is_shown_in_its_order(folder: Path, nsqd: Server) -> None:
    (folder / "wrapped.py").write_text(
        "from framework import Middleware, handler, use_middleware\n"
        "class A(Middleware):\n    def stop(self): ...\nclass B(A): ...\nuse_middleware(A(), B())\n"
        '@handler("a", "b", middleware=[A()])\ndef f(m: bytes): ...\n'
    )
    done = call("check", "wrapped", "--broker", f"nsq://{nsqd.address}", cwd=folder)
    assert "10 attempts, in wrapped.A, wrapped.B, wrapped.A\n" in done.stdout


def test_a_bad_module_is_exit_2_and_the_rest_is_checked_all_the_same(folder: Path, nsqd: Server) -> None:
    done = call("check", "bad", "--broker", f"nsq://{nsqd.address}", cwd=folder)
    assert done.returncode == 2
    assert "FAIL  module   bad.f (bad.py:2): unknown option 'tmieout': did you mean 'timeout'?" in done.stdout
    assert "ok    broker" in done.stdout


def test_a_broker_that_does_not_answer_is_exit_3(folder: Path) -> None:
    address = f"127.0.0.1:{servers.free_port()}"
    done = call("check", "good", "--broker", f"nsq://{address}", "--connect-deadline", "300ms", cwd=folder)
    assert done.returncode == 3
    assert f"FAIL  broker   nsqd {address} cannot be reached" in done.stdout
    done = call("check", "bad", "--broker", f"nsq://{address}", "--connect-deadline", "300ms", cwd=folder)
    assert done.returncode == 2


def test_a_timeout_over_the_longest_lease_is_exit_2(folder: Path, start_nsqd: Callable[..., Server]) -> None:
    nsqd = start_nsqd("--max-msg-timeout=90s")
    done = call("check", "good", "--broker", f"nsq://{nsqd.address}", cwd=folder)
    assert done.returncode == 2
    assert "FAIL  handler  good.f (good.py:2): timeout=100 is longer than" in done.stdout


EMBEDDED = {"WORKERS_NSQD_TCP_ADDRESS": "127.0.0.1:0", "WORKERS_NSQD_HTTP_ADDRESS": "127.0.0.1:0"}


def test_without_a_broker_it_checks_the_nsqd_that_would_be_started_and_starts_none(folder: Path) -> None:
    done = call("check", "good", cwd=folder, env=EMBEDDED)
    assert done.returncode == 0, done.stdout
    assert "ok    broker   none set: `workers run` starts an nsqd on var/nsqd" in done.stdout
    assert not (folder / "var").exists()


def test_what_would_keep_that_nsqd_from_starting_is_exit_2(folder: Path) -> None:
    (folder / "long.py").write_text('from framework import handler\n@handler("a", "b", timeout=2000)\ndef f(m): ...\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        more = ["--data-path", "good.py/x", "--nsqd-http-address", address, "--ledger", "no/such/folder.json"]
        done = call("check", "long", *more, cwd=folder, env=EMBEDDED)
    assert done.returncode == 2
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert "--ledger no/such/folder.json cannot be written" in failures[0]
    assert "--data-path good.py/x cannot be used" in failures[1]
    assert f"--nsqd-http-address: cannot listen on {address}: Address already in use" in failures[2]
    assert "timeout=2000 is longer than" in failures[3]
    assert len(failures) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["good", "--drain", "soon"], "--drain: 'soon' is not a duration"),
        (["good", "--broker", "kafka://user:secret@host"], "the scheme must be one of nsq://"),
        ([], "Missing argument 'MODULE...'"),
    ],
)
def test_bad_settings_are_exit_2(arguments: list[str], words: str, folder: Path) -> None:
    done = call("check", *arguments, cwd=folder)
    assert done.returncode == 2
    assert words in done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr
