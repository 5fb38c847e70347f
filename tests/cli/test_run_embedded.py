"""``workers run`` without a broker: an nsqd of its own, shared with the next worker, stopped last."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from framework.testing.servers import Server
from framework.testing.workers import call, working
from tests.cli.shop import SAY, broker

pytestmark = pytest.mark.real


EMBEDDED = {"WORKERS_NSQD_TCP_ADDRESS": "127.0.0.1:0", "WORKERS_NSQD_HTTP_ADDRESS": "127.0.0.1:0"}


def test_without_a_broker_it_runs_an_nsqd_of_its_own_and_stops_it_last(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    with working("run", "shop", cwd=folder, env=EMBEDDED) as worker:
        running = folder / "var" / "nsqd" / "nsqd.json"
        process = psutil.Process(json.loads(running.read_text())["pid"])
        assert call("publish", "orders", cwd=folder, stdin=b"1\n").returncode == 0
        worker.wait_for("got 1")
        assert worker.stop() == 0
    assert not running.exists()
    assert not process.is_running()


def test_a_second_worker_uses_the_nsqd_of_the_first_and_leaves_it_alone(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    with working("run", "shop", cwd=folder, env=EMBEDDED) as first:
        with working("run", "shop", cwd=folder, env=EMBEDDED) as second:
            assert second.stop() == 0
        assert call("publish", "orders", cwd=folder, stdin=b"1\n").returncode == 0
        first.wait_for("got 1")
        assert first.stop() == 0


def test_the_nsqd_of_the_first_worker_stays_for_the_second_and_ends_with_it(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    with working("run", "shop", cwd=folder, env=EMBEDDED) as first:
        process = psutil.Process(json.loads((folder / "var" / "nsqd" / "nsqd.json").read_text())["pid"])
        with working("run", "shop", cwd=folder, env=EMBEDDED) as second:
            assert first.stop() == 0
            assert call("publish", "orders", cwd=folder, stdin=b"1\n").returncode == 0
            second.wait_for("got 1")
            second.process.kill()
            assert second.wait() == -signal.SIGKILL
    process.wait(10)
    assert call("check", "shop", cwd=folder, env=EMBEDDED).returncode == 0


def test_a_worker_whose_nsqd_is_killed_says_so_and_ends(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    with working("run", "shop", cwd=folder, env=EMBEDDED) as first, working("run", "shop", cwd=folder, env=EMBEDDED) as second:
        psutil.Process(json.loads((folder / "var" / "nsqd" / "nsqd.json").read_text())["pid"]).kill()
        for worker in (first, second):
            assert worker.wait() == 3
            assert worker.err[-1].startswith("workers: the embedded nsqd on var/nsqd has ended")


def test_a_ledger_that_cannot_be_written_at_the_end_is_one_sentence_and_exit_1(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app(SAY)
    (folder / "out").mkdir()
    with working("run", "shop", "--broker", broker(nsqd), "--ledger", "out/ledger.json", cwd=folder) as worker:
        (folder / "out").rmdir()
        assert worker.stop() == 1
    assert worker.err[-1].startswith("workers: --ledger out/ledger.json cannot be written: No such file or directory")
    assert not any("Traceback" in line for line in worker.err)


@pytest.mark.parametrize(
    ("path", "words"),
    [("shop.py", "--data-path shop.py cannot be used: File exists"), ("shop.py/x", "cannot be used: Not a directory")],
)
def test_a_data_path_that_cannot_be_used_is_exit_2(app: Callable[..., Path], path: str, words: str) -> None:
    done = call("run", "shop", "--data-path", path, cwd=app(SAY), env=EMBEDDED)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_address_that_is_taken_is_exit_2_and_names_the_flags(app: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = call("run", "shop", "--nsqd-tcp-address", address, cwd=app(SAY), env=EMBEDDED)
    assert done.returncode == 2
    assert f"cannot listen on {address}" in done.stderr
    assert "--nsqd-tcp-address" in done.stderr
    assert "--broker" in done.stderr
    assert len(done.stderr.splitlines()) == 1
