"""The end of the process, after all that the app has for its end: native threads that still run greenlets do not crash it.

CPython ends such threads with pthread_exit while it takes itself down, which unwinds C stacks whose pieces greenlets have put
elsewhere: SIGSEGV, or an abort.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import environment, working
from tests.admin.asking import api, port_of, run

GREENLETS = """
    import random, sys, types
    import gevent
    from framework import handler
    from gevent import monkey

    start = monkey.get_original("_thread", "start_new_thread")
    sleep = monkey.get_original("time", "sleep")

    def deep(depth, work):
        return work() if depth == 0 else list(map(lambda _: deep(depth - 1, work), [0]))

    def some():
        return random.randrange(30)

    def run():
        while True:
            deep(some(), lambda: gevent.sleep(random.random() * 0.002))

    def greenlets():
        for _ in range(5):
            deep(some(), lambda: gevent.spawn(run))
        while True:
            deep(some(), lambda: gevent.sleep(random.random() * 0.003))

    class Slow:  # as what is taken down takes a while on a busy machine
        def __del__(self, sleep=sleep):
            sleep(0.3)

    slow = sys.modules["slow"] = types.ModuleType("slow")
    slow.one = Slow()
    del slow
    gevent.sleep(0)  # this thread has a hub first: two that make the first one wait for each other
    for _ in range(8):
        start(greenlets, ())
        gevent.sleep(0.02)
"""
ENDS = """
    import atexit, gzip, tempfile, threading, time
    from framework import handler

    @handler("orders", "bill")
    def bill(text: str) -> None: ...

    kept_open = open("text", "w")
    kept_open.write("text")
    kept_binary = open("binary", "wb")
    kept_binary.write(b"binary")
    kept_zipped = gzip.open("zipped", "wt")
    kept_zipped.write("zipped")
    folder = tempfile.TemporaryDirectory(dir=".", prefix="folder")
    atexit.register(lambda: print("exit function"))
    atexit.register(lambda: 1 / 0)

    def thread():
        while threading.main_thread().is_alive() and not over:
            time.sleep(0.01)
        time.sleep(0.1)
        print("thread")

    over = []
    threading._register_atexit(over.append, True)
    threading.Thread(target=thread).start()
"""
READING = """
    import http.client, os, socket, sys, threading, time
    from framework.process_end import end_process

    near, far = socket.socketpair()
    far.sendall(b"HTTP/1.1 200 OK\\r\\n")
    answer = http.client.HTTPResponse(near)
    waits = [sys.stdin, os.fdopen(os.pipe()[0], "rb")]
    for read in [answer.begin, *(one.read for one in waits)]:
        threading.Thread(target=read, daemon=True).start()
    kept_open = open("text", "w")
    kept_open.write("text")
    time.sleep(0.1)
    end_process(0)
"""


def written(folder: Path, text: str) -> None:
    (folder / "shop.py").write_text(textwrap.dedent(text))


def test_threads_that_run_greenlets_do_not_crash_the_end(tmp_path: Path) -> None:
    written(tmp_path, GREENLETS + '\n    @handler("orders", "bill")\n    def bill(text: str) -> None: ...\n')
    for _ in range(3):
        with working("run", "shop", "--broker", "memory://files", cwd=tmp_path) as worker:
            assert worker.stop() == 0, worker.err


def test_all_that_the_app_has_for_its_end_is_done_before(tmp_path: Path) -> None:
    written(tmp_path, ENDS)
    with working("run", "shop", "--broker", "memory://files", cwd=tmp_path) as worker:
        assert worker.stop() == 0, worker.err
    assert worker.out[-2:] == ["thread", "exit function"]
    assert any("ZeroDivisionError" in line for line in worker.err)
    assert (tmp_path / "text").read_text() == "text"
    assert (tmp_path / "binary").read_bytes() == b"binary"
    assert gzip.decompress((tmp_path / "zipped").read_bytes()) == b"zipped"
    assert list(tmp_path.glob("folder*")) == []


def test_threads_that_wait_for_bytes_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """They hold the lock of what they read, and the interpreter would go on after a second."""
    command = [sys.executable, "-c", textwrap.dedent(READING)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    assert (tmp_path / "text").read_text() == "text"


@pytest.mark.real
@pytest.mark.at_length
@pytest.mark.timeout(900)
@pytest.mark.parametrize("broker", ["memory://files", "nsq"])
def test_fifty_stops_beside_an_admin_endpoint_end_cleanly(broker: str, nsqd: Server, tmp_path: Path) -> None:
    def stop(number: int) -> int:
        folder = tmp_path / str(number)
        folder.mkdir()
        with run(folder, f"nsq://{nsqd.address}" if broker == "nsq" else broker) as worker:
            api(port_of(worker), "/api/handlers")  # its threads ask the broker
            return int(worker.stop())

    with ThreadPoolExecutor(4) as four:
        assert list(four.map(stop, range(50))) == [0] * 50


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd"])
def test_profilers_and_debuggers_are_let_finish(daemon: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cProfile", "-o", "figures", "-m", f"framework.{daemon}", "--version"]
    subprocess.run(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, timeout=60, check=True)
    assert (tmp_path / "figures").stat().st_size > 0
